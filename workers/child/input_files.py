"""Reads the inputs that a batch has as files, or as parts of files, in the child."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import PenstockError
from penstock.workers.ipc.frames import INPUT_MISSING, INPUT_MISSING_CODE, Item


class InputMissing(PenstockError):
    """An input is missing. Not `Gone`, which is a caller's error."""

    kind = INPUT_MISSING_CODE


def with_data(items: Sequence[Item]) -> list[Item]:
    """The items with their inputs in `data`; those whose input is not there any more are missing it."""
    with _open_files() as files:
        return [_read(item, files) if item.path else item for item in items]


def input_of(item: Item) -> bytes:
    """One item's input; raises `InputMissing` if it is not there any more."""
    [read] = with_data([item])
    if read.is_missing:
        raise InputMissing(INPUT_MISSING)
    return read.data


@contextmanager
def _open_files() -> Iterator[dict[str, int]]:
    """Descriptors by path: the inputs of one batch are usually in one or two files."""
    files: dict[str, int] = {}
    try:
        yield files
    finally:
        for descriptor in files.values():
            os.close(descriptor)


def _read(item: Item, files: dict[str, int]) -> Item:
    try:
        data = Path(item.path).read_bytes() if item.length < 0 else _part(item, files)
    except FileNotFoundError:
        data = None
    if data is None:
        return Item(item.content_type, call=item.call, is_missing=True)
    return Item(item.content_type, data, call=item.call, facts=item.facts)


def _part(item: Item, files: dict[str, int]) -> bytes | None:
    """None if other bytes are in its place: the job ended elsewhere, or the disk damaged them (D67)."""
    if item.path not in files:
        files[item.path] = os.open(item.path, os.O_RDONLY | os.O_CLOEXEC)
    data = os.pread(files[item.path], item.length, item.offset)
    return data if len(data) == item.length and zlib.crc32(data) == item.checksum else None

"""Downloads one file: goes on where it was cut, tries again while bytes come, and checks the sum of the whole."""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from penstock.backoff import Backoff
from penstock.errors import DiskFull, is_disk_full
from penstock.model_cache.room import FULL_HINT
from penstock.settings.remote_sources import RemoteSource
from penstock.workers.fetch.origin import FetchFailed, Origin, OriginAway, RemoteFile

# Attempts in a row that bring no byte; an attempt that brings some restarts the count.
_TRIES = 4
_BACKOFF = Backoff(0.2, 5.0, jitter=0.5)
_READ_BYTES = 1 << 20
# Called with the number of bytes of this file that are there.
OnBytes = Callable[[int], None]
_Answer = TypeVar("_Answer")


def patiently(ask: Callable[[], _Answer]) -> _Answer:
    """The answer of an origin, tried again while it is away. Raises `OriginAway` after the last try."""
    for failures in range(1, _TRIES):
        try:
            return ask()
        except OriginAway:
            time.sleep(_BACKOFF.delay_s(failures, chance=random.random()))
    return ask()


def download(origin: Origin, source: RemoteSource, file: RemoteFile, target: Path, on_bytes: OnBytes) -> None:
    """Fill `target`, which may hold the file's first bytes already. When this returns, it is whole, checked and on the disk.

    Raises `FetchFailed`. Its size must be known. A file that differs from its sum is deleted, so that the next try starts over.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    failures = 0
    while True:
        before = _size(target)
        try:
            _append(origin, source, file, target, on_bytes)
            break
        except OriginAway as error:
            failures = 1 if _size(target) > before else failures + 1
            if failures >= _TRIES:
                raise FetchFailed(
                    f"{error}; gave up after {_TRIES} tries. What came is kept, and the next try goes on there"
                ) from error
            time.sleep(_BACKOFF.delay_s(failures, chance=random.random()))
    _check_sum(source, file, target)


def _append(origin: Origin, source: RemoteSource, file: RemoteFile, target: Path, on_bytes: OnBytes) -> None:
    """One attempt. Raises `OriginAway` if it ends early."""
    have, whole = _size(target), file.size_bytes or 0
    if have > whole:
        target.unlink()
        have = 0
    on_bytes(have)
    if have < whole or not target.exists():
        with target.open("ab") as partial:
            _copy(origin, source, file, partial.fileno(), on_bytes)
            os.fsync(partial.fileno())


def _copy(origin: Origin, source: RemoteSource, file: RemoteFile, fd: int, on_bytes: OnBytes) -> None:
    whole = file.size_bytes or 0
    if not whole:
        return
    with origin.read(source, file, os.fstat(fd).st_size) as part:
        os.ftruncate(fd, part.start)
        have = part.start
        for chunk in part.chunks:
            have += _write(fd, chunk, source)
            on_bytes(have)
            if have > whole:
                os.ftruncate(fd, 0)
                raise FetchFailed(f"{source}: {file.path} is larger than the {whole:,} bytes that were announced")
    if have < whole:
        raise OriginAway(f"{source}: the connection ended after {have:,} of the {whole:,} bytes of {file.path}")


def _write(fd: int, chunk: bytes, source: RemoteSource) -> int:
    view = memoryview(chunk)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise DiskFull(f"{source}: the disk of the models' cache is full", hint=FULL_HINT) from error
    return len(chunk)


def _check_sum(source: RemoteSource, file: RemoteFile, target: Path) -> None:
    if not file.sum_kind:
        return
    actual = _sum_of(file.sum_kind, target)
    if actual == file.sum.lower():
        return
    target.unlink()
    raise FetchFailed(
        f"{source}: {file.path} is not what it should be: its {file.sum_kind} sum is {actual} and should be {file.sum}; "
        "it was deleted. Either the source names another file's sum, or something changed the file on its way"
    )


def _sum_of(kind: str, target: Path) -> str:
    """`git`: the id of a blob, which is a SHA-1 over its length and its bytes."""
    digest = hashlib.sha256() if kind == "sha256" else hashlib.sha1(b"blob %d\0" % _size(target), usedforsecurity=False)
    with target.open("rb") as file:
        while data := file.read(_READ_BYTES):
            digest.update(data)
    return digest.hexdigest()


def _size(target: Path) -> int:
    return target.stat().st_size if target.exists() else 0

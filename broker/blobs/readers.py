"""Blobs read in pieces, by a reader who has no room for the whole, or who wants a part of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

PIECE_BYTES = 256 * 1024


class BlobReader(Protocol):
    """An open blob of `size` bytes. Where a place keeps blobs as files, it stays readable although it is deleted."""

    @property
    def size(self) -> int: ...

    def pieces(self, start: int, end: int) -> Iterator[bytes]:
        """The bytes from `start` up to `end`, some at a time; each step may block, and raises if the place does not answer."""
        ...


class BytesReader:
    """Of bytes in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def size(self) -> int:
        return len(self._data)

    def pieces(self, start: int, end: int) -> Iterator[bytes]:
        view = memoryview(self._data)
        for at in range(start, end, PIECE_BYTES):
            yield bytes(view[at : min(at + PIECE_BYTES, end)])


class FileReader:
    """Of a file. Raises `FileNotFoundError`.

    The file is closed with the last reference to its reader: a request that is given up may leave a thread inside a step, and
    until that thread is back the descriptor's number must not go to another file.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self._descriptor).st_size

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def pieces(self, start: int, end: int) -> Iterator[bytes]:
        while start < end and (piece := os.pread(self._descriptor, min(PIECE_BYTES, end - start), start)):
            yield piece
            start += len(piece)

"""Readers of blobs in pieces, for callers without room for the whole or who want a part of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

PIECE_BYTES = 256 * 1024


class BlobReader(Protocol):
    """An open blob of `size` bytes. Where a location keeps blobs as files, it stays readable although it is deleted."""

    @property
    def size(self) -> int: ...

    def pieces(self, start: int, end: int) -> Iterator[bytes]:
        """The bytes from `start` up to `end` in chunks; each step may block, and raises if no answer comes."""
        ...


class BytesReader:
    """A reader of bytes in memory."""

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


class SliceReader:
    """A reader of a part of another reader's bytes."""

    def __init__(self, whole: BlobReader, start: int, end: int) -> None:
        self._whole = whole
        self._start = start
        self.size = end - start

    def pieces(self, start: int, end: int) -> Iterator[bytes]:
        return self._whole.pieces(self._start + start, self._start + end)


class JoinedReader:
    """A reader of several readers' bytes, one after the other."""

    def __init__(self, readers: Sequence[BlobReader]) -> None:
        self._readers = readers
        self.size = sum(reader.size for reader in readers)

    def pieces(self, start: int, end: int) -> Iterator[bytes]:
        for reader in self._readers:
            if start < reader.size and end > 0:
                yield from reader.pieces(max(0, start), min(end, reader.size))
            start, end = start - reader.size, end - reader.size

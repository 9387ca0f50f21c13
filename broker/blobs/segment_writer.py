"""Writes segments: one file and one sync for the payloads of one group commit."""

# D67: docs/design/store.md

from __future__ import annotations

import fcntl
import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import Lock

import structlog

from penstock.broker.blobs.durable_files import sync_folder
from penstock.broker.blobs.segment_files import FOLDER, LOCK, leave, lock, lock_now
from penstock.broker.blobs.segments import KEPT, LIVE, PAGE, STATES_AT, Piece, Reference, encode_head, lay_out

log = structlog.get_logger(__name__)
SEGMENT_NOT_LEFT = "segment_not_left"

# The most payloads and bytes of one segment; a larger payload is a file of its own.
MOST_PIECES = 64
SEGMENT_BYTES = 4 * 1024 * 1024
LARGE_BYTES = 2 * 1024 * 1024
# The number of segments that a writer keeps to refill, at most 128 MiB. Older ones are deleted when they are empty.
KEPT_SEGMENTS = 32
_ZEROS = bytes(PAGE)
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(frozen=True, slots=True)
class _OpenSegment:
    number: int
    path: Path
    descriptor: int
    pieces: int

    def is_empty(self) -> bool:
        return LIVE not in os.pread(self.descriptor, self.pieces, STATES_AT)


class SegmentWriter:
    """Writes the segments of this process below `blobs`. Safe to call from any thread.

    A segment without a live payload is filled again: overwritten, it costs no new file, no allocation and no deletion, which
    take longer than the writing itself. Its file keeps its name, so nothing about it can be lost with a folder's entry.
    """

    def __init__(self, blobs: Path) -> None:
        self._blobs = blobs
        self._mutex = Lock()
        self._numbers = count()
        self._own: Path | None = None
        self._recent: deque[_OpenSegment] = deque()

    def write(self, payloads: Sequence[tuple[str, bytes]]) -> list[str]:
        """Write pairs of name and bytes so that they survive a power cut; returns the names that records have of them.

        At most `MOST_PIECES` and about `SEGMENT_BYTES`. Raises `OSError`, and then leaves nothing behind.
        """
        pieces = lay_out(payloads)
        try:
            segment = self._write(pieces, payloads)
        except FileNotFoundError:
            # The folder was deleted while this process ran.
            self._forget()
            segment = self._write(pieces, payloads)
        self._keep(segment)
        return [str(Reference(segment.path.parent.name, segment.number, piece)) for piece in pieces]

    def _write(self, pieces: Sequence[Piece], payloads: Sequence[tuple[str, bytes]]) -> _OpenSegment:
        with self._mutex:
            folder = self._own = self._own or _open_folder(self._blobs / FOLDER)
            number, descriptor = self._to_fill()
        path = folder / f"{number:x}"
        is_new = descriptor < 0
        if is_new:
            descriptor = os.open(path, _NEW, 0o600)
        try:
            _fill(descriptor, pieces, payloads)
            if is_new:
                sync_folder(folder)
        except OSError:
            _drop(path, descriptor)
            raise
        return _OpenSegment(number, path, descriptor, len(pieces))

    def _to_fill(self) -> tuple[int, int]:
        """The number and the descriptor of an empty segment, under its lock; a new number and -1 if there is none."""
        for segment in [segment for segment in self._recent if segment.is_empty()]:
            # If the lock is taken, the process that emptied the segment is about to release it.
            if lock_now(segment.descriptor):
                self._recent.remove(segment)
                if os.fstat(segment.descriptor).st_nlink:
                    return segment.number, segment.descriptor
                os.close(segment.descriptor)
        return next(self._numbers), -1

    def _forget(self) -> None:
        with self._mutex:
            for segment in self._recent:
                os.close(segment.descriptor)
            self._recent.clear()
            self._own = None

    def _keep(self, segment: _OpenSegment) -> None:
        with self._mutex:
            self._recent.append(segment)
            oldest = self._recent.popleft() if len(self._recent) > KEPT_SEGMENTS else None
        if oldest is not None:
            _give_up(oldest)


def _give_up(segment: _OpenSegment) -> None:
    try:
        lock(segment.descriptor)
        leave(segment.descriptor, segment.path)
    except OSError as fault:
        # What this process has just written is stored all the same; the collector does this later.
        log.warning(SEGMENT_NOT_LEFT, segment=str(segment.path), error=fault.strerror)
    finally:
        os.close(segment.descriptor)


def _fill(descriptor: int, pieces: Sequence[Piece], payloads: Sequence[tuple[str, bytes]]) -> None:
    """The lock of a segment that is filled again is held until its head is written, and not while the disk takes the rest."""
    head = encode_head(pieces, mark=KEPT)
    _write_at(descriptor, [head], 0)
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    padded = (part for _, data in payloads for part in (data, _ZEROS[: -len(data) % PAGE]))
    _write_at(descriptor, list(padded), len(head))
    os.fdatasync(descriptor)


def _write_at(descriptor: int, parts: Sequence[bytes], at: int) -> None:
    """Write the parts one after the other, without joining them."""
    left = [memoryview(part) for part in parts if part]
    while left:
        written = os.pwritev(descriptor, left, at)
        at += written
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if left:
            left[0] = left[0][written:]


def _drop(path: Path, descriptor: int) -> None:
    """A half-written file must not stay on a full disk. Nothing in it is in use."""
    os.close(descriptor)
    with suppress(OSError):
        path.unlink()


def _open_folder(segments: Path) -> Path:
    """A folder of this process, under a lock that it holds until it ends."""
    if not segments.is_dir():
        segments.mkdir(parents=True, exist_ok=True, mode=0o700)
        sync_folder(segments.parent)
    own = os.urandom(4).hex()
    # The folder is locked before it has a name that other processes look for.
    young = segments / f".{own}"
    young.mkdir(mode=0o700)
    fcntl.flock(os.open(young / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), fcntl.LOCK_EX)
    # Fails if another writer has this name: a folder that holds a lock file is never replaced.
    young.rename(segments / own)
    sync_folder(segments)
    return segments / own

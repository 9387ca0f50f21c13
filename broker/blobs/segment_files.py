"""Segments on a disk: reading payloads, marking them dead, and giving their room back."""

# D67: docs/design/store.md

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from penstock.broker.blobs.segments import (
    DEAD,
    LEFT,
    MARK_AT,
    PAGE,
    PUNCHED,
    STATES_AT,
    Piece,
    Reference,
    SegmentHead,
    decode_head,
    head_size,
    is_foreign,
)

log = structlog.get_logger(__name__)
SEGMENT_TORN = "segment_torn"

FOLDER = "segments"
LOCK = "lock"
# File systems of one machine: its processes see each other's writes and locks at once, and a sync reaches a disk of its own.
LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "overlay", "tmpfs"})
# An incomplete segment is deleted once its writer is gone and it is this old; no write takes this long.
TORN_S = 3_600.0
_KEEP_SIZE_AND_PUNCH = 3
# The lock is held while some bytes of the head are read and written.
_LOCKED_MOST_S, _LOOK_S = 1.0, 0.001


def is_local(folder: Path, mounts: str | None = None) -> bool:
    """Whether `folder` lies on a file system of this machine alone. `mounts`: as in /proc/self/mounts."""
    try:
        lines = (mounts if mounts is not None else Path("/proc/self/mounts").read_text()).splitlines()
    except OSError:
        return False
    here = folder.absolute().resolve()
    mounted = [(fields[1], fields[2]) for fields in map(str.split, lines) if here.is_relative_to(_unescaped(fields[1]))]
    # If two file systems are mounted at one place, the later one covers the earlier.
    return bool(mounted) and max(reversed(mounted), key=lambda mount: len(mount[0]))[1] in LOCAL


def _unescaped(path: str) -> str:
    return path.encode("latin-1", "backslashreplace").decode("unicode_escape")


def segment_path(blobs: Path, reference: Reference) -> Path:
    return blobs / FOLDER / reference.segment


def read_head(descriptor: int) -> SegmentHead | None:
    beginning = os.pread(descriptor, PAGE, 0)
    size = head_size(beginning)
    return decode_head(beginning if size == PAGE else os.pread(descriptor, size, 0)) if size else None


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """The open file under its lock, which every change of a segment needs. Raises `FileNotFoundError`."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        lock(descriptor)
        yield descriptor
    finally:
        os.close(descriptor)


def lock(descriptor: int) -> None:
    """Raises `TimeoutError` if another holds the lock for a second: its process is frozen, and a sweep goes on without it."""
    until = time.monotonic() + _LOCKED_MOST_S
    while not lock_now(descriptor):
        if time.monotonic() > until:
            raise TimeoutError(errno.ETIMEDOUT, "a segment is locked by a process that does not go on")
        time.sleep(_LOOK_S)


def lock_now(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_piece(path: Path, piece: Piece, size: int) -> bytes | None:
    """The first `size` bytes of a payload, or all; None if another payload has replaced it. Raises `FileNotFoundError`."""
    with path.open("rb", buffering=0) as file:
        data = os.pread(file.fileno(), min(size, piece.length), piece.offset)
        # Read after the payload: a writer that refills a segment writes its head first.
        head = read_head(file.fileno())
    is_whole = piece.holds(data) if size >= piece.length else head is not None
    return data if is_whole and (head is None or piece in head.pieces) else None


def delete_pieces(blobs: Path, references: Sequence[Reference]) -> list[OSError]:
    """Mark payloads dead, and delete each file that has none left and that its writer does not fill again.

    Returns what kept segments from it.
    """
    by_segment: defaultdict[str, list[Piece]] = defaultdict(list)
    for reference in references:
        by_segment[reference.segment].append(reference.piece)
    faults: list[OSError] = []
    for segment, gone in by_segment.items():
        try:
            _delete_in(blobs / FOLDER / segment, gone)
        except FileNotFoundError:
            continue
        except OSError as fault:
            faults.append(fault)
    return faults


def _delete_in(path: Path, gone: Sequence[Piece]) -> None:
    with locked(path) as descriptor:
        head = read_head(descriptor)
        if head is None:
            return
        states = head.without(gone)
        if states != head.states:
            os.pwrite(descriptor, states, STATES_AT)
        if head.mark == LEFT and not SegmentHead(head.mark, states, head.pieces).has_live:
            path.unlink(missing_ok=True)


def leave(descriptor: int, path: Path) -> None:
    """Stop refilling this segment, whose lock the caller holds: delete it now, or let the process that empties it do so."""
    head = read_head(descriptor)
    if head is None:
        # A damaged head says nothing about the payloads, which are read without it.
        return
    if not head.has_live:
        path.unlink(missing_ok=True)
        return
    if head.mark != LEFT:
        # Written once, because a write changes the file's age, by which orphans are recognised.
        os.pwrite(descriptor, LEFT, MARK_AT)
    give_back_room(descriptor, head)


def give_back_room(descriptor: int, head: SegmentHead) -> None:
    """Punch the dead payloads of a mostly dead segment out of the file, whose lock the caller holds."""
    if not head.is_mostly_dead:
        return
    dead = [piece for piece, state in zip(head.pieces, head.states, strict=True) if state == DEAD]
    if all(_punch(descriptor, piece.offset, -(-piece.length // PAGE) * PAGE) for piece in dead):
        os.pwrite(descriptor, head.states.replace(bytes([DEAD]), bytes([PUNCHED])), STATES_AT)


def _punch(descriptor: int, offset: int, length: int) -> bool:
    """False where the file system cannot do that; the room is then free once the whole segment is."""
    fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    wide = ctypes.c_longlong
    return bool(fallocate(descriptor, _KEEP_SIZE_AND_PUNCH, wide(offset), wide(length)) == 0)


def live_pieces(blobs: Path, now: float) -> Iterator[tuple[str, float]]:
    """Every live payload's name with its age in seconds by `now`, the folder's clock. Gives back room on the way.

    A state that is written makes a segment younger, which only puts off what happens to the old.
    """
    _delete_unfinished(blobs / FOLDER, now)
    for folder in sorted((blobs / FOLDER).glob("[0-9a-f]*")):
        is_alive = has_writer(folder)
        for name in os.listdir(folder):
            if name != LOCK:
                yield from _looked_after(folder / name, now, is_alive=is_alive)
        if not is_alive:
            _delete_empty(folder)


def _looked_after(path: Path, now: float, *, is_alive: bool) -> Iterator[tuple[str, float]]:
    try:
        with locked(path) as descriptor:
            age_s = now - os.fstat(descriptor).st_mtime
            head = read_head(descriptor)
            if head is None:
                _delete_if_torn(path, os.pread(descriptor, PAGE, 0), age_s, is_alive=is_alive)
                return
            if not is_alive or head.mark == LEFT:
                leave(descriptor, path)
    except FileNotFoundError:
        return
    owner, number = path.parent.name, int(path.name, 16)
    for piece in head.live:
        yield str(Reference(owner, number, piece)), age_s


def _delete_if_torn(path: Path, beginning: bytes, age_s: float, *, is_alive: bool) -> None:
    if not is_alive and age_s > TORN_S and not is_foreign(beginning):
        log.warning(SEGMENT_TORN, segment=f"{path.parent.name}.{path.name}", age_s=round(age_s))
        path.unlink(missing_ok=True)


def has_writer(folder: Path) -> bool:
    """Whether the process lives that writes segments here; it holds a lock."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not lock_now(descriptor)
    finally:
        os.close(descriptor)


def _delete_unfinished(segments: Path, now: float) -> None:
    """Delete the folders of writers that died before they had named them."""
    for folder in segments.glob(".*"):
        with suppress(FileNotFoundError):
            if now - folder.stat().st_mtime > TORN_S and not has_writer(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _delete_empty(folder: Path) -> None:
    """Delete the folder of a writer that is gone once no segment is left in it; a name is never used twice."""
    if set(os.listdir(folder)) <= {LOCK}:
        shutil.rmtree(folder, ignore_errors=True)

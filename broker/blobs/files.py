"""Payloads too large for a record, kept in files: written durably before the record names them, collected after it is gone."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from penstock.broker.blobs.durable_files import write_all
from penstock.broker.blobs.readers import BlobReader, BytesReader, FileReader
from penstock.broker.blobs.segment_files import delete_pieces, is_local, live_pieces, read_piece, segment_path
from penstock.broker.blobs.segment_writer import LARGE_BYTES, MOST_PIECES, SEGMENT_BYTES, SegmentWriter
from penstock.broker.blobs.segments import Reference, parse_reference
from penstock.errors import Gone, InternalError, StoreUnavailable

log = structlog.get_logger(__name__)
BLOBS_NOT_DELETED = "blobs_not_deleted"
COLLECTED_LATER = "collected as orphans once no record names them"

# D9: docs/design/store.md
# `<serial of the job>.in`, or `<serial>.<hash of the token>.out`; no dot-dot or slash matches. A repeated write that was cut
# short leaves a name with a tail, which is collected like any other orphan.
_NAME = re.compile(r"[0-9a-z]{26}\.(?:in|[0-9A-Za-z_-]{1,64}\.out)(?:\.[0-9a-f]{16}\.new)?")
# Enough folders that none becomes large and slow.
_FOLDERS = 64
# The first eight characters of a serial count units of 1,024 ms: files that are written together share a folder and its one
# sync.
_MOMENT = 8
CLOCK, PASSED = "CLOCK", "PASSED"


class BlobsUnavailable(StoreUnavailable):
    """The location of the blobs does not answer or refuses access; the job store may still work."""


@dataclass(frozen=True, slots=True)
class BlobFile:
    """`own`: a copy for the caller, who deletes it after use; else the path is where the blob itself lies.

    With a `length`, the blob is `length` bytes from `offset`, with the CRC-32 `checksum`: another blob may get its place
    while a slow reader still holds this.
    """

    path: Path
    own: bool = False
    offset: int = 0
    length: int = -1
    checksum: int = 0


class BlobStore(Protocol):
    """Bytes by name. A name is written by one attempt of one job only, so two writers of a name write the same bytes."""

    def put(self, name: str, data: bytes) -> None:
        """Store `data` so that it survives a power cut once this returns; raises `StoreUnavailable` if it cannot."""
        ...

    def put_all(self, blobs: Sequence[tuple[str, bytes]]) -> list[None]:
        """`put` several blobs at once, faster than one by one; returns one None per blob."""
        ...

    def append_all(self, blobs: Sequence[tuple[str, bytes]]) -> list[str]:
        """As `put_all`, the fastest way for this location; returns the names by which the blobs are known from then on.

        Such a name may differ from the given one but begins with the same serial; a repeat may then make further blobs.
        """
        ...

    def get(self, name: str) -> bytes:
        """The bytes; raises `Gone` if there is no blob of this name."""
        ...

    def peek(self, name: str, size: int) -> tuple[bytes, int]:
        """The first `size` bytes, and the size of the whole blob; raises `Gone` as `get` does."""
        ...

    def open(self, name: str) -> BlobReader:
        """A reader of the blob in pieces; raises `Gone` as `get` does."""
        ...

    def delete_all(self, names: Sequence[str]) -> None:
        """Remove the blobs. A missing blob is no error, because deletions are repeated after a crash.

        A blob that cannot be removed is logged and not raised: the caller has settled its jobs and must not settle them twice.
        """
        ...

    def readable(self, names: Sequence[str]) -> list[BlobFile | None]:
        """Per name a file that a process on this machine can read; None for a blob that is missing.

        Raises `BlobsUnavailable` if the blobs cannot be fetched; no copy is left behind.
        """
        ...

    def belong_to(self, store: str) -> bool:
        """Whether this location belongs to the store of this identity; the first that asks gets an unmarked one."""
        ...

    def begin_pass(self, every_s: float) -> bool:
        """Whether to go over all blobs now: False if another process began less than `every_s` ago by this location's clock."""
        ...

    def names(self) -> Iterator[tuple[str, float]]:
        """Every blob with its age in seconds, in no order, to find blobs that no record names.

        The age is by the clock of this location alone: by another, a blob whose record is about to be written could look old.
        """
        ...


class LocalBlobs:
    """Blobs as files of one folder, for gateways and workers that share its disk.

    What is appended goes into segments (D67) if the disk is this machine's own; `segments` decides otherwise.
    """

    def __init__(self, folder: Path, *, segments: bool | None = None) -> None:
        self._folder = folder
        self._has_segments = segments
        self._writer = SegmentWriter(folder)

    def put(self, name: str, data: bytes) -> None:
        self.put_all([(name, data)])

    def put_all(self, blobs: Sequence[tuple[str, bytes]]) -> list[None]:
        paths = [self._path(name) for name, _ in blobs]
        try:
            write_all(paths, [data for _, data in blobs])
        except OSError as fault:
            raise self._unwritable(blobs, fault) from fault
        return [None] * len(blobs)

    def append_all(self, blobs: Sequence[tuple[str, bytes]]) -> list[str]:
        stored = {checked(name): name for name, _ in blobs}
        small = [blob for blob in blobs if len(blob[1]) <= LARGE_BYTES] if self._use_segments() else []
        stored |= self._append(small)
        if large := [blob for blob in blobs if stored[blob[0]] == blob[0]]:
            self.put_all(large)
        return list(stored.values())

    def _append(self, blobs: Sequence[tuple[str, bytes]]) -> dict[str, str]:
        """By the given name of each blob, the name under which it is stored."""
        stored: dict[str, str] = {}
        for group in in_segments(blobs):
            try:
                stored |= zip((name for name, _ in group), self._writer.write(group), strict=True)
            except OSError as fault:
                raise self._unwritable(group, fault) from fault
        return stored

    def _use_segments(self) -> bool:
        if self._has_segments is None:
            self._has_segments = is_local(self._folder)
        return self._has_segments

    def _unwritable(self, blobs: Sequence[tuple[str, bytes]], fault: OSError) -> BlobsUnavailable:
        size = sum(len(data) for _, data in blobs)
        return BlobsUnavailable(f"{len(blobs)} blobs ({size} bytes) cannot be written to {self._folder}: {fault.strerror}")

    def get(self, name: str) -> bytes:
        if reference := parse_reference(name):
            return self._piece(reference, reference.piece.length)
        with self._reading(name) as path, path.open("rb") as file:
            return file.read()

    def peek(self, name: str, size: int) -> tuple[bytes, int]:
        if reference := parse_reference(name):
            return self._piece(reference, size), reference.piece.length
        with self._reading(name) as path, path.open("rb") as file:
            return file.read(size), os.fstat(file.fileno()).st_size

    def open(self, name: str) -> BlobReader:
        # A segment is filled again once its payloads are dead, so one of its payloads is read at once; it is small.
        if parse_reference(name):
            return BytesReader(self.get(name))
        with self._reading(name) as path:
            return FileReader(path)

    def _piece(self, reference: Reference, size: int) -> bytes:
        with self._reading(str(reference)) as path:
            data = read_piece(path, reference.piece, size)
        if data is None:
            raise Gone(f"blob {reference} is not in {self._folder}: it was collected, or its segment is damaged")
        return data

    @contextmanager
    def _reading(self, name: str) -> Iterator[Path]:
        path = self._path(name)
        try:
            yield path
        except FileNotFoundError:
            raise Gone(
                f"blob {name} is not in {self._folder}: it was collected, or the folder is not the one it was put in"
            ) from None
        except OSError as fault:
            raise BlobsUnavailable(f"blob {name} cannot be read from {path.parent}: {fault.strerror}") from fault

    def delete_all(self, names: Sequence[str]) -> None:
        """Not synced: a deletion that a power cut undoes leaves an orphan, which is collected."""
        pairs = [(name, parse_reference(name)) for name in names]
        faults = [fault for name, reference in pairs if reference is None and (fault := self._fault_of_deletion(name))]
        pieces = [reference for _, reference in pairs if reference is not None]
        faults += [f"{fault.filename or self._folder}: {fault.strerror}" for fault in delete_pieces(self._folder, pieces)]
        if faults:
            log.warning(BLOBS_NOT_DELETED, blobs=len(faults), error=faults[0], next=COLLECTED_LATER)

    def _fault_of_deletion(self, name: str) -> str:
        path = self._path(name)
        try:
            path.unlink(missing_ok=True)
        except OSError as fault:
            return f"{path}: {fault.strerror}"
        return ""

    def readable(self, names: Sequence[str]) -> list[BlobFile | None]:
        known: dict[str, Path | None] = {}
        return [self._readable(name, known) for name in names]

    def _readable(self, name: str, known: dict[str, Path | None]) -> BlobFile | None:
        """`known`: the files of the segments that were looked for; None for one that is not there."""
        reference = parse_reference(name)
        if reference is None:
            return BlobFile(path) if (path := self.local_path(name)) else None
        if reference.segment not in known:
            known[reference.segment] = self.local_path(name)
        path, piece = known[reference.segment], reference.piece
        return BlobFile(path, offset=piece.offset, length=piece.length, checksum=piece.checksum) if path else None

    def local_path(self, name: str) -> Path | None:
        """The path of the file in which the blob lies; None if there is none."""
        path = self._path(name)
        return path if path.exists() else None

    def belong_to(self, store: str) -> bool:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        mark = self._folder / "STORE"
        try:
            with mark.open("x") as file:
                file.write(store)
        except FileExistsError:
            return mark.read_text() == store
        return True

    def begin_pass(self, every_s: float) -> bool:
        now, mark = folder_now(self._folder), self._folder / PASSED
        if mark.exists() and now - mark.stat().st_mtime < every_s:
            return False
        mark.touch(mode=0o600)
        return True

    def names(self) -> Iterator[tuple[str, float]]:
        now = folder_now(self._folder)
        for folder in sorted(self._folder.glob("[0-9a-f][0-9a-f]")):
            for entry in os.scandir(folder):
                age_s = _age_s(entry, now)
                if age_s is not None and is_blob_name(entry.name):
                    yield entry.name, age_s
        yield from live_pieces(self._folder, now)

    def _path(self, name: str) -> Path:
        if reference := parse_reference(name):
            return segment_path(self._folder, reference)
        serial = checked(name).partition(".")[0]
        # By hash, so that the folders fill evenly; by serial, so that a job's blobs share a folder.
        return self._folder / f"{zlib.crc32(serial[:_MOMENT].encode()) % _FOLDERS:02x}" / name


def in_segments(blobs: Sequence[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    """The blobs in groups that each fit one segment. Pure."""
    group: list[tuple[str, bytes]] = []
    size = 0
    for blob in blobs:
        size += len(blob[1])
        if group and (len(group) == MOST_PIECES or size > SEGMENT_BYTES):
            yield group
            group, size = [], len(blob[1])
        group.append(blob)
    if group:
        yield group


def folder_now(folder: Path) -> float:
    """Unix time by the clock that dates the files of `folder`. For a network file system that is its server's, and the clocks
    of the hosts that share the folder may differ from it and from each other.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    mark = folder / CLOCK
    mark.touch(mode=0o600)
    return mark.stat().st_mtime


def is_blob_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def checked(name: str) -> str:
    """The name itself; raises `InternalError` if it is not a blob name, before it becomes part of a path."""
    if not is_blob_name(name):
        raise InternalError(f"{name[:100]!r} is not a blob name (<serial>.in or <serial>.<token hash>.out)")
    return name


def _age_s(entry: os.DirEntry[str], now: float) -> float | None:
    """None if the file was deleted since the folder was listed."""
    try:
        return now - entry.stat(follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return None

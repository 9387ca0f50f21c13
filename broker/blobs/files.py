"""Payloads too large for a record, kept as files: written durably before the record names them, collected after it is gone."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import structlog

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
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class BlobsUnavailable(StoreUnavailable):
    """The place of the blobs does not answer or refuses access; the job store may still work."""


@dataclass(frozen=True, slots=True)
class BlobFile:
    """`own`: a copy for the caller, who deletes it after use; else the path is the blob itself."""

    path: Path
    own: bool = False


class BlobStore(Protocol):
    """Bytes by name. A name is written by one attempt of one job only, so two writers of a name write the same bytes."""

    def put(self, name: str, data: bytes) -> None:
        """Store `data` so that it survives a power cut once this returns; raises `StoreUnavailable` if it cannot."""
        ...

    def put_all(self, blobs: Sequence[tuple[str, bytes]]) -> list[None]:
        """`put` several blobs at once, faster than one by one; returns one None per blob."""
        ...

    def get(self, name: str) -> bytes:
        """The bytes; raises `Gone` if there is no blob of this name."""
        ...

    def peek(self, name: str, size: int) -> tuple[bytes, int]:
        """The first `size` bytes, and the size of the whole blob; raises `Gone` as `get` does."""
        ...

    def delete(self, name: str) -> None:
        """Remove the blob. A missing blob is no error, because deletions are repeated after a crash.

        A blob that cannot be removed is logged and not raised: the caller has settled its jobs and must not settle them twice.
        """
        ...

    def delete_all(self, names: Sequence[str]) -> None:
        """`delete` several blobs at once, faster than one by one."""
        ...

    def readable(self, names: Sequence[str]) -> list[BlobFile | None]:
        """Per name a file that a process on this machine can read; None for a blob that is missing.

        Raises `BlobsUnavailable` if the blobs cannot be fetched; no copy is left behind.
        """
        ...

    def belong_to(self, store: str) -> bool:
        """Whether this place belongs to the store of this identity; an unmarked place is given to the first store that asks."""
        ...

    def begin_pass(self, every_s: float) -> bool:
        """Whether to go over all blobs now; not if anybody began to less than `every_s` ago, by the clock of this place."""
        ...

    def names(self) -> Iterator[tuple[str, float]]:
        """Every blob with its age in seconds, in no order, to find blobs that no record names.

        The age is by the clock of this place alone: by another, a blob whose record is about to be written could look old.
        """
        ...


class LocalBlobs:
    """Blobs as files of one folder, for gateways and workers that share its disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, name: str, data: bytes) -> None:
        self.put_all([(name, data)])

    def put_all(self, blobs: Sequence[tuple[str, bytes]]) -> list[None]:
        paths = [self._path(name) for name, _ in blobs]
        try:
            _write_all(paths, [data for _, data in blobs])
        except OSError as fault:
            size = sum(len(data) for _, data in blobs)
            raise BlobsUnavailable(
                f"{len(blobs)} blobs ({size} bytes) cannot be written to {self._folder}: {fault.strerror}"
            ) from fault
        return [None] * len(blobs)

    def get(self, name: str) -> bytes:
        with self._reading(name) as file:
            return file.read()

    def peek(self, name: str, size: int) -> tuple[bytes, int]:
        with self._reading(name) as file:
            return file.read(size), os.fstat(file.fileno()).st_size

    @contextmanager
    def _reading(self, name: str) -> Iterator[BinaryIO]:
        path = self._path(name)
        try:
            with path.open("rb") as file:
                yield file
        except FileNotFoundError:
            raise Gone(
                f"blob {name} is not in {self._folder}: it was collected, or the folder is not the one it was put in"
            ) from None
        except OSError as fault:
            raise BlobsUnavailable(f"blob {name} cannot be read from {path.parent}: {fault.strerror}") from fault

    def delete(self, name: str) -> None:
        self.delete_all([name])

    def delete_all(self, names: Sequence[str]) -> None:
        """Not synced: a deletion that a power cut undoes leaves an orphan, which is collected."""
        faults = [fault for fault in map(self._fault_of_deletion, names) if fault]
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
        return [BlobFile(path) if (path := self.local_path(name)) else None for name in names]

    def local_path(self, name: str) -> Path | None:
        """The path of the blob's file; None if there is none."""
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

    def _path(self, name: str) -> Path:
        serial = checked(name).partition(".")[0]
        # By hash, so that the folders fill evenly; by serial, so that a job's blobs share a folder.
        return self._folder / f"{zlib.crc32(serial[:_MOMENT].encode()) % _FOLDERS:02x}" / name


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


def _write_all(paths: Sequence[Path], contents: Sequence[bytes]) -> None:
    """Write every file, then sync every file: the first sync commits the file system's journal for all of them.

    The files get their final names at once. A reader knows a name only from a record, and the record is written after this
    function returns, so a half-written file is an orphan that nobody reads. This saves the rename, and with it a second journal
    commit.
    """
    with ExitStack() as opened:
        files = [opened.enter_context(_Fresh(path)) for path in paths]
        for file, data in zip(files, contents, strict=True):
            file.write(data)
        for file in files:
            file.sync()
        for file in files:
            file.keep()
    # POSIX guarantees the folder's entry of a new file only after this sync. On ext4 and XFS the file's own fsync has
    # committed the entry already, and this sync finds nothing to do.
    for folder in {path.parent for path in paths}:
        _sync_folder(folder)


class _Fresh:
    """A new file under its final name; if that is taken, the file has another name until it is whole.

    A write that is repeated after a lost reply finds its name taken. A worker may be reading that file, which must always be
    whole.
    """

    def __init__(self, path: Path) -> None:
        self._path = self._target = path
        self._descriptor = -1
        self._kept = False

    def __enter__(self) -> _Fresh:
        try:
            self._open()
        except FileNotFoundError:
            _make_folder(self._path.parent)
            self._open()
        return self

    def _open(self) -> None:
        try:
            self._descriptor = os.open(self._path, _CREATE, 0o600)
        except FileExistsError:
            self._path = self._target.with_name(f"{self._target.name}.{os.urandom(8).hex()}.new")
            self._descriptor = os.open(self._path, _CREATE, 0o600)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def keep(self) -> None:
        if self._path != self._target:
            self._path.replace(self._target)
        self._kept = True

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
        if not self._kept:
            # A half-written file must not stay on a full disk. Only our own file goes: an earlier whole one may be in use.
            self._path.unlink()


def _make_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _age_s(entry: os.DirEntry[str], now: float) -> float | None:
    """None if the file was deleted since the folder was listed."""
    try:
        return now - entry.stat(follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return None

"""How much of the disk callers may fill: the reserve for the store, and the files of each owner (D54)."""

from __future__ import annotations

import math
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.broker.blobs.uploads import FileStore
from penstock.errors import NotFound, StorageFull

# Files of other processes come and go, so the disk is counted again after this time.
COUNT_AGE_S = 5.0
_RETRY_AFTER_S = 60.0


class DiskReserve:
    """Keeps `reserve_bytes` of a folder's disk free; None for a location without a disk, as an object store is."""

    def __init__(self, folder: Path | None, reserve_bytes: int) -> None:
        self._folder = folder
        self._reserve_bytes = reserve_bytes

    def require(self, size: int) -> None:
        """Raises `StorageFull` if `size` more bytes would take from the reserve. Blocks for a moment."""
        if self._folder is None or not self._reserve_bytes:
            return
        # The folder is made for its first file. Until then its nearest parent shows the disk.
        nearest = next(folder for folder in (self._folder, *self._folder.absolute().parents) if folder.is_dir())
        free = shutil.disk_usage(nearest).free
        if free - size < self._reserve_bytes:
            raise StorageFull(
                f"the disk has {free} bytes free; {self._reserve_bytes} are kept for the store, so {size} more do not fit",
                retry_after_s=_RETRY_AFTER_S,
                hint="Delete files that are no longer needed, give the gateway a larger disk, or lower store.reserve_bytes.",
            )


@dataclass(frozen=True, slots=True)
class FileUsage:
    """The number and total size of one owner's files."""

    files: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class _Counted:
    """The sizes of an owner's files by their ids, and when they were counted."""

    sizes: dict[str, int] = field(default_factory=dict)
    at: float = -math.inf


class FileCensus:
    """The usage of each owner. Counts an owner's files at most every few seconds, and reads each of their records once.

    `usage` blocks, for one call per owner at a time; the other methods do not.
    """

    def __init__(self, files: FileStore) -> None:
        self._files = files
        self._owners: dict[str, _Counted] = {}
        self._lock = threading.Lock()

    def usage(self, owner: str) -> FileUsage:
        counted = self._of(owner)
        if time.monotonic() - counted.at > COUNT_AGE_S:
            with self._lock:
                before = dict(counted.sizes)
            found = self._count(owner, before)
            with self._lock:
                # What this process stored or deleted while the files were read stays as it noted it.
                noted = {file_id: size for file_id, size in counted.sizes.items() if file_id not in before}
                kept = {file_id: size for file_id, size in found.items() if file_id in counted.sizes or file_id not in before}
                counted.sizes, counted.at = kept | noted, time.monotonic()
        with self._lock:
            return FileUsage(len(counted.sizes), sum(counted.sizes.values()))

    def add(self, file_id: str, owner: str, size_bytes: int) -> None:
        """Count a file that this process has just stored."""
        counted = self._of(owner)
        with self._lock:
            counted.sizes[file_id] = size_bytes

    def discard(self, file_id: str, owner: str) -> None:
        """Stop counting a file that this process has just deleted."""
        counted = self._of(owner)
        with self._lock:
            counted.sizes.pop(file_id, None)

    def _of(self, owner: str) -> _Counted:
        return self._owners.setdefault(owner, _Counted())

    def _count(self, owner: str, known: Mapping[str, int]) -> dict[str, int]:
        ids = self._files.ids(owner, now=self._files.now())
        entries = ((file_id, known[file_id] if file_id in known else self._read(file_id)) for file_id in ids)
        return {file_id: size for file_id, size in entries if size is not None}

    def _read(self, file_id: str) -> int | None:
        try:
            return self._files.find(file_id, now=-math.inf).size_bytes
        except NotFound:
            return None  # it is being written, or was deleted meanwhile

"""How much of the disk callers may fill: the reserve for the store, and the files of each owner (D54)."""

from __future__ import annotations

import math
import shutil
import threading
import time
from dataclasses import dataclass
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


class FileCensus:
    """The usage of each owner. Counts at most every few seconds, and reads each record once. Blocks; safe among threads."""

    def __init__(self, files: FileStore) -> None:
        self._files = files
        self._known: dict[str, tuple[str, int]] = {}
        self._counted_at = -math.inf
        self._lock = threading.Lock()

    def usage(self, owner: str) -> FileUsage:
        with self._lock:
            if time.monotonic() - self._counted_at > COUNT_AGE_S:
                self._known = self._count()
                self._counted_at = time.monotonic()
            sizes = [size for whose, size in self._known.values() if whose == owner]
        return FileUsage(len(sizes), sum(sizes))

    def add(self, file_id: str, owner: str, size_bytes: int) -> None:
        """Count a file that this process has just stored."""
        with self._lock:
            self._known[file_id] = (owner, size_bytes)

    def discard(self, file_id: str) -> None:
        """Stop counting a file that this process has just deleted."""
        with self._lock:
            self._known.pop(file_id, None)

    def _count(self) -> dict[str, tuple[str, int]]:
        entries = ((file_id, self._known.get(file_id) or self._read(file_id)) for file_id in self._files.ids())
        return {file_id: known for file_id, known in entries if known is not None}

    def _read(self, file_id: str) -> tuple[str, int] | None:
        try:
            record = self._files.find(file_id, now=-math.inf)
        except NotFound:
            return None  # it is being written, or was deleted meanwhile
        return record.owner, record.size_bytes

"""How much of the disk callers may fill: the reserve for the store, and the files of each owner (D54)."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Mapping
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
    """The usage of each owner. Counts an owner's files at most every few seconds, and reads each of their records once.

    `usage` blocks. A file that is stored while its owner's files are counted counts from the next count on.
    """

    def __init__(self, files: FileStore) -> None:
        self._files = files
        self._sizes: dict[str, dict[str, int]] = {}
        self._counted_at: dict[str, float] = {}

    def usage(self, owner: str) -> FileUsage:
        if time.monotonic() - self._counted_at.get(owner, -math.inf) > COUNT_AGE_S:
            self._sizes[owner] = self._count(owner, dict(self._sizes.get(owner, {})))
            self._counted_at[owner] = time.monotonic()
        sizes = list(self._sizes[owner].values())
        return FileUsage(len(sizes), sum(sizes))

    def add(self, file_id: str, owner: str, size_bytes: int) -> None:
        """Count a file that this process has just stored."""
        self._sizes.setdefault(owner, {})[file_id] = size_bytes

    def discard(self, file_id: str, owner: str) -> None:
        """Stop counting a file that this process has just deleted."""
        self._sizes.get(owner, {}).pop(file_id, None)

    def _count(self, owner: str, known: Mapping[str, int]) -> dict[str, int]:
        ids = self._files.ids(owner, now=self._files.now())
        entries = ((file_id, known[file_id] if file_id in known else self._read(file_id)) for file_id in ids)
        return {file_id: size for file_id, size in entries if size is not None}

    def _read(self, file_id: str) -> int | None:
        try:
            return self._files.find(file_id, now=-math.inf).size_bytes
        except NotFound:
            return None  # it is being written, or was deleted meanwhile

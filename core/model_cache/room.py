"""Room in the models' cache: unused entries are deleted, the least recently used first, until a new entry fits."""

from __future__ import annotations

import shutil
import time

from penstock.errors import DiskFull
from penstock.model_cache.entries import LOOK_EVERY_S, Entries, Entry, to_delete
from penstock.words import size

FULL_HINT = "free some space, or set models_cache.dir to a larger disk; `penstock models fetch --list` lists what is there"
# Making room looks at the whole cache, so one process at a time does it.
_ROOM = "room"
_LIMIT_HINT = "raise models_cache.max_bytes, or free some of it with `penstock models fetch --prune`"


class CacheRoom:
    """The entries of a cache that may hold `max_bytes` together."""

    def __init__(self, entries: Entries, max_bytes: int) -> None:
        self._entries = entries
        self._max_bytes = max_bytes

    def begin(self, name: str, source: str, model: str, size_bytes: int) -> Entry:
        """The partial entry, which counts as large as it will be, after others have gone for it. Raises `DiskFull`."""
        if size_bytes > self._max_bytes:
            what = f"{source} has {size(size_bytes)}, and the models' cache may have {size(self._max_bytes)}"
            raise DiskFull(what, hint=_LIMIT_HINT)
        while True:
            with self._entries.exclusive(_ROOM) as is_ours:
                if is_ours:
                    self._make(name, source, size_bytes)
                    entry = self._entries.begin(name, source, model, size_bytes)
                    self._check_disk(entry)
                    return entry
            time.sleep(LOOK_EVERY_S)

    def _make(self, name: str, source: str, size_bytes: int) -> None:
        for entry in self._to_delete(name, size_bytes):
            if not self._to_delete(name, size_bytes):
                return
            with self._entries.exclusive(entry.name) as is_free:
                if is_free:
                    self._entries.delete(entry)
        if self._to_delete(name, size_bytes):
            what = f"{source} needs {size(size_bytes)}, and what is in use of the models' cache leaves less"
            raise DiskFull(f"{what} of its {size(self._max_bytes)}", hint=_LIMIT_HINT)

    def _to_delete(self, name: str, size_bytes: int) -> list[Entry]:
        return to_delete(self._entries.all(), size_bytes, self._max_bytes, keep=name)

    def _check_disk(self, entry: Entry) -> None:
        here = sum(path.stat().st_size for path in entry.folder.rglob("*") if path.is_file())
        free = shutil.disk_usage(entry.folder).free
        if entry.size_bytes - here > free:
            needed = f"{entry.source} needs {size(entry.size_bytes - here)} more"
            what = f"{needed}, and the disk of {entry.folder.parent} has {size(free)} free"
            raise DiskFull(what, hint=FULL_HINT)

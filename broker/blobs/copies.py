"""Copies of blobs that a process fetches for its children to read, in a folder that is deleted after the process."""

from __future__ import annotations

import fcntl
import os
import shutil
from itertools import count
from pathlib import Path
from threading import Lock

# D44: docs/design/store.md
_LOCK = "lock"


class Copies:
    """Paths for copies below `folder`. Safe to call from any thread.

    Each process has its own folder there, locked while the process lives. The folder of a killed process is unlocked, and the
    next process that needs a folder deletes it. A lock and not a pid marks the folder, because containers that share a disk
    may have equal pids.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mutex = Lock()
        self._numbers = count()
        self._own: Path | None = None

    def fresh(self, name: str) -> Path:
        """A new path for each copy, because two batches may read the same blob and end at different times."""
        with self._mutex:
            if self._own is None:
                self._own = self._opened()
            return self._own / f"{name}.{next(self._numbers)}"

    def _opened(self) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for other in self._folder.iterdir():
            if not other.name.startswith("."):
                _delete_if_left(other)
        own = os.urandom(8).hex()
        # The folder is locked before it has a name that other processes look for.
        young = self._folder / f".{own}"
        young.mkdir(mode=0o700)
        # The file stays open, and so locked, until the process ends.
        fcntl.flock(os.open(young / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), fcntl.LOCK_EX)
        return young.rename(self._folder / own)


def _delete_if_left(folder: Path) -> None:
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        # Another process is deleting it.
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        return
    finally:
        os.close(lock)

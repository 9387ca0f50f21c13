"""The cache's folder: one entry per model and revision, with a lock and a note beside its files.

<dir>/<entry>/entry.json, files...   whole: it came by a rename
<dir>/<entry>.partial/               being fetched, or cut short; the next fetch goes on there
<dir>/locks/<entry>                  exclusive while one process fetches or deletes, shared while processes use it
<dir>/known/<name of a source>       which entry a source was found to be, for a start without a network
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

_NOTE, _PARTIAL = "entry.json", ".partial"
# How often a process that waits for another process checks again.
LOOK_EVERY_S = 0.1
_PLAIN = re.compile(r"[^A-Za-z0-9.]+")


@dataclass(frozen=True, slots=True)
class Entry:
    """`source` is the resolved source (of a branch, the commit), `model` the path of its model file below `files`.

    `used_ns`: when a process last began to use it, by the clock of the file system.
    """

    folder: Path
    source: str
    model: str
    size_bytes: int
    used_ns: int = 0

    @property
    def is_whole(self) -> bool:
        return self.folder.suffix != _PARTIAL

    @property
    def name(self) -> str:
        return self.folder.name.removesuffix(_PARTIAL)

    @property
    def files(self) -> Path:
        return self.folder / "files"

    @property
    def path(self) -> Path:
        return self.files / self.model


def entry_name(source: str) -> str:
    """The folder's name for a resolved source: readable, and never the same for two sources."""
    readable = _PLAIN.sub("-", source.partition("#")[0].partition("://")[2])[:80].strip("-.")
    return f"{readable}-{hashlib.sha256(source.encode()).hexdigest()[:12]}"


class Entries:
    """The entries below `folder`, which is made when the first one is."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def all(self) -> list[Entry]:
        """Whole entries and partial ones."""
        if not self._folder.is_dir():
            return []
        entries = (self._read(path) for path in sorted(self._folder.iterdir()))
        return [entry for entry in entries if entry is not None]

    def whole(self, name: str) -> Entry | None:
        return self._read(self._folder / name)

    def begin(self, name: str, source: str, model: str, size_bytes: int) -> Entry:
        """The partial entry: what is left of an earlier try, or a new one."""
        entry = Entry(self._folder / f"{name}{_PARTIAL}", source, model, size_bytes)
        entry.files.mkdir(parents=True, exist_ok=True)
        self._write(entry.folder / _NOTE, {**asdict(entry), "folder": "", "used_ns": 0})
        return entry

    def complete(self, partial: Entry) -> Entry:
        """Rename the whole entry into its place, so that others see all of it or nothing."""
        whole = self._folder / partial.name
        _sync(partial.folder)
        partial.folder.rename(whole)
        _sync(self._folder)
        entry = self._read(whole)
        assert entry is not None
        return entry

    def touch(self, entry: Entry) -> None:
        os.utime(entry.folder / _NOTE)

    def drop_partial(self, name: str) -> None:
        shutil.rmtree(self._folder / f"{name}{_PARTIAL}", ignore_errors=True)

    def delete(self, entry: Entry) -> None:
        """The note goes last, so that a deletion that is cut short is still an entry. Its lock must be held."""
        doomed = entry.folder
        if entry.is_whole:
            doomed = entry.folder.with_name(entry.name + _PARTIAL)
            shutil.rmtree(doomed, ignore_errors=True)
            entry.folder.rename(doomed)
        shutil.rmtree(doomed / entry.files.name, ignore_errors=True)
        shutil.rmtree(doomed)

    # Which entry a source was last found to be.

    def remember(self, source: str, entry: Entry) -> None:
        self._write(self._known(source), {"source": source, "entry": entry.name})

    def remembered(self, source: str) -> Entry | None:
        with suppress(OSError, ValueError, KeyError, TypeError):
            return self.whole(str(json.loads(self._known(source).read_text("utf-8"))["entry"]))
        return None

    def _known(self, source: str) -> Path:
        return self._folder / "known" / entry_name(source)

    def _read(self, folder: Path) -> Entry | None:
        note = folder / _NOTE
        try:
            entry = json.loads(note.read_text("utf-8"))
            return Entry(folder, str(entry["source"]), str(entry["model"]), int(entry["size_bytes"]), note.stat().st_mtime_ns)
        except (OSError, ValueError, KeyError, TypeError):
            # There is no entry, or it vanished meanwhile.
            return None

    def _write(self, path: Path, value: object) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"{path.name}.{os.getpid()}.new")
        new.write_text(json.dumps(value), "utf-8")
        new.replace(path)

    # Locks. The kernel frees a lock with the process that holds it, however that ends.

    def lock(self, name: str, *, shared: bool = False) -> Lock | None:
        """None if another process holds a conflicting lock."""
        path = self._folder / "locks" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return Lock(fd)

    def held(self, name: str, fill: Callable[[], None], on_wait: Callable[[], None] = lambda: None) -> tuple[Entry, Lock]:
        """The whole entry, which stays while the lock is held. `fill` makes it, in one process at a time; the others wait, and
        call `on_wait` again and again.
        """
        while True:
            entry = self.whole(name)
            lock = self.lock(name, shared=True) if entry else None
            if entry and lock:
                # It may have been deleted before the lock was taken.
                if self.whole(name):
                    self.touch(entry)
                    return entry, lock
                lock.close()
            with self.exclusive(name) as is_ours:
                if is_ours and self.whole(name) is None:
                    fill()
            if not is_ours:
                on_wait()
                time.sleep(LOOK_EVERY_S)

    @contextmanager
    def exclusive(self, name: str) -> Iterator[bool]:
        """Whether the lock could be had; within the block it is held."""
        lock = self.lock(name)
        try:
            yield lock is not None
        finally:
            if lock:
                lock.close()


class Lock:
    """A lock that is held until `close`, or until this process ends."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def to_delete(entries: Sequence[Entry], needed_bytes: int, limit_bytes: int, *, keep: str) -> list[Entry]:
    """Entries in the order of their deletion, the least recently used first, until `needed_bytes` more fit. Pure.

    More may have to go if some are in use, so the list goes on: the caller stops when enough has gone.
    """
    used = sum(entry.size_bytes for entry in entries if entry.name != keep)
    if used + needed_bytes <= limit_bytes:
        return []
    return sorted((entry for entry in entries if entry.name != keep), key=lambda entry: entry.used_ns)


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

"""A record of what the driver saw, kept outside the system: every submit and answer, in order of arrival, never changed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class View:
    """What a reader saw of a job. `digest` (of the output) and `finished_at` (Unix seconds) are set only at the end."""

    status: str
    final: bool
    digest: str = ""
    error: str = ""
    finished_at: float = 0.0

    @property
    def end(self) -> tuple[str, str, str] | None:
        return (self.status, self.digest, self.error) if self.final else None


@dataclass(slots=True)
class Entry:
    """One unit of work as the driver knows it. `job` is empty until the work is accepted; `hopes` is how it should end."""

    key: str
    digest: str
    hopes: str = "succeeded"
    job: str = ""
    accepted_at: float = 0.0
    answers: list[tuple[float, int]] = field(default_factory=list)
    views: list[tuple[float, View]] = field(default_factory=list)
    # One reader at a time: of two answers under way, the older may arrive last and would look like a view taken back.
    reading: threading.Lock = field(default_factory=threading.Lock)

    @property
    def last(self) -> View | None:
        return self.views[-1][1] if self.views else None

    @property
    def ended(self) -> bool:
        return self.last is not None and self.last.final

    def ends(self) -> set[tuple[str, str, str]]:
        """Return every different final view that a reader saw."""
        return {view.end for _, view in self.views if view.end is not None}

    def retracted(self) -> bool:
        """Return whether a different view followed a final one."""
        finals = [view.final for _, view in self.views]
        return len(self.ends()) > 1 or (True in finals and not all(finals[finals.index(True) :]))


class Ledger:
    """Many threads may use one ledger. The file is the proof; the entries are for the checker."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._lock = threading.Lock()
        self.entries: dict[str, Entry] = {}
        self.unexpected: list[str] = []

    def close(self) -> None:
        self._file.close()

    def open_entry(self, key: str, digest: str, hopes: str) -> Entry:
        with self._lock:
            return self.entries.setdefault(key, Entry(key, digest, hopes))

    def answered(self, entry: Entry, status: int, job: str) -> None:
        """Note the answer to a submit (`status` 0: the connection broke first)."""
        now = time.time()
        with self._lock:
            entry.answers.append((now, status))
            if job and not entry.job:
                entry.job, entry.accepted_at = job, now
            elif job and job != entry.job:
                self.unexpected.append(f"key {entry.key} was answered with {entry.job}, then with {job}")
            self._write(op="submit", key=entry.key, digest=entry.digest, status=status, job=job, at=now)

    def saw(self, entry: Entry, view: View) -> None:
        now = time.time()
        with self._lock:
            entry.views.append((now, view))
            self._write(op="view", key=entry.key, status=view.status, digest=view.digest, error=view.error, at=now)

    def complain(self, what: str) -> None:
        """Note an answer that no client should get."""
        with self._lock:
            self.unexpected.append(what)
            self._write(op="unexpected", what=what, at=time.time())

    def forget(self, entries: Iterable[Entry]) -> None:
        """Drop entries that the store has lost, in a scenario where the promise allows that."""
        with self._lock:
            for entry in entries:
                del self.entries[entry.key]

    def accepted(self) -> list[Entry]:
        with self._lock:
            return [entry for entry in self.entries.values() if entry.job]

    def waiting(self) -> list[Entry]:
        """Return the accepted entries that have not yet been seen at their end."""
        return [entry for entry in self.accepted() if not entry.ended]

    def _write(self, **fields: Any) -> None:
        self._file.write(json.dumps(fields) + "\n")

"""The load: the driver submits under idempotency keys until a job is accepted, polls until it ends, and notes every answer."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from tests.faults.echo import digest
from tests.faults.face import Answer, Face
from tests.faults.ledger import Entry, Ledger

_AGAIN_S = 0.1
_PAUSE_S = 0.02


def order(do: str = "echo", **fields: Any) -> dict[str, Any]:
    """Return an input for the echo model that differs from every other input."""
    return {"nonce": uuid.uuid4().hex, "do": do, **fields}


class Driver:
    """One client of one system. A job's idempotency key is the nonce of its input, which the execution log records too."""

    def __init__(self, face: Face, ledger: Ledger) -> None:
        self.face = face
        self.ledger = ledger
        self.also_expected: set[int] = set()
        self._stop = threading.Event()
        self._turns = itertools.count()

    def submit(self, work: dict[str, Any], *, hopes: str = "succeeded", within_s: float = 60.0) -> Entry:
        """Submit until accepted or until `within_s` is over, always under the same key, so that a lost answer costs nothing."""
        entry = self.ledger.open_entry(work["nonce"], digest(work), hopes)
        give_up_at = time.monotonic() + within_s
        while not self.submit_once(entry, work) and time.monotonic() < give_up_at and not self._stop.is_set():
            time.sleep(_AGAIN_S)
        return entry

    def submit_once(self, entry: Entry, work: dict[str, Any]) -> bool:
        """Submit once, and return whether the job was accepted."""
        answer, job = self.face.submit(entry.key, work)
        self._check(answer, f"submit {entry.key}")
        self.ledger.answered(entry, answer.status, job)
        return bool(job)

    def submit_all(self, works: Sequence[dict[str, Any]], *, threads: int = 8, within_s: float = 60.0) -> list[Entry]:
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(lambda work: self.submit(work, within_s=within_s), works))

    def look(self, entry: Entry) -> None:
        with entry.reading:
            answer, view = self.face.look(entry.job)
            self._check(answer, f"look {entry.job}")
            if view is not None:
                self.ledger.saw(entry, view)

    def await_ends(self, entries: Sequence[Entry], *, within_s: float) -> bool:
        """Poll until all jobs have ended; return False if a job has not ended in time, because it is stuck or lost."""
        since = time.monotonic()
        while waiting := [entry for entry in entries if entry.job and not entry.ended]:
            waited_s = time.monotonic() - since
            if waited_s > within_s:
                return False
            for entry in waiting[:200]:
                self.look(entry)
            time.sleep(max(_PAUSE_S, waited_s / 50))
        return True

    @contextmanager
    def watching(self, *, per_second: float = 100.0) -> Iterator[None]:
        """Poll accepted jobs from a thread, including those that ended, because a final view must never change."""
        watcher = threading.Thread(target=self._watch, args=(1.0 / per_second,), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            self._stop.set()
            watcher.join(30.0)
            self._stop.clear()

    def _watch(self, pause_s: float) -> None:
        while not self._stop.wait(pause_s):
            self.poll()

    def poll(self) -> None:
        """Look at one accepted job; now and then it is one that has ended."""
        turn = next(self._turns)
        pool = self.ledger.waiting() if turn % 4 else self.ledger.accepted()
        if pool:
            self.look(pool[turn * 31 % len(pool)])

    def look_again(self) -> None:
        """Look once more at every accepted job, after everything has healed."""
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(self.look, self.ledger.accepted()))

    def _check(self, answer: Answer, what: str) -> None:
        if not answer.expected and answer.status not in self.also_expected:
            self.ledger.complain(f"{what}: {answer.status} {answer.body[:200]!r}")

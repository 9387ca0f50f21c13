"""Blobs that the end of a job made needless: deleted once that end cannot be undone any more."""

# D141: docs/design/leases-and-losses.md

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from penstock.broker.blobs.files import BlobStore

NEEDLESS_KEPT = "needless_blobs_kept"
# How often a worker asks whether ends are safe. A younger end is not asked about: it is what a power cut or a failover undoes,
# also of a store that cannot say what is on its disk.
EVERY_S = 2.0
# What waits beyond this is deleted with the records of its jobs.
MOST_WAITING = 100_000
_AT_ONCE = 5_000


class _Needless(NamedTuple):
    added_at: float
    queue: str
    serial: str
    name: str


class EndStore(Protocol):
    """The part of the store that is asked."""

    def safe_ends(self, queue: str, serials: Sequence[str], *, replicas: int) -> set[str] | None: ...


class NeedlessBlobs:
    """Any thread may `add`, one thread calls `run_once`. Moments are monotonic.

    `at_once`: a store that answers has its answer on its disk, so that the blobs go at once. `replicas`: how many must have an
    end on their disks too. What is still here when the worker ends is deleted with the records of the jobs.
    """

    def __init__(self, blobs: BlobStore, store: EndStore, *, replicas: int = 0, at_once: bool = False) -> None:
        self._blobs, self._store = blobs, store
        self._replicas, self._is_at_once = replicas, at_once
        self._waiting: deque[_Needless] = deque(maxlen=MOST_WAITING)

    def add(self, queue: str, blobs: Iterable[tuple[str, str]]) -> None:
        """`blobs`: the serial of each job of the queue that the store says has ended, and the name of a blob."""
        if self._is_at_once:
            self._blobs.delete_all([name for _, name in blobs])
        else:
            now = time.monotonic()
            self._waiting.extend(_Needless(now, queue, *blob) for blob in blobs)

    def run_once(self, now: float) -> float | None:
        """Delete what may go; returns when to be called again, if that is soon. Raises `StoreUnavailable`."""
        due: dict[str, list[_Needless]] = {}
        for _ in range(_AT_ONCE):
            if not self._waiting or self._waiting[0].added_at > now - EVERY_S:
                break
            one = self._waiting.popleft()
            due.setdefault(one.queue, []).append(one)
        was_full = sum(map(len, due.values())) == _AT_ONCE
        try:
            for queue in list(due):
                if self._freed(queue, due[queue]):
                    del due[queue]
        finally:
            self._waiting.extendleft(one for entries in due.values() for one in reversed(entries))
        return 0.01 if was_full and not due else None

    def _freed(self, queue: str, entries: Sequence[_Needless]) -> bool:
        """False if they have to wait. A job whose end was undone keeps its blobs."""
        safe = self._store.safe_ends(queue, [one.serial for one in entries], replicas=self._replicas)
        if safe is not None:
            self._blobs.delete_all([one.name for one in entries if one.serial in safe])
        return safe is not None

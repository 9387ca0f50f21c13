"""Blobs that the end of a job made needless: deleted once that end cannot be undone any more."""

# D141: docs/design/leases-and-losses.md

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from penstock.broker.blobs.files import BlobStore
from penstock.errors import StoreUnavailable

NEEDLESS_KEPT = "needless_blobs_kept"
# How often a worker asks whether ends are safe. A younger end is not asked about: it is what a power cut or a failover undoes,
# also of a store that cannot say what is on its disk.
EVERY_S = 2.0
# What waits beyond this is deleted with the records of its jobs.
MOST_WAITING = 100_000
_AT_ONCE = 10_000


class _Needless(NamedTuple):
    added_at: float
    queue: str
    serial: str
    name: str


class EndStore(Protocol):
    """The part of the store that is asked."""

    def safe_ends(self, queue: str, serials: Sequence[str], *, replicas: int) -> set[str] | None: ...


class NeedlessBlobs:
    """Any thread may `add`, one thread calls `run_once`. Moments are monotonic. What is still here when the worker ends is
    deleted with the records of the jobs.

    `replicas`: how many must have an end on their disks too; None: an end is safe when the store has answered it.
    """

    def __init__(self, blobs: BlobStore, store: EndStore, *, replicas: int | None) -> None:
        self._blobs, self._store, self._replicas = blobs, store, replicas
        self._waiting: deque[_Needless] = deque(maxlen=MOST_WAITING)

    def add(self, queue: str, blobs: Iterable[tuple[str, str]]) -> None:
        """`blobs`: the serial of each job of the queue that the store says has ended, and the name of a blob."""
        if self._replicas is None:
            self._blobs.delete_all([name for _, name in blobs])
        else:
            now = time.monotonic()
            self._waiting.extend(_Needless(now, queue, *blob) for blob in blobs)

    def run_once(self, now: float) -> None:
        """Delete what may go. Raises `StoreUnavailable`."""
        due: dict[str, list[_Needless]] = {}
        for _ in range(min(_AT_ONCE, len(self._waiting))):
            if self._waiting[0].added_at > now - EVERY_S:
                break
            one = self._waiting.popleft()
            due.setdefault(one.queue, []).append(one)
        failure: StoreUnavailable | None = None
        for queue, entries in due.items():
            safe = None
            try:
                safe = self._store.safe_ends(queue, [one.serial for one in entries], replicas=self._replicas or 0)
            except StoreUnavailable as away:
                failure = away  # the queues of another node are looked at all the same
            if safe is None:
                self._waiting.extend(entries)
            else:
                self._blobs.delete_all([one.name for one in entries if one.serial in safe])
        if failure is not None:
            raise failure

"""The queue before the device, where online batches go first (D39)."""

from __future__ import annotations

import time
from collections import deque
from queue import Empty, SimpleQueue
from threading import Semaphore
from typing import Generic, TypeVar

T = TypeVar("T")

# After this many online batches in a row, one micro-batch of a shard has its turn.
ONLINE_IN_A_ROW = 8
# An online batch that was claimed when the last one ended is on its way. A micro-batch waits for it, up to this long and up to
# this share of the last one's run: otherwise a micro-batch would run between any two online batches.
_LINGER_MOST_S = 0.002
_LINGER_SHARE = 0.25
# A micro-batch waits only if at least half of the recent online batches were followed that closely: otherwise the device would
# idle for nothing.
_FOLLOWED_LEAST = 0.5
_SMOOTHING = 0.1


class DeviceTurns:
    """Whose turn it is. Pure."""

    def __init__(self) -> None:
        self._passed_over = 0

    def is_bulk_next(self, *, online: bool, bulk: bool) -> bool:
        """Whether a micro-batch goes next. `online`, `bulk`: whether a batch of that kind waits."""
        if not (online and bulk):
            self._passed_over = 0
            return bulk
        self._passed_over += 1
        if self._passed_over <= ONLINE_IN_A_ROW:
            return False
        self._passed_over = 0
        return True


class DeviceQueue(Generic[T]):
    """One thread puts online batches, another one micro-batches of shards, and a third takes both.

    At most one micro-batch waits: the sizes of further ones would be chosen earlier than necessary.
    """

    def __init__(self) -> None:
        self._online: deque[T] = deque()
        self._bulk: deque[T] = deque()
        # One token per batch of either kind: a queue in C costs a fraction of a condition variable.
        self._tokens: SimpleQueue[None] = SimpleQueue()
        self._room = Semaphore(1)
        self._turns = DeviceTurns()
        self._linger_until = float("-inf")
        self._followed = 1.0
        self._just_ended = False

    def put(self, batch: T) -> None:
        if self._just_ended:
            self._just_ended = False
            self._note_follower(closely=time.monotonic() <= self._linger_until)
        self._online.append(batch)
        self._tokens.put(None)

    def await_room(self) -> None:
        """Wait until a micro-batch may be prepared; then `put_bulk` it."""
        self._room.acquire()

    def put_bulk(self, batch: T) -> None:
        self._bulk.append(batch)
        self._tokens.put(None)

    def take(self) -> T:
        """Wait for the next batch."""
        self._tokens.get()
        self._linger()
        if self._turns.is_bulk_next(online=bool(self._online), bulk=bool(self._bulk)):
            self._room.release()
            return self._bulk.popleft()
        return self._online.popleft()

    @property
    def has_work(self) -> bool:
        """Whether the next `take` has something to return."""
        return not self._tokens.empty()

    def on_online_ended(self, at: float, *, run_s: float) -> None:
        """An online batch has run. Called by the thread that takes."""
        self._linger_until = at + min(_LINGER_MOST_S, _LINGER_SHARE * run_s)
        if self._online:
            self._note_follower(closely=True)
        else:
            self._just_ended = True

    def _note_follower(self, *, closely: bool) -> None:
        self._followed += _SMOOTHING * (closely - self._followed)

    def _linger(self) -> None:
        """Give the batch that follows the one just run time to arrive. Its token is put back for the `take` that returns it."""
        rest_s = self._linger_until - time.monotonic()
        if self._online or rest_s <= 0.0 or self._followed < _FOLLOWED_LEAST:
            return
        try:
            self._tokens.get(timeout=rest_s)
        except Empty:
            return
        self._tokens.put(None)

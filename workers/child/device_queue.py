"""What waits for a child's device: online batches first, and a small share for the micro-batches of shards."""

from __future__ import annotations

import time
from collections import deque
from queue import Empty, SimpleQueue
from threading import Semaphore
from typing import Generic, TypeVar

T = TypeVar("T")

# After so many online batches in a row one micro-batch of a shard has its turn.
ONLINE_IN_A_ROW = 8
# An online batch that was claimed as the last one ended is on its way: so long, and this share of that one's run, a micro-batch
# lets it go first. Else one would slip in between any two of them.
_LINGER_MOST_S = 0.002
_LINGER_SHARE = 0.25
# It waits only where of late at least half of the batches were followed so closely: else the device idles for nobody.
_FOLLOWED_LEAST = 0.5
_SMOOTHING = 0.1


class DeviceTurns:
    """Whose turn it is. Pure."""

    def __init__(self) -> None:
        self._passed_over = 0

    def bulk_next(self, *, online: bool, bulk: bool) -> bool:
        """Whether a waiting micro-batch goes next, if one waits at all."""
        if not (online and bulk):
            self._passed_over = 0
            return bulk
        self._passed_over += 1
        if self._passed_over <= ONLINE_IN_A_ROW:
            return False
        self._passed_over = 0
        return True


class DeviceQueue(Generic[T]):
    """Filled by one thread with online batches and by another with micro-batches of shards, emptied by a third.

    At most one micro-batch waits: more would only be chosen earlier than need be.
    """

    def __init__(self) -> None:
        self._online: deque[T] = deque()
        self._bulk: deque[T] = deque()
        # One token per batch of either kind: a queue in C is several times cheaper than a condition.
        self._tokens: SimpleQueue[None] = SimpleQueue()
        self._room = Semaphore(1)
        self._turns = DeviceTurns()
        self._linger_until = float("-inf")
        self._followed = 1.0
        self._just_ended = False

    def put(self, batch: T) -> None:
        if self._just_ended:
            self._just_ended = False
            self._note(closely=time.monotonic() <= self._linger_until)
        self._online.append(batch)
        self._tokens.put(None)

    def await_room(self) -> None:
        """Until a micro-batch may be prepared; then `put_bulk` it."""
        self._room.acquire()

    def put_bulk(self, batch: T) -> None:
        self._bulk.append(batch)
        self._tokens.put(None)

    def take(self) -> T:
        """The next one; waits for it."""
        self._tokens.get()
        self._linger()
        if self._turns.bulk_next(online=bool(self._online), bulk=bool(self._bulk)):
            self._room.release()
            return self._bulk.popleft()
        return self._online.popleft()

    def ended(self, at: float, *, run_s: float) -> None:
        """An online batch has run; told by the thread that takes."""
        self._linger_until = at + min(_LINGER_MOST_S, _LINGER_SHARE * run_s)
        if self._online:
            self._note(closely=True)
        else:
            self._just_ended = True

    def _note(self, *, closely: bool) -> None:
        self._followed += _SMOOTHING * (closely - self._followed)

    def _linger(self) -> None:
        """Give the batch that follows the one just run the time to arrive; a token too many goes back."""
        rest_s = self._linger_until - time.monotonic()
        if self._online or rest_s <= 0.0 or self._followed < _FOLLOWED_LEAST:
            return
        try:
            self._tokens.get(timeout=rest_s)
        except Empty:
            return
        self._tokens.put(None)

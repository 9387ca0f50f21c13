"""Receives the ends of shards: one channel of pushes, read without a thread or an event loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import redis
from redis.client import PubSub

from penstock.backoff import Backoff, BackoffCounter
from penstock.broker.records import Push
from penstock.broker.store.connection import connect
from penstock.broker.store.links.refusals import store_error
from penstock.broker.store.replies import parse_pushes
from penstock.errors import StoreUnavailable
from penstock.job import new_serial

# The longest delay that a lost push causes.
RECHECK_S = 2.0
_RECONNECT = Backoff(0.05, 1.0)


class PushListener:
    """Not thread-safe. Pushes may be lost; `recheck_due` says when to read the records instead."""

    def __init__(self, url: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._url, self._clock = url, clock
        self.channel = f"ps:gateway:{new_serial()}"
        self._subscription: PubSub | None = None
        self._failures = BackoffCounter(_RECONNECT)
        self._recheck_at = 0.0

    def receive(self, timeout_s: float) -> list[Push]:
        """The pushes since the last call, or the first that comes; [] after `timeout_s`, and while Redis is away."""
        try:
            return list(self._messages(timeout_s))
        except (StoreUnavailable, redis.RedisError, OSError):
            self.close()
            time.sleep(min(timeout_s, self._failures.count_failure()))
            return []

    def listen(self) -> PubSub:
        """The subscription: shards that end from now on are pushed to it, so call this before the first submit.

        Raises `StoreUnavailable`.
        """
        if self._subscription is None:
            subscription = connect(self._url, name="penstock-run").pubsub()
            try:
                subscription.subscribe(self.channel)
            except (redis.RedisError, OSError) as error:
                subscription.close()
                raise store_error(error) from error
            self._subscription, self._recheck_at = subscription, 0.0
            self._failures.reset()
        return self._subscription

    def _messages(self, timeout_s: float) -> Iterator[Push]:
        message = self.listen().get_message(timeout=timeout_s)
        while message is not None:
            if message["type"] == "message":
                yield from parse_pushes(message["data"])
            message = self.listen().get_message(timeout=0.0)

    def recheck_due(self) -> bool:
        """True right after a (re)connect and every few seconds, because a push may have been lost."""
        now = self._clock()
        due = now >= self._recheck_at
        if due:
            self._recheck_at = now + RECHECK_S
        return due

    def close(self) -> None:
        if self._subscription is not None:
            self._subscription.close()
            self._subscription = None

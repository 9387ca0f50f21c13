"""What the store publishes: wake-ups for slots, and pushed ends of jobs for the requests of a gateway process that wait.

A wake-up says that a model has work and carries no job; the subscription to wake-ups shows that the slot is present. A push is
a hint with the result in it. Both may be lost, because pub/sub survives no reconnect: then a slot asks, and a gateway reads
the record.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import redis
import redis.asyncio
import structlog

from penstock.backoff import Backoff, BackoffCounter
from penstock.broker.records import Push
from penstock.broker.store.connection import connect, connect_async, store_error
from penstock.broker.store.encoding import parse_pushes, prefix
from penstock.errors import StoreUnavailable
from penstock.job import JobId


@dataclass(frozen=True, slots=True)
class Wake:
    """The model has work."""


@dataclass(frozen=True, slots=True)
class CancelRequested:
    id: JobId


class WakeUps:
    """One subscription for one slot. Wait for `fileno()` to become readable, then `read()`.

    Listens on the model's wake-up channel and on the slot's own; if the latter has no subscriber, a sweeper takes the slot's
    leases back early. Raises `StoreUnavailable` when the link breaks: close it and open a new one.
    """

    def __init__(self, url: str, model: str, worker: str) -> None:
        self._model, self._worker = model, worker
        # No read time-out: the slot's selector decides how long to wait.
        self._redis = connect(url, name=f"penstock-wake-{worker}", read_timeout_s=None)
        self._pubsub = self._redis.pubsub()

    def open(self) -> WakeUps:
        """Subscribe; both subscriptions stand when this returns."""
        try:
            self._pubsub.subscribe(f"{prefix(self._model)}wake", f"ps:worker:{self._worker}")
            for _ in range(2):
                self._pubsub.get_message(timeout=5.0)
        except (redis.RedisError, OSError) as error:
            raise store_error(error) from error
        return self

    def fileno(self) -> int:
        connection = self._pubsub.connection
        sock = connection._sock if connection else None
        if sock is None:
            raise store_error(redis.ConnectionError("the wake-up link is closed"))
        return int(sock.fileno())

    def read(self) -> list[Wake | CancelRequested]:
        """All that has arrived, without waiting."""
        found: list[Wake | CancelRequested] = []
        try:
            while (message := self._pubsub.get_message(timeout=0.0)) is not None:
                if message["type"] == "message":
                    found.append(self._parse(message["data"]))
        except (redis.RedisError, OSError) as error:
            raise store_error(error) from error
        return found

    def _parse(self, data: bytes) -> Wake | CancelRequested:
        if data[:1] == b"c":
            return CancelRequested(JobId(data[1:].decode(), self._model))
        return Wake()

    def close(self) -> None:
        self._pubsub.close()
        self._redis.close()


# D6: docs/design/store.md
log = structlog.get_logger(__name__)
RECHECK_S = 5.0
RECHECK_JOBS = 128  # in one call, which holds the store for some tens of microseconds
_RECONNECT = Backoff(0.05, 2.0)


class Waiter:
    """The changes of one job or of several in the order in which they are pushed to this process."""

    def __init__(self) -> None:
        self._arrived: deque[Push] = deque()
        self._future: asyncio.Future[None] | None = None

    def put(self, push: Push) -> None:
        self._arrived.append(push)
        self.wake()

    def wake(self) -> None:
        """Have `next` return now, also if no change has arrived."""
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def next(self, timeout_s: float) -> Push | None:
        """The next change; None if `timeout_s` passes or `wake` is called before it arrives."""
        if not self._arrived:
            loop = asyncio.get_running_loop()
            self._future = loop.create_future()
            timer = loop.call_later(timeout_s, self.wake)
            try:
                await self._future
            finally:
                timer.cancel()
                self._future = None
        return self._arrived.popleft() if self._arrived else None


class PushRouter:
    """Listens on one channel and hands each push to the waiters of its job.

    `ended` says which of some jobs of one model have ended; `recheck` gives the end of one of them.
    """

    def __init__(
        self,
        url: str,
        channel: str,
        *,
        ended: Callable[[Sequence[JobId]], Awaitable[list[JobId]]],
        recheck: Callable[[JobId], Awaitable[Push | None]],
    ) -> None:
        self._url, self._channel, self._ended, self._recheck = url, channel, ended, recheck
        self._waiters: dict[JobId, set[Waiter]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    @contextmanager
    def waiter(self, *jobs: JobId) -> Iterator[Waiter]:
        """One waiter for the changes of all these jobs."""
        waiter = Waiter()
        for job in jobs:
            self._waiters.setdefault(job, set()).add(waiter)
        try:
            yield waiter
        finally:
            for job in jobs:
                others = self._waiters[job]
                others.discard(waiter)
                if not others:
                    del self._waiters[job]

    def wake_all(self) -> None:
        """Have all waiters decide again whether to go on waiting."""
        for waiters in self._waiters.values():
            for waiter in waiters:
                waiter.wake()

    async def start(self) -> None:
        """Listen; returns once the subscription stands, or after 2 s. Attempts to subscribe go on in the background."""
        subscribed = asyncio.Event()
        self._tasks = [asyncio.create_task(self._listen(subscribed)), asyncio.create_task(self._recheck_slowly())]
        with suppress(TimeoutError):
            await asyncio.wait_for(subscribed.wait(), 2.0)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _listen(self, subscribed: asyncio.Event) -> None:
        failures = BackoffCounter(_RECONNECT)

        def on_subscribed() -> None:
            subscribed.set()
            failures.reset()

        while True:
            try:
                await self._listen_once(on_subscribed)
            except (redis.RedisError, OSError) as error:
                pause_s = failures.count_failure()
                log.warning("push_link_lost", error=str(store_error(error)), retry_in_s=pause_s)
                await asyncio.sleep(pause_s)

    async def _listen_once(self, on_subscribed: Callable[[], None]) -> None:
        """Deliver pushes over one connection; raises once that connection is lost."""
        client = connect_async(self._url, name="penstock-pushes", read_timeout_s=None)
        try:
            async with client.pubsub() as pubsub:
                await pubsub.subscribe(self._channel)
                on_subscribed()
                await self._recheck_all()
                await self._receive(pubsub)
        finally:
            await client.aclose()

    async def _receive(self, pubsub: redis.asyncio.client.PubSub) -> None:
        while True:
            message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=None)
            if message is not None:
                for push in parse_pushes(message["data"]):
                    self._deliver(push)

    def _deliver(self, push: Push) -> None:
        for waiter in self._waiters.get(push.id, ()):
            waiter.put(push)

    async def _recheck_slowly(self) -> None:
        while True:
            waited = set(self._waiters)
            await asyncio.sleep(RECHECK_S)
            await self._recheck_all(waited)

    async def _recheck_all(self, jobs: set[JobId] | None = None) -> None:
        """Look up jobs whose push may have been lost: those in `jobs`, or all that have a waiter."""
        waited: dict[str, list[JobId]] = {}
        for job in self._waiters:
            if jobs is None or job in jobs:
                waited.setdefault(job.model, []).append(job)
        try:
            for group in waited.values():
                for first in range(0, len(group), RECHECK_JOBS):
                    await self._recheck_some(group[first : first + RECHECK_JOBS])
        except StoreUnavailable:
            return  # the link is down: the reconnect looks them all up

    async def _recheck_some(self, jobs: Sequence[JobId]) -> None:
        for job in await self._ended(jobs):
            push = await self._recheck(job)
            if push is not None:
                self._deliver(push)

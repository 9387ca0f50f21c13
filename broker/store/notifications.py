"""The changes of jobs that the store pushes to a gateway process, for its waiting requests.

A push is a hint with the result in it, and may be lost, as pub/sub survives no reconnect: a gateway then reads the record.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import cast

import redis
import redis.asyncio
import structlog

from penstock.backoff import Backoff, BackoffCounter
from penstock.broker.records import Push
from penstock.broker.store.connection import RedisConnection, connect_async
from penstock.broker.store.links.refusals import store_error
from penstock.broker.store.replies import parse_pushes
from penstock.errors import StoreUnavailable
from penstock.job import JobId, JobState

# D6: docs/design/store.md
log = structlog.get_logger(__name__)
RECHECK_S = 5.0
RECHECK_JOBS = 128  # in one call, which holds the store for some tens of microseconds
_RECONNECT = Backoff(0.05, 2.0)


class Waiter:
    """The last change of each of some jobs, in the order in which they are pushed to this process."""

    def __init__(self) -> None:
        self._arrived: dict[JobId, Push] = {}
        self._future: asyncio.Future[None] | None = None

    def put(self, push: Push) -> None:
        # Only the last change of a job matters. A job that reports has many changes, which must not pile up.
        before = self._arrived.pop(push.id, None)
        self._arrived[push.id] = push if before is None else before.joined(push)
        self.wake()

    def wake(self) -> None:
        """Make `next` return now, even if no change has arrived."""
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
        return self._arrived.pop(next(iter(self._arrived))) if self._arrived else None

    async def next_end(self, timeout_s: float, *, stop: Callable[[], bool]) -> Push | None:
        """The next end of a job. None once `timeout_s` has passed or `stop` is true, which is checked at each waking (D6)."""
        until = time.monotonic() + timeout_s
        while (left_s := until - time.monotonic()) > 0 and not stop():
            push = await self.next(left_s)
            if push is not None and push.state.final:
                return push
        return None

    async def next_change(self, timeout_s: float, *, stop: Callable[[], bool], ignoring: JobState | None = None) -> Push | None:
        """The next change of a job, other than one that leaves it in the state `ignoring`; None as `next_end` has it.

        Chunks of its stream are no change of a job.
        """
        until = time.monotonic() + timeout_s
        while (left_s := until - time.monotonic()) > 0 and not stop():
            push = await self.next(left_s)
            if push is not None and push.state is not ignoring and push.stream is None:
                return push
        return None


class PushRouter:
    """Listens on one channel and hands each push to the waiters of its job.

    `ended` says which of some jobs of one queue have ended; `recheck` gives the end of one of them.
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
        connection = cast("RedisConnection", pubsub.connection)
        while True:
            # `get_message` would take four times as much of the event loop's time.
            kind, _, data = await connection.read_response(timeout=math.inf)
            if kind == b"message":
                for push in parse_pushes(data):
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
                waited.setdefault(job.queue, []).append(job)
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

"""What happens to one job, as events in order: its status, its progress, the chunks that it yields, and its end (D72)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import chain, islice

from penstock.broker.records import Followed
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.notifications import Waiter
from penstock.gateway.jobs.events.told import ReaderNews, ToldEvent
from penstock.job import JobId

# Chunks in one reply, which holds the store for some tens of microseconds.
_PART = 256
# Events that are sent together. They may be large, and a slow reader keeps them in memory.
_GROUP = 16


class JobFollower:
    """Follows jobs for readers. A slow reader causes no reads: each step begins when the one before has been sent.

    `heartbeat_s`: the longest silence in a response.
    """

    def __init__(self, store: AsyncStore, *, heartbeat_s: float) -> None:
        self._store = store
        self._heartbeat_s = heartbeat_s

    async def events(
        self, job: JobId, waiter: Waiter, last_event_id: str | None, *, stop: Callable[[], bool], with_output: bool = False
    ) -> AsyncIterator[list[ToldEvent]]:
        """The events after that one, in groups, up to `end` or until `stop` is true.

        An empty group after each silence of `heartbeat_s`. `with_output`: the end has the output where it can.
        """
        told = ReaderNews(last_event_id)
        record = await self._store.watch(job, every_change=True)
        if record is None:
            return
        told.is_reset(record)
        # A job that was never claimed has yielded nothing.
        followed = await self._look(job, told, with_output) if record.tries else Followed(record)
        while followed is not None and not stop():
            for group in _groups(chain(told.changes(followed.job), told.chunks(followed.stream))):
                yield group
            if len(followed.stream.chunks) < _PART:
                if followed.job.state.final:
                    yield list(told.end(followed, with_output=with_output))
                    return
                async for group in self._pushed(waiter, told, stop):
                    yield group
            followed = await self._look(job, told, with_output)

    async def _look(self, job: JobId, told: ReaderNews, with_output: bool) -> Followed | None:
        followed = await self._follow(job, told, with_output)
        # The store lost changes that this reader saw: start over.
        return await self._follow(job, told, with_output) if followed is not None and told.is_reset(followed.job) else followed

    async def _follow(self, job: JobId, told: ReaderNews, with_output: bool) -> Followed | None:
        seen = told.seen
        return await self._store.follow(job, mark=seen.mark, seen=seen.count, limit=_PART, with_output=with_output)

    async def _pushed(self, waiter: Waiter, told: ReaderNews, stop: Callable[[], bool]) -> AsyncIterator[list[ToldEvent]]:
        """The chunks that are pushed, until another change, a gap or a silence. The caller then reads the store."""
        while not stop():
            began = time.monotonic()
            push = await waiter.next(self._heartbeat_s)
            if push is not None:
                if push.stream is None or not told.is_next(push.stream):
                    return
                yield list(told.chunks(push.stream))
            elif time.monotonic() - began >= self._heartbeat_s:
                yield []
                return


def _groups(events: Iterable[ToldEvent]) -> Iterator[list[ToldEvent]]:
    left = iter(events)
    while group := list(islice(left, _GROUP)):
        yield group

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
    """Follows jobs for readers. A slow reader costs nothing: each step begins when the one before has been sent.

    `heartbeat_s`: how long a reader may hear nothing.
    """

    def __init__(self, store: AsyncStore, *, heartbeat_s: float) -> None:
        self._store = store
        self._heartbeat_s = heartbeat_s

    async def events(
        self, job: JobId, waiter: Waiter, last_event_id: str | None, *, stop: Callable[[], bool], with_output: bool = False
    ) -> AsyncIterator[list[ToldEvent]]:
        """What comes after that event, in groups, up to `end` or until `stop` is true.

        An empty group after each silence of `heartbeat_s`. `with_output`: the end has the output where it can.
        """
        told = ReaderNews(last_event_id)
        record = await self._store.watch(job, every_change=True)
        if record is None:
            return
        told.is_reset(record)
        # A job that was never claimed has yielded nothing.
        found = await self._look(job, told, with_output) if record.tries else Followed(record)
        while found is not None and not stop():
            for group in _groups(chain(told.changes(found.job), told.chunks(found.stream))):
                yield group
            if len(found.stream.chunks) < _PART:
                if found.job.state.final:
                    yield list(told.end(found, with_output=with_output))
                    return
                async for group in self._pushed(waiter, told, stop):
                    yield group
            found = await self._look(job, told, with_output)

    async def _look(self, job: JobId, told: ReaderNews, with_output: bool) -> Followed | None:
        found = await self._follow(job, told, with_output)
        # What the store has lost meanwhile is told anew, from the start.
        return await self._follow(job, told, with_output) if found is not None and told.is_reset(found.job) else found

    async def _follow(self, job: JobId, told: ReaderNews, with_output: bool) -> Followed | None:
        seen = told.seen
        return await self._store.follow(job, mark=seen.mark, seen=seen.count, limit=_PART, with_output=with_output)

    async def _pushed(self, waiter: Waiter, told: ReaderNews, stop: Callable[[], bool]) -> AsyncIterator[list[ToldEvent]]:
        """The chunks that are pushed, until there is another change, a gap or a silence. Then the store is to be looked at."""
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

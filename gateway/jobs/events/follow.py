"""What happens to one job, as events in order: its status, its progress, the chunks that it yields, and its end (D72)."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import orjson

from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.notifications import Waiter
from penstock.gateway.jobs.views import change_id, job_body, progress_view
from penstock.job import Job, JobId, JobProgress, JobState

# D72: docs/design/streams.md
# In one reply, which holds the store for some tens of microseconds.
_PART = 256
_SEEN = re.compile(r"(?P<change>[^~]*)(?:~(?P<mark>\d{1,6}\.\d{1,6}):(?P<count>\d{1,9}))?")
_CHANGE_ID = re.compile(r"(\d{1,6})\.(\d{1,6})\.(\d)c?")
_NO_DATA = b"{}"


class ToldEvent(NamedTuple):
    """`data` is JSON. `id` names all that the reader has seen by then."""

    name: str
    id: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Seen:
    """What a reader has seen: the job's last change, and so many chunks of the stream with that mark."""

    change: str = ""
    mark: str = ""
    count: int = 0

    @classmethod
    def parse(cls, event_id: str | None) -> Seen:
        found = _SEEN.fullmatch(event_id or "")
        if found is None:
            return cls(event_id or "")
        return cls(found["change"], found["mark"] or "", int(found["count"] or 0))

    @property
    def id(self) -> str:
        return f"{self.change}~{self.mark}:{self.count}" if self.mark else self.change

    def event(self, name: str, data: bytes = _NO_DATA) -> ToldEvent:
        return ToldEvent(name, self.id, data)


class JobFollower:
    """Follows jobs for readers. A slow reader costs nothing: each step begins when the one before has been sent.

    `is_streaming` says whether a job may yield chunks: others are never asked for any. `heartbeat_s`: how long a reader may
    hear nothing.
    """

    def __init__(self, store: AsyncStore, *, heartbeat_s: float, is_streaming: Callable[[Job], bool]) -> None:
        self._store = store
        self._heartbeat_s = heartbeat_s
        self._is_streaming = is_streaming

    async def events(
        self, job: JobId, waiter: Waiter, last_event_id: str | None, *, stop: Callable[[], bool]
    ) -> AsyncIterator[ToldEvent | None]:
        """What comes after that event, up to `end` or until `stop` is true; None after each silence of `heartbeat_s`."""
        seen, progress = Seen.parse(last_event_id), None
        record = await self._store.watch(job, every_change=True)
        if record is not None and lost_history(seen.change, record):
            seen = Seen()
            yield Seen(change_id(record)).event("reset")
        while record is not None and not stop():
            for event in _changes(record, seen, progress):
                yield event
            seen, progress = replace(seen, change=change_id(record)), record.progress
            async for event in self._stream(record, seen):
                seen = Seen.parse(event.id)
                yield event
            if record.state.final:
                yield seen.event("end", job_body(record))
                return
            if not await self._wait(waiter, stop):
                yield None
            record = await self._store.read(job)

    async def _wait(self, waiter: Waiter, stop: Callable[[], bool]) -> bool:
        """False if nothing came for as long as a reader may hear nothing."""
        started = time.monotonic()
        change = await waiter.next_change(self._heartbeat_s, stop=stop)
        return change is not None or time.monotonic() - started < self._heartbeat_s

    async def _stream(self, record: Job, seen: Seen) -> AsyncIterator[ToldEvent]:
        """The chunks that have come, after a `restart` if they are of another stream than those that were seen."""
        is_more = self._is_streaming(record)
        while is_more:
            part = await self._store.chunks(record.id, mark=seen.mark, seen=seen.count, limit=_PART)
            if part.mark != seen.mark:
                is_restart, seen = bool(seen.mark), replace(seen, mark=part.mark, count=0)
                if is_restart:
                    yield seen.event("restart")
            for chunk in part.chunks:
                seen = replace(seen, count=seen.count + 1)
                yield seen.event("chunk", chunk)
            is_more = len(part.chunks) == _PART
        if seen.count and _is_of_another_attempt(record, seen.mark):
            # The last attempt ended without a chunk.
            yield Seen(seen.change).event("restart")


def _changes(record: Job, seen: Seen, progress: JobProgress | None) -> list[ToldEvent]:
    """The news in the record of a job that has not ended."""
    now = replace(seen, change=change_id(record))
    if record.state.final:
        return []
    if now.change != seen.change:
        return [now.event("status", job_body(record))]
    if record.progress is not None and record.progress != progress:
        return [now.event("progress", orjson.dumps(progress_view(record.progress)))]
    return []


def _is_of_another_attempt(record: Job, mark: str) -> bool:
    last = record.tries[-1].number if record.tries else 0
    return record.state is JobState.SUCCEEDED and int(mark.partition(".")[0]) != last


def lost_history(last_seen: str, record: Job) -> bool:
    """Whether the reader saw a later state than this record's: the id is another job's, or the store was rolled back."""
    if not last_seen or last_seen == change_id(record):
        return False
    seen = _CHANGE_ID.fullmatch(last_seen)
    now = _CHANGE_ID.fullmatch(change_id(record))
    if seen is None or now is None:
        return True
    return tuple(map(int, seen.groups())) > tuple(map(int, now.groups()))

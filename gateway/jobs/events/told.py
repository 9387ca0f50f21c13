"""What one reader has seen of a job, and which events it lacks (D72). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import orjson

from penstock.broker.records import Followed
from penstock.gateway.asgi.negotiation import JSON
from penstock.gateway.jobs.views import change_id, job_body, job_view, progress_view
from penstock.job import Job, JobProgress, JobState, StreamPart

# D72: docs/design/streams.md
_SEEN = re.compile(r"(?P<change>[^~]*)(?:~(?P<mark>\d{1,6}\.\d{1,6}):(?P<count>\d{1,9}))?")
_CHANGE_ID = re.compile(r"(\d{1,6})\.(\d{1,6})\.(\d)c?")
_NO_DATA = b"{}"


class ToldEvent(NamedTuple):
    """`data` is JSON. `id` names everything up to this event. `ended`: the job, in its `end` event."""

    name: str
    id: str
    data: bytes
    ended: Job | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """What a reader has seen: the job's last change, and the number of chunks of the stream with this mark."""

    change: str = ""
    mark: str = ""
    count: int = 0

    @classmethod
    def parse(cls, event_id: str | None) -> Seen:
        match = _SEEN.fullmatch(event_id or "")
        if match is None:
            return cls(event_id or "")
        return cls(match["change"], match["mark"] or "", int(match["count"] or 0))

    @property
    def id(self) -> str:
        return f"{self.change}~{self.mark}:{self.count}" if self.mark else self.change

    def event(self, name: str, data: bytes = _NO_DATA) -> ToldEvent:
        return ToldEvent(name, self.id, data)


class ReaderNews:
    """Each method returns the events that this reader has not seen."""

    def __init__(self, last_event_id: str | None) -> None:
        self.seen = Seen.parse(last_event_id)
        self._progress: JobProgress | None = None
        self._is_reset = False

    def is_reset(self, record: Job) -> bool:
        """Whether the store lost changes that this reader already saw. If so, send `reset` and start over."""
        if not lost_history(self.seen.change, record):
            return False
        self.seen, self._is_reset = Seen(), True
        return True

    def changes(self, record: Job) -> Iterator[ToldEvent]:
        """The events for changes in the job's record, except its end, which `end` returns."""
        if self._is_reset:
            self._is_reset = False
            yield Seen(change_id(record)).event("reset")
        before, self.seen = self.seen, replace(self.seen, change=change_id(record))
        progress, self._progress = self._progress, record.progress
        if record.state.final:
            return
        if before.change != self.seen.change:
            yield self.seen.event("status", job_body(record))
        elif record.progress is not None and record.progress != progress:
            yield self.seen.event("progress", orjson.dumps(progress_view(record.progress)))

    def is_next(self, part: StreamPart) -> bool:
        """Whether this part follows what the reader saw. Otherwise parts may be missing, and the store must be read."""
        seen = self.seen
        is_same = part.mark == seen.mark or not seen.mark
        return is_same and part.before <= seen.count < part.before + len(part.chunks)

    def chunks(self, part: StreamPart) -> Iterator[ToldEvent]:
        """The chunks that the reader has not seen, after a `restart` if they belong to another stream than those it saw.

        A stream that ends before the reader's last chunk counts as another one: the store lost its last chunks.
        """
        if part.mark != self.seen.mark or part.before + len(part.chunks) < self.seen.count:
            is_restart, self.seen = bool(self.seen.mark), replace(self.seen, mark=part.mark, count=0)
            if is_restart:
                yield self.seen.event("restart")
        seen = self.seen
        for count, chunk in enumerate(part.chunks[seen.count - part.before :], seen.count + 1):
            self.seen = Seen(seen.change, seen.mark, count)
            yield self.seen.event("chunk", chunk)

    def end(self, followed: Followed, *, with_output: bool) -> Iterator[ToldEvent]:
        """The end of the job; with its output as `result` if that is JSON and in the record, else `links` say where it is."""
        if self.seen.count and _is_of_another_attempt(followed.job, self.seen.mark):
            # The last attempt ended without a chunk.
            self.seen = Seen(self.seen.change)
            yield self.seen.event("restart")
        output = followed.output
        if not with_output or output is None or output.blob or output.content_type != JSON:
            told = job_body(followed.job)
        else:
            told = orjson.dumps({**job_view(followed.job), "result": orjson.Fragment(output.data)})
        yield self.seen.event("end", told)._replace(ended=followed.job)


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

"""What one reader was told of a job, and what is news to it (D72). Pure."""

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
    """`data` is JSON. `id` names all that the reader has seen by then. `ended`: the job, with its `end`."""

    name: str
    id: str
    data: bytes
    ended: Job | None = None


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


class ReaderNews:
    """One reader's: each method returns the events that tell the reader what it does not know yet."""

    def __init__(self, last_event_id: str | None) -> None:
        self.seen = Seen.parse(last_event_id)
        self._progress: JobProgress | None = None
        self._is_reset = False

    def is_reset(self, record: Job) -> bool:
        """Whether the reader has seen what cannot have been. Then all is told anew, behind a `reset`."""
        if not lost_history(self.seen.change, record):
            return False
        self.seen, self._is_reset = Seen(), True
        return True

    def changes(self, record: Job) -> Iterator[ToldEvent]:
        """The news in the record of a job. Its end is told last, by `end`."""
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
        """Whether the reader goes on with this part. Else it may have missed some, and has to look."""
        seen = self.seen
        is_same = part.mark == seen.mark or not seen.mark
        return is_same and part.before <= seen.count < part.before + len(part.chunks)

    def chunks(self, part: StreamPart) -> Iterator[ToldEvent]:
        """Those that the reader has not seen, after a `restart` if they are of another stream than those that it saw.

        Another stream is also one that ends before what the reader saw: the store has lost its last chunks.
        """
        if part.mark != self.seen.mark or part.before + len(part.chunks) < self.seen.count:
            is_restart, self.seen = bool(self.seen.mark), replace(self.seen, mark=part.mark, count=0)
            if is_restart:
                yield self.seen.event("restart")
        seen = self.seen
        for count, chunk in enumerate(part.chunks[seen.count - part.before :], seen.count + 1):
            self.seen = Seen(seen.change, seen.mark, count)
            yield self.seen.event("chunk", chunk)

    def end(self, found: Followed, *, with_output: bool) -> Iterator[ToldEvent]:
        """The end of the job; with its output as `result` if that is JSON and in the record, else `links` say where it is."""
        if self.seen.count and _is_of_another_attempt(found.job, self.seen.mark):
            # The last attempt ended without a chunk.
            self.seen = Seen(self.seen.change)
            yield self.seen.event("restart")
        output = found.output
        if not with_output or output is None or output.blob or output.content_type != JSON:
            told = job_body(found.job)
        else:
            told = orjson.dumps({**job_view(found.job), "result": orjson.Fragment(output.data)})
        yield self.seen.event("end", told)._replace(ended=found.job)


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

"""GET /v1/jobs/{id}/events: the changes of a job as server-sent events."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from typing import Annotated

import orjson
from fastapi import APIRouter, Header
from starlette.responses import Response, StreamingResponse

from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.notifications import Waiter
from penstock.errors import CapacityError
from penstock.gateway.asgi.connection import Lifetime
from penstock.gateway.auth.keys import Caller
from penstock.gateway.auth.roles import CallerParam, WaitingResponses
from penstock.gateway.jobs.results import visible_job
from penstock.gateway.jobs.views import change_id, job_body, progress_view
from penstock.job import Job, JobId, JobProgress, parse_job_id

RETRY = b"retry: 2000\n\n"
HEARTBEAT = b": still here\n\n"
_CHANGE_ID = re.compile(r"(\d{1,6})\.(\d{1,6})\.(\d)c?")
# These keep proxies from buffering events.
STREAM_HEADERS = {"cache-control": "no-cache, no-transform", "x-accel-buffering": "no"}


class JobEvents:
    """`heartbeat_s`: how long a stream may be silent; longer, a proxy might close it."""

    def __init__(self, store: AsyncStore, *, lifetime: Lifetime, waiting: WaitingResponses, heartbeat_s: float) -> None:
        self._heartbeat_s = heartbeat_s
        self._waiting = waiting
        self._store = store
        self._lifetime = lifetime

    def router(self) -> APIRouter:
        router = APIRouter(default_response_class=Response)
        router.add_api_route(
            "/v1/jobs/{job_id}/events",
            self.events,
            methods=["GET"],
            tags=["jobs"],
            summary="A job's changes (SSE)",
            name="events",
        )
        return router

    async def events(
        self, job_id: str, caller: CallerParam, last_event_id: Annotated[str | None, Header()] = None
    ) -> StreamingResponse:
        job = parse_job_id(job_id)
        # Checked before the stream begins: the response for a missing job is a plain 404, not an event.
        await visible_job(self._store, job, caller)
        self._waiting.check(caller)
        return StreamingResponse(
            self._stream(job, last_event_id, caller), media_type="text/event-stream", headers=STREAM_HEADERS
        )

    async def _stream(self, job: JobId, last_seen: str | None, caller: Caller) -> AsyncIterator[bytes]:
        yield RETRY
        with self._waiting.open(caller), self._store.waiter(job) as waiter:
            try:
                async for event in self._follow(job, waiter, last_seen):
                    yield event
            except CapacityError:
                # The status line has been sent. Closing the stream makes the client reconnect with Last-Event-ID.
                return

    async def _follow(self, job: JobId, waiter: Waiter, last_seen: str | None) -> AsyncIterator[bytes]:
        record = await self._store.watch(job, every_change=True)
        if record is not None and lost_history(last_seen, record):
            yield event("reset", change_id(record), b"{}")
            last_seen = None
        progress: JobProgress | None = None
        while record is not None and not self._lifetime.is_draining():
            if record.state.final:
                yield event("end", change_id(record), job_body(record))
                return
            if change_id(record) != last_seen:
                last_seen = change_id(record)
                yield event("status", last_seen, job_body(record))
            elif record.progress is not None and record.progress != progress:
                yield event("progress", last_seen, orjson.dumps(progress_view(record.progress)))
            progress = record.progress
            started = time.monotonic()
            if await waiter.next_change(self._heartbeat_s, stop=self._lifetime.is_draining) is None:
                if time.monotonic() - started >= self._heartbeat_s:
                    yield HEARTBEAT
                continue
            record = await self._store.read(job)


def event(name: str, event_id: str, data: bytes) -> bytes:
    return b"event: %b\nid: %b\ndata: %b\n\n" % (name.encode("ascii"), event_id.encode("ascii"), data)


def lost_history(last_seen: str | None, record: Job) -> bool:
    """Whether the client saw a later state than this record's: the id is another job's, or the store was rolled back."""
    if last_seen is None or last_seen == change_id(record):
        return False
    seen = _CHANGE_ID.fullmatch(last_seen)
    now = _CHANGE_ID.fullmatch(change_id(record))
    if seen is None or now is None:
        return True
    return tuple(map(int, seen.groups())) > tuple(map(int, now.groups()))

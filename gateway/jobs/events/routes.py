"""GET /v1/jobs/{id}/events: the changes of a job, its progress and its chunks, as they happen."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header
from starlette.responses import Response, StreamingResponse

from penstock.broker.store.aio import AsyncStore
from penstock.errors import CapacityError
from penstock.gateway.asgi.connection import Lifetime
from penstock.gateway.auth.keys import Caller
from penstock.gateway.auth.roles import CallerParam, WaitingResponses
from penstock.gateway.jobs.events.encoding import STREAM_HEADERS, Encoding, encoding_for
from penstock.gateway.jobs.events.follow import JobFollower
from penstock.gateway.jobs.results import visible_job
from penstock.job import JobId, parse_job_id


class JobEvents:
    """The route of one job's events."""

    def __init__(self, store: AsyncStore, follower: JobFollower, *, lifetime: Lifetime, waiting: WaitingResponses) -> None:
        self._follower = follower
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
            summary="A job's changes, progress and chunks (SSE, or lines of JSON)",
            name="events",
        )
        return router

    async def events(
        self,
        job_id: str,
        caller: CallerParam,
        last_event_id: Annotated[str | None, Header()] = None,
        accept: Annotated[str, Header(include_in_schema=False)] = "",
    ) -> StreamingResponse:
        job = parse_job_id(job_id)
        # Checked before the stream begins: the response for a missing job is a plain 404, not an event.
        await visible_job(self._store, job, caller)
        self._waiting.check(caller)
        encoding = encoding_for(accept)
        return StreamingResponse(
            self._stream(job, last_event_id, caller, encoding), media_type=encoding.media_type, headers=STREAM_HEADERS
        )

    async def _stream(self, job: JobId, last_seen: str | None, caller: Caller, encoding: Encoding) -> AsyncIterator[bytes]:
        yield encoding.first
        with self._waiting.open(caller), self._store.waiter(job) as waiter:
            try:
                async for group in self._follower.events(job, waiter, last_seen, stop=self._lifetime.is_draining):
                    yield await encoding.encode(group)
            except CapacityError:
                # The status line has been sent. Closing the stream makes the client reconnect with Last-Event-ID.
                return

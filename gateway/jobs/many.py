"""Many jobs in one request: GET /v1/jobs?ids= reads them or waits for one to end, GET /v1/jobs/events?ids= follows them all."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query
from starlette.responses import Response, StreamingResponse

from penstock.broker.store.aio import AsyncStore
from penstock.errors import BadRequest, CapacityError
from penstock.gateway.asgi.connection import Lifetime
from penstock.gateway.asgi.negotiation import JSON
from penstock.gateway.asgi.wire import json_response
from penstock.gateway.auth.keys import Caller
from penstock.gateway.auth.roles import CallerParam, WaitingResponses
from penstock.gateway.jobs.events.encoding import HEARTBEAT, RETRY, STREAM_HEADERS
from penstock.gateway.jobs.views import job_body, job_view
from penstock.job import Job, JobId, Payload, parse_job_id

MAX_IDS = 100
# Outputs beyond this many bytes are left out of a list; each has an address of its own.
_OUTPUT_BYTES = 1 << 20
# A job, and its output if that was asked for.
_Found = tuple[Job, Payload | None]
IDS = Query(description=f"Ids of at most {MAX_IDS} jobs, separated by commas.")


class ManyJobs:
    """Jobs that the caller cannot see are listed separately and never waited for."""

    def __init__(self, store: AsyncStore, *, lifetime: Lifetime, waiting: WaitingResponses, heartbeat_s: float) -> None:
        self._store = store
        self._lifetime = lifetime
        self._waiting = waiting
        self._heartbeat_s = heartbeat_s

    def router(self) -> APIRouter:
        router = APIRouter(default_response_class=Response)
        router.add_api_route(
            "/v1/jobs/events", self.events, methods=["GET"], tags=["jobs"], summary="The changes of many jobs (SSE)"
        )
        return router

    async def page(self, ids: str, wait_s: float, caller: Caller, *, outputs: bool) -> Response:
        """The jobs, as soon as one of them has ended. Returns at once if some do not exist: `missing` names them.

        `outputs`: with the small JSON outputs of those that succeeded.
        """
        wanted = parse_ids(ids)
        found = await self._visible(wanted, caller, outputs=outputs)
        if wait_s and len(found) == len(wanted) and not any(job.state.final for job, _ in found):
            await self._end_of_one([job.id for job, _ in found], wait_s, caller)
            found = await self._visible(wanted, caller, outputs=outputs)
        known, small = {job.id for job, _ in found}, dict(_small(found))
        missing = [str(job) for job in wanted if job not in known]
        data = [job_view(job) | small.get(job.id, {}) for job, _ in found]
        return json_response({"data": data, "has_more": False, "missing": missing})

    async def _visible(self, wanted: Sequence[JobId], caller: Caller, *, outputs: bool = False) -> list[_Found]:
        ask = self._store.result if outputs else self._without_output
        ends = await asyncio.gather(*map(ask, wanted))
        return [end for end in ends if end is not None and caller.sees(end[0].owner)]

    async def _without_output(self, job: JobId) -> _Found | None:
        record = await self._store.read(job)
        return None if record is None else (record, None)

    async def _end_of_one(self, jobs: Sequence[JobId], wait_s: float, caller: Caller) -> None:
        with self._waiting.open(caller), self._store.waiter(*jobs) as waiter:
            records = await asyncio.gather(*(self._store.watch(job) for job in jobs))
            if all(job is not None and not job.state.final for job in records):
                await waiter.next_end(wait_s, stop=self._lifetime.is_draining)

    async def events(self, ids: Annotated[str, IDS], caller: CallerParam) -> StreamingResponse:
        wanted = parse_ids(ids)
        visible = [job.id for job, _ in await self._visible(wanted, caller)]
        self._waiting.check(caller)
        gone = [job for job in wanted if job not in visible]
        return StreamingResponse(self._stream(visible, gone, caller), media_type="text/event-stream", headers=STREAM_HEADERS)

    async def _stream(self, jobs: Sequence[JobId], gone: Sequence[JobId], caller: Caller) -> AsyncIterator[bytes]:
        yield RETRY + b"".join(_gone(job) for job in gone)
        try:
            with self._waiting.open(caller):
                async for event in self._follow(jobs):
                    yield event
        except CapacityError:
            # The status line has been sent. The client reconnects and gets the status of every job.
            return

    async def _follow(self, jobs: Sequence[JobId]) -> AsyncIterator[bytes]:
        with self._store.waiter(*jobs) as waiter:
            records = await asyncio.gather(*(self._store.watch(job, every_change=True) for job in jobs))
            for job, record in zip(jobs, records, strict=True):
                yield _told(job, record)
            live = {record.id for record in records if record is not None and not record.state.final}
            while live and not self._lifetime.is_draining():
                started = time.monotonic()
                push = await waiter.next_change(self._heartbeat_s, stop=self._lifetime.is_draining)
                if push is not None and push.id in live:
                    record = await self._store.read(push.id)
                    live -= {push.id} if record is None or record.state.final else set()
                    yield _told(push.id, record)
                elif time.monotonic() - started >= self._heartbeat_s:
                    yield HEARTBEAT


def _small(found: Iterable[_Found]) -> Iterator[tuple[JobId, dict[str, Any]]]:
    """The outputs that are JSON and kept in their records, as members of the jobs' views, while they fit into one answer."""
    room = _OUTPUT_BYTES
    for job, output in found:
        if output is None or output.blob or output.content_type != JSON or len(output.data) > room:
            continue
        # A model may call any bytes JSON. Numbers beyond 64 bits would be rounded, so the text goes as it is.
        with contextlib.suppress(orjson.JSONDecodeError):
            orjson.loads(output.data)
            room -= len(output.data)
            yield job.id, {"output": orjson.Fragment(output.data)}


def parse_ids(text: str) -> list[JobId]:
    """The different ids, in order; raises `BadRequest` for none, too many, or one that cannot be read."""
    names = dict.fromkeys(name.strip() for name in text.split(",") if name.strip())
    if not 1 <= len(names) <= MAX_IDS:
        raise BadRequest(f"ids names {len(names)} jobs; one request takes 1 to {MAX_IDS}", hint="Ask for the others apart.")
    return [parse_job_id(name) for name in names]


def _told(job: JobId, record: Job | None) -> bytes:
    """The event with a job's current status. It has no id: a client that reconnects gets the status of every job anyway."""
    if record is None:
        return _gone(job)
    return b"event: %b\ndata: %b\n\n" % (b"end" if record.state.final else b"status", job_body(record))


def _gone(job: JobId) -> bytes:
    return b"event: gone\ndata: %b\n\n" % orjson.dumps({"id": str(job)})

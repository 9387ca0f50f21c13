"""POST /v1/jobs/{id}/replay: a new job with the input of a job that ended without an output. Both name each other."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, NamedTuple

from fastapi import APIRouter, Header, Query, Request
from msgspec import structs
from starlette.responses import Response

from penstock.broker.backlog import eta_s
from penstock.broker.records import KeptInput, Submitted
from penstock.errors import Conflict, Gone, NotFound
from penstock.gateway.asgi import negotiation
from penstock.gateway.asgi.problems import retry_after
from penstock.gateway.auth.keys import Caller
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.jobs.results import visible_job
from penstock.gateway.jobs.submitting.draft import Draft, SubmitRequest
from penstock.gateway.jobs.submitting.submit_options import SubmitOptions
from penstock.gateway.jobs.views import job_body
from penstock.gateway.models.registry import VersionEntry
from penstock.job import Job, JobId, JobState, Payload, new_job_id, parse_job_id

if TYPE_CHECKING:
    from penstock.gateway.services import Services

REPLAYABLE = frozenset({JobState.FAILED, JobState.DEAD, JobState.EXPIRED, JobState.CANCELLED})
# How many replays of this process may hold an input from a file in memory at once; each up to `gateway.max_raw_bytes`.
_FILES_AT_ONCE = 4


class Replay(NamedTuple):
    submitted: Submitted
    request: SubmitRequest


class Replays:
    """A replay is stored like any submit: admission, quota and idempotency apply to it too."""

    def __init__(self, services: Services) -> None:
        self._submitter = services.submitter
        self._words = services.words
        self._store = services.store
        self._blobs = services.blobs
        self._files = asyncio.Semaphore(_FILES_AT_ONCE)

    def router(self) -> APIRouter:
        router = APIRouter(default_response_class=Response)
        router.add_api_route(
            "/v1/jobs/{job_id}/replay",
            self.answer,
            methods=["POST"],
            tags=["jobs"],
            summary="Run the input of a failed job again",
            status_code=202,
            name="replay",
        )
        return router

    async def answer(
        self,
        job_id: str,
        request: Request,
        caller: CallerParam,
        version: Annotated[str, Query(description="The version to run; without it, the one that the job failed with.")] = "",
        idempotency_key: Annotated[str | None, Header()] = None,
    ) -> Response:
        made = await self.replay(parse_job_id(job_id), caller, version=version, asked=request)
        submitted, backlog = made.submitted, made.request.model.backlog
        wait_s = eta_s(submitted.depth - 1, backlog, made.request.version.capacity, time.monotonic())
        record = await visible_job(self._store, submitted.id, caller)
        headers = {"location": f"/v1/jobs/{record.id}", "retry-after": str(retry_after(wait_s or 1.0, draw=random.random()))}
        return Response(job_body(record, eta_s=wait_s), status_code=202, media_type="application/json", headers=headers)

    async def replay(
        self, job: JobId, caller: Caller, *, version: str = "", key: str | None = None, asked: Request | None = None
    ) -> Replay:
        """The new job, or the earlier one with the same idempotency key. Raises like a submit, or `Conflict` without input."""
        old = await visible_job(self._store, job, caller)
        check_replayable(old)
        kept = await self._kept_input(old)
        async with self._files if kept.payload.blob else nullcontext():
            if kept.payload.blob:
                kept = replace(kept, payload=await self._read(old, kept.payload))
            return await self._submit(old, kept, caller, version, key, asked)

    async def _submit(
        self, old: Job, kept: KeptInput, caller: Caller, version: str, key: str | None, asked: Request | None
    ) -> Replay:
        draft = Draft(
            model=old.model,
            version=version,
            caller=_caller_of_copy(caller, old.owner),
            kind="replay",
            call=kept.call,
            is_awaited=False,
            input=partial(self._input, old, kept.payload),
            options=SubmitOptions(priority=old.priority, tags=old.tags),
            head=negotiation.read_head(asked.headers.raw) if asked is not None else {},
            scope=asked.scope if asked is not None else {},
            key=key,
            said=Payload("", str(old.id).encode()),
            replay_of=old.id,
            words=await self._words.kept(old),
        )
        request = await self._submitter.prepare(draft if version else await self._as_it_failed(draft, old))
        submitted = await self._submitter.submit(request, new_job_id(old.model, old.id.partition))
        return Replay(submitted, request)

    async def _input(self, old: Job, payload: Payload, version: VersionEntry) -> Payload:
        return payload if version.name == old.version else await self._submitter.inputs.stored(payload, version)

    async def _as_it_failed(self, draft: Draft, old: Job) -> Draft:
        """Uses the version that failed. Raises `Conflict` if it is gone: another version is never chosen silently."""
        try:
            settled = await self._submitter.settle(structs.replace(draft, version=old.version))
            return structs.replace(draft, settled=settled)
        except NotFound as gone:
            raise Conflict(
                f"job {old.id} ran with version {old.version!r}, which no longer exists",
                hint=f"{gone.hint or ''} Name one with ?version=.".strip(),
            ) from None

    async def _kept_input(self, old: Job) -> KeptInput:
        kept = await self._store.input(old.id)
        if kept is None:
            raise _no_input(old)
        return kept

    async def _read(self, old: Job, payload: Payload) -> Payload:
        try:
            return Payload(payload.content_type, await asyncio.to_thread(self._blobs.get, payload.blob))
        except Gone:
            raise _no_input(old) from None


def check_replayable(job: Job) -> None:
    """Raises `Conflict` for a job that has not ended, or that succeeded: its input was deleted then (D13)."""
    if not job.state.final:
        raise Conflict(f"job {job.id} has not ended yet: it is {job.state.public}", hint="Wait for its end, or cancel it.")
    if job.state not in REPLAYABLE:
        raise Conflict(
            f"job {job.id} succeeded, and its input was deleted as it ended", hint="Submit the input again for a new job."
        )


def _no_input(job: Job) -> Conflict:
    return Conflict(
        f"the input of job {job.id} is no longer stored"
        + (": that of a cancelled job is deleted as it ends" if job.state is JobState.CANCELLED else ""),
        hint="Submit the input again for a new job.",
    )


def _caller_of_copy(caller: Caller, owner: str) -> Caller:
    """The new job has the same owner as the old one. The owner's quota does not apply to a manager."""
    return caller if caller.owner == owner else Caller(owner)

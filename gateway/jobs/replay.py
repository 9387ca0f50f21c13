"""POST /v1/jobs/{id}/replay: a new job with the input of one that brought no output; the two name each other."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import nullcontext
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.responses import Response

from penstock.broker.blobs.files import BlobStore
from penstock.broker.records import KeptInput, Submitted
from penstock.broker.store.aio import AsyncStore
from penstock.errors import Conflict, Gone, NotFound
from penstock.gateway.asgi import negotiation, wire
from penstock.gateway.asgi.negotiation import SubmitOptions
from penstock.gateway.asgi.problems import retry_after
from penstock.gateway.auth.roles import Caller, CallerParam
from penstock.gateway.jobs.results import visible
from penstock.gateway.jobs.submitter import SubmitRequest, Submitter, fingerprint, job_deadline
from penstock.gateway.jobs.views import job_body
from penstock.gateway.models.admission import eta_s
from penstock.gateway.models.registry import ModelEntry, ModelRegistry, VersionEntry
from penstock.job import Job, JobState, Payload
from penstock.job_id import JobId, new_job_id, parse_job_id

REPLAYABLE = frozenset({JobState.FAILED, JobState.DEAD, JobState.EXPIRED, JobState.CANCELLED})
# Inputs from files held in memory at once, all replays of this process together: each has up to `gateway.max_raw_bytes`.
_FILES_AT_ONCE = 4


class Replays:
    """Stores a replay by the same way as any submit: admission, quota and idempotency hold for it too."""

    def __init__(self, intake: Submitter, *, store: AsyncStore, blobs: BlobStore, registry: ModelRegistry) -> None:
        self._intake = intake
        self._store = store
        self._blobs = blobs
        self._registry = registry
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
        caller: CallerParam,
        version: Annotated[str, Query(description="Run it with this version; without, with the one it failed with.")] = "",
        idempotency_key: Annotated[str | None, Header()] = None,
    ) -> Response:
        key = negotiation.idempotency_key(
            {} if idempotency_key is None else {b"idempotency-key": idempotency_key.encode("latin-1")}
        )
        submitted, entry, chosen = await self.replay(parse_job_id(job_id), caller, version=version, key=key)
        wait_s = eta_s(submitted.depth - 1, entry.backlog, chosen.capacity, time.monotonic())
        found = await visible(self._store, submitted.id, caller)
        headers = {"location": f"/v1/jobs/{found.id}", "retry-after": str(retry_after(wait_s or 1.0, draw=random.random()))}
        return Response(job_body(found, eta_s=wait_s), status_code=202, media_type="application/json", headers=headers)

    async def replay(
        self, job: JobId, caller: Caller, *, version: str = "", key: str = ""
    ) -> tuple[Submitted, ModelEntry, VersionEntry]:
        """Stored, or found under the same idempotency key. Raises as a submit, and `Conflict` where nothing is to replay."""
        old = await visible(self._store, job, caller)
        check_replayable(old)
        given = await self._kept_input(old)
        async with self._files if given.payload.blob else nullcontext():
            if given.payload.blob:
                given = replace(given, payload=await self._read(old, given.payload))
            return await self._submit(old, given, caller, version=version, key=key)

    async def _submit(
        self, old: Job, given: KeptInput, caller: Caller, *, version: str, key: str
    ) -> tuple[Submitted, ModelEntry, VersionEntry]:
        entry, chosen = await self._version(old, version)
        if chosen.name != old.version:
            negotiation.media_type(wire.header_value(given.payload.content_type), accepts=chosen.accepts)
            await self._intake.check(given.payload, chosen)
        mark = fingerprint("replay", old.model, version, Payload("", str(old.id).encode())) if key else ""
        options = SubmitOptions(priority=old.priority)
        owner = _on_behalf(caller, old.owner)
        asked = SubmitRequest(entry, chosen, given.payload, options, owner, key, mark, given.call, replay_of=old.id)
        ttl_s = entry.info.limits.result_ttl_s
        new = new_job_id(old.model)
        return await self._intake.store(asked, new, deadline_s=job_deadline(asked), result_ttl_s=ttl_s), entry, chosen

    async def _version(self, old: Job, wanted: str) -> tuple[ModelEntry, VersionEntry]:
        """Never silently another version than the one that failed."""
        if wanted:
            return await self._registry.find(old.model, wanted)
        try:
            return await self._registry.find(old.model, old.version)
        except NotFound as gone:
            raise Conflict(
                f"job {old.id} ran with version {old.version!r}, which is no longer there",
                hint=f"{gone.hint or ''} Name one with ?version=.".strip(),
            ) from None

    async def _kept_input(self, old: Job) -> KeptInput:
        given = await self._store.input(old.id)
        if given is None:
            raise _no_input(old)
        return given

    async def _read(self, old: Job, given: Payload) -> Payload:
        try:
            return Payload(given.content_type, await asyncio.to_thread(self._blobs.get, given.blob))
        except Gone:
            raise _no_input(old) from None


def check_replayable(job: Job) -> None:
    """Raises `Conflict` for a job that lives, or that succeeded and has left nothing to run again."""
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


def _on_behalf(caller: Caller, owner: str) -> Caller:
    """The new job is the same owner's. Whoever manages others' jobs is not held to their quota."""
    return caller if caller.owner == owner else Caller(owner)

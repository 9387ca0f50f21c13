"""POST /v1/jobs/{id}/replay: a new job with the input of a job that ended without an output; each names the other."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Header, Query
from starlette.responses import Response

from penstock.broker.backlog import eta_s
from penstock.broker.blobs.files import BlobStore
from penstock.broker.records import KeptInput, Submitted
from penstock.broker.store.aio import AsyncStore
from penstock.errors import Conflict, Gone, NotFound
from penstock.gateway.asgi import negotiation, wire
from penstock.gateway.asgi.problems import retry_after
from penstock.gateway.auth.keys import Caller
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.jobs.results import visible_job
from penstock.gateway.jobs.submitting.submit_options import SubmitOptions, fingerprint
from penstock.gateway.jobs.submitting.submitter import SubmitRequest, Submitter
from penstock.gateway.jobs.views import job_body
from penstock.gateway.models.registry import ModelEntry, ModelRegistry, VersionEntry
from penstock.inputs.request import unpacked
from penstock.job import FORM_MEDIA, TENSORS_MEDIA, Job, JobId, JobState, Payload, new_job_id, parse_job_id

if TYPE_CHECKING:
    from penstock.extensions.webhooks.webhook import Webhook

REPLAYABLE = frozenset({JobState.FAILED, JobState.DEAD, JobState.EXPIRED, JobState.CANCELLED})
# How many replays of this process may have an input from a file in memory at once; each has up to `gateway.max_raw_bytes`.
_FILES_AT_ONCE = 4


class Replays:
    """A replay is stored like any submit: admission, quota and idempotency apply to it too."""

    def __init__(self, submitter: Submitter, *, store: AsyncStore, blobs: BlobStore, registry: ModelRegistry) -> None:
        self._submitter = submitter
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
        version: Annotated[str, Query(description="The version to run; without it, the one that the job failed with.")] = "",
        idempotency_key: Annotated[str | None, Header()] = None,
    ) -> Response:
        key = negotiation.idempotency_key(
            {} if idempotency_key is None else {b"idempotency-key": idempotency_key.encode("latin-1")}
        )
        submitted, entry, chosen = await self.replay(parse_job_id(job_id), caller, version=version, key=key)
        wait_s = eta_s(submitted.depth - 1, entry.backlog, chosen.capacity, time.monotonic())
        found = await visible_job(self._store, submitted.id, caller)
        headers = {"location": f"/v1/jobs/{found.id}", "retry-after": str(retry_after(wait_s or 1.0, draw=random.random()))}
        return Response(job_body(found, eta_s=wait_s), status_code=202, media_type="application/json", headers=headers)

    async def replay(
        self, job: JobId, caller: Caller, *, version: str = "", key: str = ""
    ) -> tuple[Submitted, ModelEntry, VersionEntry]:
        """The new job, or the earlier one of the same idempotency key. Raises as a submit, or `Conflict` for no input."""
        old = await visible_job(self._store, job, caller)
        check_replayable(old)
        kept = await self._kept_input(old)
        async with self._files if kept.payload.blob else nullcontext():
            if kept.payload.blob:
                kept = replace(kept, payload=await self._read(old, kept.payload))
            return await self._submit(old, kept, caller, version=version, key=key)

    async def _submit(
        self, old: Job, kept: KeptInput, caller: Caller, *, version: str, key: str
    ) -> tuple[Submitted, ModelEntry, VersionEntry]:
        entry, chosen = await self._version(old, version)
        if chosen.name != old.version:
            given = unpacked(kept.payload)
            if given.content_type not in (FORM_MEDIA, TENSORS_MEDIA):
                negotiation.media_type(wire.header_value(given.content_type), accepts=chosen.accepts)
            await self._submitter.check(given, chosen)
        digest = fingerprint("replay", old.model, version, Payload("", str(old.id).encode())) if key else ""
        options = SubmitOptions(priority=old.priority, tags=old.tags)
        owner, hook = _caller_of_copy(caller, old.owner), await self._webhook(old)
        request = SubmitRequest(
            entry, chosen, kept.payload, options, owner, key, digest, kept.call, replay_of=old.id, webhook=hook
        )
        return await self._submitter.submit(request, new_job_id(old.model, old.id.partition)), entry, chosen

    async def _webhook(self, old: Job) -> Webhook | None:
        """The new job's events go where those of the old one went."""
        if self._submitter.webhooks is None:
            return None
        from penstock.extensions.webhooks.gateway.requested import kept_webhook

        return await kept_webhook(self._submitter.webhooks, self._store, old)

    async def _version(self, old: Job, wanted: str) -> tuple[ModelEntry, VersionEntry]:
        """The version to run; raises `Conflict` if the one that failed is gone, rather than choose another one silently."""
        if wanted:
            return await self._registry.find(old.model, wanted)
        try:
            return await self._registry.find(old.model, old.version)
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
    """The new job has the same owner as the old one. A caller who manages the jobs of others is not bound by their quota."""
    return caller if caller.owner == owner else Caller(owner)

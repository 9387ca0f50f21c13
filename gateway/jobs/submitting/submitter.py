"""From prepared requests to stored jobs: admit, store. One function per step, in the order of the steps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

from penstock import logs
from penstock.broker.backlog import admit
from penstock.broker.blobs.segment_writer import SEGMENT_BYTES
from penstock.broker.blobs.space import DiskReserve
from penstock.broker.contract import CancelStatus
from penstock.broker.records import NewJob, SubmitStatus, Submitted
from penstock.broker.store.group_commit import GroupCommit
from penstock.errors import BadRequest, PenstockError
from penstock.failpoints import failpoint
from penstock.gateway.auth.keys import Caller
from penstock.gateway.jobs.submitting.draft import SubmitRequest
from penstock.gateway.jobs.submitting.inputs import InputReader
from penstock.gateway.jobs.submitting.preparing import Preparation
from penstock.gateway.models.placing import placed, placed_anew
from penstock.job import JobId, Payload, Priority
from penstock.logs import JobLines

if TYPE_CHECKING:
    from penstock.gateway.services import Services

log = structlog.get_logger(__name__)
# Blobs are written in groups of at most this size, so that a group shares one sync (D7, D67); at most this many groups are
# written at a time, each in a thread of its own.
_BLOBS_BYTES, _BLOBS_CALLS = SEGMENT_BYTES, 2
# After that many refusals of its place a request is refused: its model is changed all the time.
_PLACES_TRIED = 5
_STORED = Payload("")


class GatewayJobLog:
    def __init__(self, lines: JobLines) -> None:
        self.is_on = lines is JobLines.ALL

    def log_accepted(self, job: JobId, *, version: str, trace: str, depth: int) -> None:
        """Call it only if the log `is_on`. `depth`: the number of jobs in the model's queue, including this one."""
        log.info(logs.JOB_ACCEPTED, **logs.job_fields(job, version=version, trace=trace), depth=depth)

    def log_cancelled(self, job: JobId, outcome: CancelStatus, *, version: str, trace: str) -> None:
        """Logs the end of a queued job. A running one ends with its batch, and its worker logs that."""
        if self.is_on and outcome is CancelStatus.CANCELLED:
            fields = logs.job_fields(job, version=version, trace=trace)
            log.info(logs.JOB_FINISHED, **fields, state=outcome.value)
        elif self.is_on and outcome is CancelStatus.REQUESTED:
            log.info(logs.JOB_CANCEL_ASKED, **logs.job_fields(job, version=version, trace=trace))


class Submitter:
    """Turns drafts into stored jobs."""

    def __init__(self, services: Services) -> None:
        settings = services.settings
        self.inputs = InputReader(settings.gateway, services.uploads)
        self._uploads = services.uploads
        preparation = Preparation(services)
        # Bound directly: a forwarding method would cost time in each request.
        self.settle, self.prepare, self.counting = preparation.settle, preparation.prepare, preparation.counting
        self._inline_bytes = settings.store.inline_input_bytes
        self._job_log = GatewayJobLog(settings.log.jobs)
        self._store = services.store
        self._blobs = services.blobs
        self._reserve = DiskReserve(settings.blob_disk, settings.store.reserve_bytes)
        self._blob_writes = GroupCommit(
            self._write_blobs,
            size_of=lambda blob: len(blob[1]),
            max_bytes=_BLOBS_BYTES,
            max_calls=_BLOBS_CALLS,
        )
        self._registry = services.registry
        self._metrics = services.metrics
        self._words = services.words
        self._on_chosen = services.on_chosen

    async def submit(self, request: SubmitRequest, job: JobId, *, reply_to: str = "") -> Submitted:
        """`store` for a job whose result is read later and kept as long as the model's settings say."""
        ttl_s = request.model.info.limits.result_ttl_s
        return await self.store(request, job, deadline_s=job_deadline(request), result_ttl_s=ttl_s, reply_to=reply_to)

    async def store(
        self, request: SubmitRequest, job: JobId, *, deadline_s: float, result_ttl_s: float, reply_to: str = ""
    ) -> Submitted:
        """The stored job, or the earlier one with the same idempotency key; the request loses its input.

        Raises `Overloaded`, `KeyReused` or `StoreUnavailable`.
        """
        try:
            self._admit(request, deadline_s)
            stored = await self._stored(request, job, deadline_s=deadline_s, result_ttl_s=result_ttl_s, reply_to=reply_to)
        except PenstockError as error:
            self._metrics.count_refusal(request.model.name, error)
            if request.sending is not None:
                request.sending.end_refused(error.kind)
            raise
        if request.sending is not None:
            request.sending.end_sent(stored.id)
        if stored.status is SubmitStatus.CREATED:
            if self._job_log.is_on:
                trace = request.trace_text
                self._job_log.log_accepted(stored.id, version=request.version.name, trace=trace, depth=stored.depth)
            if request.version.chosen:
                for on_chosen in self._on_chosen:
                    on_chosen(self, request, stored.id)
        self._let_go(request)
        return stored

    def _let_go(self, request: SubmitRequest) -> None:
        request.input = _STORED
        if request.scope is not None:
            self._uploads.give_back(request.scope)

    async def cancel_all(self, jobs: Sequence[JobId], caller: Caller) -> None:
        """Cancel jobs that no caller waits for. Jobs that were not stored or have ended are skipped."""
        await asyncio.gather(*(self._store.cancel(job, owner=caller.owner) for job in jobs), return_exceptions=True)

    def _admit(self, request: SubmitRequest, deadline_s: float) -> None:
        model, now = request.model, time.monotonic()
        if model.backlog.is_stale(now):
            self._registry.measure(model)
        limit, owner = model.info.limits.max_queue_depth, request.caller.owner
        if request.options.delay_s:
            # A delayed job is not admitted by today's queue; the store checks its limit.
            return
        admit(model.backlog, request.version.capacity, now, deadline_s=deadline_s, max_depth=limit, owner=owner)

    async def _stored(
        self, request: SubmitRequest, job: JobId, *, deadline_s: float, result_ttl_s: float, reply_to: str
    ) -> Submitted:
        limits = request.model.info.limits
        stored_input = await self._put(request.input, job)
        chosen = request.version.chosen
        new = NewJob(
            id=job,
            version=request.version.name,
            input=stored_input,
            priority=request.options.priority,
            deadline_s=deadline_s,
            result_ttl_s=result_ttl_s,
            owner=request.caller.owner,
            max_open_jobs=request.caller.quota(limits.max_queue_depth),
            idempotency_key=request.key,
            fingerprint=request.fingerprint,
            max_attempts=limits.max_attempts,
            max_crashes=limits.max_crashes,
            reply_to=reply_to,
            call=request.call,
            trace=request.trace_text,
            replay_of=request.replay_of,
            delay_s=request.options.delay_s,
            tags=request.options.tags,
            words={**request.words, **chosen} if chosen else request.words,
            placing=request.model.info.placing if request.key and request.replay_of is None else None,
        )
        new, submitted = await self._submitted(request, new)
        failpoint("after_submit_before_reply")
        created = submitted.status is SubmitStatus.CREATED
        owner = request.caller.owner if created and not request.options.delay_s else ""
        request.model.backlog.record_submit(submitted.depth, time.monotonic(), owner=owner, partition=new.id.partition)
        if not created:
            await self._not_created(request, stored_input, submitted)
        return submitted

    async def _submitted(self, request: SubmitRequest, new: NewJob) -> tuple[NewJob, Submitted]:
        model = request.model
        for _ in range(_PLACES_TRIED):
            placed_job, most = new, model.info.limits.max_queue_depth
            if model.info.held > 1:
                placed_job, most = await placed(self._store, model.info, new)
            submitted = await self._store.submit(placed_job, max_depth=most)
            if submitted.status not in (SubmitStatus.RETIRED, SubmitStatus.MOVED):
                break
            # If the version is gone, an input in a blob is left to the collector of blobs without a record.
            model, new = await placed_anew(self._store, self._registry, new, submitted.status)
        return placed_job, submitted

    async def _put(self, payload: Payload, job: JobId) -> Payload:
        if len(payload.data) <= self._inline_bytes:
            return payload
        # D9. Blob first, submit second: a crash between them leaves an unseen blob, the reverse a job without input.
        name = await self._blob_writes.commit((f"{job.serial}.in", payload.data))
        return Payload(payload.content_type, blob=name)

    async def _write_blobs(self, blobs: Sequence[tuple[str, bytes]]) -> list[str]:
        return await asyncio.to_thread(self._append_all, blobs)

    def _append_all(self, blobs: Sequence[tuple[str, bytes]]) -> list[str]:
        self._reserve.require(sum(len(data) for _, data in blobs))
        return self._blobs.append_all(blobs)

    async def _not_created(self, request: SubmitRequest, payload: Payload, submitted: Submitted) -> None:
        if payload.blob:
            await asyncio.to_thread(self._blobs.delete_all, [payload.blob])
        if submitted.status is not SubmitStatus.EXISTING:
            from penstock.gateway.jobs.submitting.refusals import refusal_of

            raise refusal_of(request, submitted, self._words)


def job_deadline(request: SubmitRequest) -> float:
    """Seconds from the submit: the caller may shorten the model's limit, which counts from the job's start.

    Raises `BadRequest` for a longer time, and for one that ends before the job may start.
    """
    limits, delay_s = request.model.info.limits, request.options.delay_s
    limit = limits.deadline_s if request.options.priority is Priority.INTERACTIVE else limits.bulk_deadline_s
    wanted_s = request.options.deadline_s
    if wanted_s is None:
        return limit + delay_s
    if wanted_s <= delay_s:
        raise BadRequest(
            f"the deadline comes before the start: deadline_s is {wanted_s:g}, and the job may start after {delay_s:.3f} s",
            hint="deadline_s counts from the submit, as delay_s does.",
        )
    if wanted_s > limit + delay_s:
        after = " after its start" if delay_s else ""
        most = f"at most {limit:g} s{after} for {request.options.priority}"
        raise BadRequest(f"deadline_s is {wanted_s:g}; this model allows {most}")
    return wanted_s

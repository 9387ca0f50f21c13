"""The submit hop: check, admit, store. One function per step, in the order a request meets them."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from penstock import logs
from penstock.broker.blobs.files import BlobStore
from penstock.broker.contract import CancelStatus
from penstock.broker.records import NewJob, SubmitStatus, Submitted
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.group_commit import GroupCommit
from penstock.errors import BadRequest, KeyReused, PenstockError, QuotaSpent
from penstock.failpoints import failpoint
from penstock.gateway.asgi import bodies, multipart, negotiation, wire
from penstock.gateway.asgi.negotiation import JSON, MULTIPART, Head, SubmitOptions
from penstock.gateway.asgi.wire import Receive, Scope
from penstock.gateway.auth.roles import Caller
from penstock.gateway.models.admission import admit, queue_full
from penstock.gateway.models.registry import ModelEntry, ModelRegistry, VersionEntry
from penstock.gateway.options import GatewayOptions
from penstock.gateway.telemetry.metrics import GatewayMetrics
from penstock.gateway.telemetry.tracing import SendSpan, Tracing
from penstock.job import Call, Payload, Priority
from penstock.job_id import JobId
from penstock.logs import JobLines
from penstock.trace_context import TraceContext

log = structlog.get_logger(__name__)

# Blobs written by one thread, and how many threads: some share a commit of the file system's journal, others go on beside.
_BLOBS_BYTES = 1024 * 1024
_BLOBS_CALLS = 6
# What else than a prediction is asked for, by the route's kind.
_CALLS = {"explanations": Call.EXPLAIN}


@dataclass(frozen=True, slots=True)
class SubmitRequest:
    """A request read and found good. `key` and `fingerprint` are empty without an Idempotency-Key.

    `trace` is what the job and the answer carry: the caller's context or, where tracing is on, that of `sending`.
    """

    model: ModelEntry
    version: VersionEntry
    input: Payload
    options: SubmitOptions
    caller: Caller
    key: str = ""
    fingerprint: str = ""
    call: Call = Call.PREDICT
    trace: TraceContext | None = None
    sending: SendSpan | None = None
    replay_of: JobId | None = None

    @property
    def trace_text(self) -> str:
        return self.trace.text if self.trace is not None else ""


class GatewayJobLog:
    def __init__(self, lines: JobLines) -> None:
        self._on = lines is JobLines.ALL

    def accepted(self, job: JobId, *, version: str, trace: str, depth: int) -> None:
        """`depth`: how many wait in the model's queue, this one included."""
        if self._on:
            log.info(logs.JOB_ACCEPTED, **logs.job_fields(job, version=version, trace=trace), depth=depth)

    def cancelled(self, job: JobId, outcome: CancelStatus, *, version: str, trace: str) -> None:
        """One that runs ends with its batch, and its worker says so."""
        if self._on and outcome is CancelStatus.CANCELLED:
            told = logs.job_fields(job, version=version, trace=trace)
            log.info(logs.JOB_FINISHED, **told, state=outcome.value)
        elif self._on and outcome is CancelStatus.REQUESTED:
            log.info(logs.JOB_CANCEL_ASKED, **logs.job_fields(job, version=version, trace=trace))


class Submitter:
    """Turns requests into stored jobs."""

    def __init__(
        self,
        options: GatewayOptions,
        *,
        store: AsyncStore,
        blobs: BlobStore,
        registry: ModelRegistry,
        metrics: GatewayMetrics,
        tracing: Tracing | None = None,
    ) -> None:
        self._tracing = tracing
        self._options = options
        self._job_log = GatewayJobLog(options.log_jobs)
        self._store = store
        self._blobs = blobs
        self._room = wire.BodyMemory(options.max_upload_bytes)
        self._blob_writes = GroupCommit(
            self._write_blobs, size_of=lambda blob: len(blob[1]), max_bytes=_BLOBS_BYTES, max_calls=_BLOBS_CALLS
        )
        self._registry = registry
        self._metrics = metrics

    async def ask(self, scope: Scope, receive: Receive, head: Head, *, route: str, model: str, version: str) -> SubmitRequest:
        """The request, read and checked; raises the first fault found, cheapest check first."""
        entry, chosen = await self._registry.find(model, version)
        try:
            options = negotiation.submit_options(scope["query_string"])
            key = negotiation.idempotency_key(head)
            given = await self._input(receive, head, chosen)
        except PenstockError as error:
            self._metrics.count_refusal(entry.name, error)
            raise
        mark = fingerprint(route, entry.name, version, given) if key else ""
        asked = SubmitRequest(entry, chosen, given, options, scope["caller"], key, mark, _CALLS.get(route, Call.PREDICT))
        return asked if b"traceparent" not in head and self._tracing is None else self._traced(asked, scope, head)

    def _traced(self, asked: SubmitRequest, scope: Scope, head: Head) -> SubmitRequest:
        trace, sending = negotiation.caller_trace(head), None
        if self._tracing is not None:
            sending = self._tracing.begin(asked.model.name, asked.version.name, trace, size_bytes=len(asked.input.data))
            trace = sending.trace
        # For whoever has to answer if this request fails.
        scope["trace"] = trace
        return replace(asked, trace=trace, sending=sending)

    async def store(
        self, asked: SubmitRequest, job: JobId, *, deadline_s: float, result_ttl_s: float, reply_to: str = ""
    ) -> Submitted:
        """Stored, or found under the same idempotency key; raises `Overloaded`, `KeyReused` or `StoreUnavailable`."""
        try:
            self._admit(asked, deadline_s)
            submitted = await self._stored(asked, job, deadline_s=deadline_s, result_ttl_s=result_ttl_s, reply_to=reply_to)
        except PenstockError as error:
            self._metrics.count_refusal(asked.model.name, error)
            if asked.sending is not None:
                asked.sending.end_refused(error.kind)
            raise
        if asked.sending is not None:
            asked.sending.end_sent(submitted.id)
        if submitted.status is SubmitStatus.CREATED:
            self._job_log.accepted(job, version=asked.version.name, trace=asked.trace_text, depth=submitted.depth)
        return submitted

    async def _input(self, receive: Receive, head: Head, version: VersionEntry) -> Payload:
        negotiation.refuse_encoded(head)
        media = negotiation.media_type(head.get(b"content-type"), accepts=version.accepts)
        limit = self._options.max_json_bytes if media == JSON else self._options.max_raw_bytes
        body = await wire.read_body(receive, head, limit=limit, room=self._room)
        if media != JSON and negotiation.base_type(media) == MULTIPART:
            media, body = await self._part(body, media, version)
        found = Payload(media, body)
        await self.check(found, version)
        return found

    async def check(self, given: Payload, version: VersionEntry) -> None:
        """Raises `BadRequest` or `InvalidInput` for JSON that this version does not take."""
        if given.content_type == JSON:
            await self._check_json(given.data, version)

    async def _part(self, body: bytes, media: str, version: VersionEntry) -> tuple[str, bytes]:
        part_type, data = await asyncio.to_thread(multipart.multipart_input, body, media)
        media = negotiation.media_type(wire.header_value(part_type), accepts=version.accepts)
        if media == JSON and len(data) > self._options.max_json_bytes:
            raise wire.too_large(len(data), self._options.max_json_bytes)
        if negotiation.base_type(media) == MULTIPART:
            raise BadRequest("a part of a multipart body cannot be multipart itself")
        return media, data

    async def _check_json(self, body: bytes, version: VersionEntry) -> None:
        value = bodies.parse_json(body, max_depth=self._options.max_json_depth)
        if version.validator is None:
            return
        if value is not bodies.UNBUILT:
            bodies.check_schema(value, version.validator, version.input_schema)
        elif bodies.cheap_to_build(body):
            await asyncio.to_thread(bodies.check_large, body, version.validator, version.input_schema)

    def _admit(self, asked: SubmitRequest, deadline_s: float) -> None:
        model, now = asked.model, time.monotonic()
        if model.backlog.stale(now):
            self._registry.measure(model)
        limit, owner = model.info.limits.max_queue_depth, asked.caller.owner
        admit(model.backlog, asked.version.capacity, now, deadline_s=deadline_s, max_depth=limit, owner=owner)

    async def _stored(
        self, asked: SubmitRequest, job: JobId, *, deadline_s: float, result_ttl_s: float, reply_to: str
    ) -> Submitted:
        limits = asked.model.info.limits
        given = await self._put(asked.input, job)
        new = NewJob(
            id=job,
            version=asked.version.name,
            input=given,
            priority=asked.options.priority,
            deadline_s=deadline_s,
            result_ttl_s=result_ttl_s,
            owner=asked.caller.owner,
            max_open_jobs=asked.caller.quota(limits.max_queue_depth),
            idempotency_key=asked.key,
            fingerprint=asked.fingerprint,
            max_attempts=limits.max_attempts,
            max_crashes=limits.max_crashes,
            reply_to=reply_to,
            call=asked.call,
            trace=asked.trace_text,
            replay_of=asked.replay_of,
        )
        submitted = await self._store.submit(new, max_depth=limits.max_queue_depth)
        failpoint("after_submit_before_reply")
        created = submitted.status is SubmitStatus.CREATED
        asked.model.backlog.submitted(submitted.depth, time.monotonic(), owner=asked.caller.owner if created else "")
        if not created:
            await self._not_created(asked, given, submitted)
        return submitted

    async def _put(self, given: Payload, job: JobId) -> Payload:
        if len(given.data) <= self._options.inline_input_bytes:
            return given
        # Blob first, submit second: a crash between them leaves an unseen blob, the reverse a job without input.
        name = f"{job.serial}.in"
        await self._blob_writes.commit((name, given.data))
        return Payload(given.content_type, blob=name)

    async def _write_blobs(self, blobs: Sequence[tuple[str, bytes]]) -> list[None]:
        return await asyncio.to_thread(self._blobs.put_all, blobs)

    async def _not_created(self, asked: SubmitRequest, given: Payload, submitted: Submitted) -> None:
        if given.blob:
            await asyncio.to_thread(self._blobs.delete, given.blob)
        if submitted.status is SubmitStatus.KEY_REUSED:
            raise KeyReused(
                "this Idempotency-Key was used for another request (route, model, version, media type or body differ)",
                hint="Use a new key for a new request; repeat a request byte for byte to get its first job.",
            )
        limit = asked.model.info.limits.max_queue_depth
        drain_s = asked.model.backlog.drain_s(asked.version.capacity, time.monotonic())
        if submitted.status is SubmitStatus.FULL:
            raise queue_full(submitted.depth, limit, drain_s=drain_s)
        if submitted.status is SubmitStatus.QUOTA:
            raise QuotaSpent(
                f"{asked.caller.quota(limit)} jobs of this owner are under way for this model, which is its limit",
                retry_after_s=drain_s,
                hint="Wait for some to end, or raise max_open_jobs of the key.",
            )


def job_deadline(asked: SubmitRequest) -> float:
    """Seconds from submit; the caller may shorten the model's limit. Raises `BadRequest` when asked to go beyond it."""
    limits = asked.model.info.limits
    longest = limits.deadline_s if asked.options.priority is Priority.INTERACTIVE else limits.bulk_deadline_s
    given = asked.options.deadline_s
    if given is not None and given > longest:
        raise BadRequest(f"deadline_s is {given:g}; this model allows at most {longest:g} s for {asked.options.priority}")
    return given or longest


def fingerprint(route: str, model: str, version: str, given: Payload) -> str:
    """Of the route's kind, model, version as asked, media type and body."""
    digest = hashlib.sha256()
    for part in (route.encode(), model.encode(), version.encode(), given.content_type.encode(), given.data):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()

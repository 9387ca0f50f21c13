"""Requests become stored jobs: check, admit, store. One function per step, in the order of the steps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import structlog

from penstock import logs
from penstock.broker.backlog import admit
from penstock.broker.blobs.files import BlobStore
from penstock.broker.blobs.segment_writer import SEGMENT_BYTES
from penstock.broker.blobs.space import DiskReserve
from penstock.broker.contract import CancelStatus
from penstock.broker.records import NewJob, SubmitStatus, Submitted
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.group_commit import GroupCommit
from penstock.errors import BadRequest, PenstockError
from penstock.failpoints import failpoint
from penstock.gateway.asgi import bodies, negotiation, wire
from penstock.gateway.asgi.negotiation import JSON, MULTIPART, Head
from penstock.gateway.asgi.wire import Receive, Scope
from penstock.gateway.auth.keys import Caller
from penstock.gateway.jobs.submitting.form_input import check_form, read_multipart
from penstock.gateway.jobs.submitting.submit_options import (
    NO_OPTIONS,
    SubmitOptions,
    checked_delay,
    fingerprint,
    parse_submit_options,
)
from penstock.gateway.models.registry import ModelEntry, ModelRegistry, VersionEntry
from penstock.gateway.options import GatewayOptions
from penstock.gateway.telemetry.metrics import GatewayMetrics
from penstock.gateway.telemetry.tracing import SendSpan, Tracing
from penstock.inputs.form import decode_form
from penstock.inputs.request import packed, wanted_headers
from penstock.job import FORM_MEDIA, NPY_MEDIA, TENSORS_MEDIA, Call, JobId, Payload, Priority
from penstock.logs import JobLines
from penstock.trace_context import TraceContext

if TYPE_CHECKING:
    from penstock.extensions.splits.gateway.shadows import Shadows
    from penstock.extensions.webhooks.webhook import Webhook

log = structlog.get_logger(__name__)
# Blobs are written in groups of at most this size, so that a group shares one sync (D7, D67); at most this many groups are
# written at a time, each in a thread of its own.
_BLOBS_BYTES, _BLOBS_CALLS = SEGMENT_BYTES, 2
# By kind of route; a route that is not listed asks for a prediction.
_CALLS = {"explanations": Call.EXPLAIN}
RawHeaders = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class SubmitRequest:
    """A request that was read and checked. `key` and `fingerprint` are empty without an Idempotency-Key.

    `trace` goes into the job and the response: it is the caller's context or, if tracing is on, that of `sending`.
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
    webhook: Webhook | None = None

    @property
    def trace_text(self) -> str:
        return self.trace.text if self.trace is not None else ""

    def new_job_id(self) -> JobId:
        return self.model.backlog.new_job_id(self.model.info, owner=self.caller.owner, key=self.key)


class GatewayJobLog:
    def __init__(self, lines: JobLines) -> None:
        self._on = lines is JobLines.ALL

    def log_accepted(self, job: JobId, *, version: str, trace: str, depth: int) -> None:
        """`depth`: the number of jobs in the model's queue, including this one."""
        if self._on:
            log.info(logs.JOB_ACCEPTED, **logs.job_fields(job, version=version, trace=trace), depth=depth)

    def log_cancelled(self, job: JobId, outcome: CancelStatus, *, version: str, trace: str) -> None:
        """Logs the end of a queued job. A running one ends with its batch, and its worker logs that."""
        if self._on and outcome is CancelStatus.CANCELLED:
            fields = logs.job_fields(job, version=version, trace=trace)
            log.info(logs.JOB_FINISHED, **fields, state=outcome.value)
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
        uploads: wire.BodyMemory,
        tracing: Tracing | None = None,
    ) -> None:
        self.webhooks = options.webhooks
        self._tracing = tracing
        self._options = options
        self._job_log = GatewayJobLog(options.log_jobs)
        self._store = store
        self._blobs = blobs
        self._reserve = DiskReserve(options.blob_dir, options.reserve_bytes)
        self._uploads = uploads
        self._blob_writes = GroupCommit(
            self._write_blobs,
            size_of=lambda blob: len(blob[1]),
            max_bytes=_BLOBS_BYTES,
            max_calls=_BLOBS_CALLS,
        )
        self._registry = registry
        self._metrics = metrics
        self._shadows: Shadows | None = None

    async def read(self, scope: Scope, receive: Receive, head: Head, *, route: str, model: str, version: str) -> SubmitRequest:
        """The request, read and checked, the cheapest check first; raises on the first fault."""
        entry, chosen = await self._registry.find(model, version, scope["headers"])
        try:
            options = NO_OPTIONS if not scope["query_string"] else await self.options_in(scope["query_string"], entry)
            key = negotiation.idempotency_key(head)
            if key and chosen.split:
                from penstock.extensions.splits.gateway.entry import version_of_repeat

                chosen = await version_of_repeat(self._store, entry, chosen, owner=scope["caller"].owner, key=key)
            webhook = self.webhook_of(options, scope["caller"], entry.name, has_default=route == "jobs")
            payload = await self.input(receive, head, chosen, owner=scope["caller"].owner)
            request = request_of(entry, chosen, payload, caller=scope["caller"], headers=scope["headers"], options=options)
        except PenstockError as error:
            self._metrics.count_refusal(entry.name, error)
            raise
        if webhook is not None:
            request = replace(request, webhook=webhook)
        return self.addressed(request, scope, head, route=route, version=version, key=key, given=payload)

    def addressed(
        self, request: SubmitRequest, scope: Scope, head: Head, *, route: str, version: str, key: str, given: Payload
    ) -> SubmitRequest:
        """The request with what its address and its headers say: kind of call, idempotency key, trace. `given`: its body."""
        if key or route in _CALLS:
            digest = fingerprint(route, request.model.name, version, given) if key else ""
            request = replace(request, key=key, fingerprint=digest, call=_CALLS.get(route, Call.PREDICT))
        return request if b"traceparent" not in head and self._tracing is None else self.traced(request, scope, head)

    async def json_request(
        self,
        data: bytes,
        entry: ModelEntry,
        version: VersionEntry,
        *,
        caller: Caller,
        headers: RawHeaders,
        options: SubmitOptions = NO_OPTIONS,
    ) -> SubmitRequest:
        """The request with an input in JSON, checked. Raises `BadRequest`, `InvalidInput`, or `UnsupportedMedia`."""
        negotiation.media_type(JSON.encode(), accepts=version.accepts)
        payload = Payload(JSON, data)
        await self.check(payload, version)
        return request_of(entry, version, payload, caller=caller, headers=headers, options=options)

    def webhook_of(self, options: SubmitOptions, caller: Caller, model: str, *, has_default: bool = True) -> Webhook | None:
        """Where the events of a job go. `has_default` is False for a caller who waits for the output and names no URL."""
        named, webhooks = options.webhook or options.webhook_events, self.webhooks
        if not named and not (has_default and (caller.webhook or (webhooks is not None and webhooks.of_models))):
            return None
        # Few jobs have a webhook, and the others do without this import.
        from penstock.extensions.webhooks.gateway.requested import webhook_of

        return webhook_of(webhooks, options.webhook, options.webhook_events, caller=caller, model=model)

    def traced(self, request: SubmitRequest, scope: Scope, head: Head) -> SubmitRequest:
        """The request with the trace that its caller sent, or that begins with it."""
        trace, sending = negotiation.caller_trace(head), None
        if self._tracing is not None:
            sending = self._tracing.begin(request.model.name, request.version.name, trace, size_bytes=len(request.input.data))
            trace = sending.trace
        # The response to a failed request carries it too.
        scope["trace"] = trace
        return replace(request, trace=trace, sending=sending)

    async def options_in(self, query: bytes, model: ModelEntry) -> SubmitOptions:
        """The options of a job that a query names, and the parameters of its model. Raises `BadRequest`."""
        return await self.timed(parse_submit_options(query, of_model=model.info.query))

    async def timed(self, options: SubmitOptions) -> SubmitOptions:
        """The options with the delay until the moment that they name, which is one by the store's clock."""
        if options.not_before is None:
            return options
        delay_s = max(0.0, options.not_before - await self._store.now())
        return replace(options, delay_s=checked_delay(delay_s, name="not_before"))

    async def submit(self, request: SubmitRequest, job: JobId, *, reply_to: str = "") -> Submitted:
        """`store` for a job that is read later: the model's settings say for how long its result is kept."""
        ttl_s = request.model.info.limits.result_ttl_s
        return await self.store(request, job, deadline_s=job_deadline(request), result_ttl_s=ttl_s, reply_to=reply_to)

    async def store(
        self, request: SubmitRequest, job: JobId, *, deadline_s: float, result_ttl_s: float, reply_to: str = ""
    ) -> Submitted:
        """The stored job, or the earlier one of the same idempotency key.

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
            self._job_log.log_accepted(stored.id, version=request.version.name, trace=request.trace_text, depth=stored.depth)
            if request.version.split:
                self._copy(request, stored.id)
        return stored

    def _copy(self, request: SubmitRequest, job: JobId) -> None:
        """Have the split's shadow get a copy if this request is one of its share."""
        if request.model.split is None or not request.model.split.is_copied():
            return
        if self._shadows is None:
            from penstock.extensions.splits.gateway.shadows import Shadows

            self._shadows = Shadows(self, self._store, self._blobs)
        self._shadows.copy(request, job)

    async def cancel_all(self, jobs: Sequence[JobId], caller: Caller) -> None:
        """Cancel jobs for which nobody waits any more. A job that was not stored or has ended is no error."""
        await asyncio.gather(*(self._store.cancel(job, owner=caller.owner) for job in jobs), return_exceptions=True)

    async def input(self, receive: Receive, head: Head, version: VersionEntry, *, owner: str) -> Payload:
        """The body as the input of this version; raises on the first fault."""
        negotiation.refuse_encoded(head)
        media = negotiation.media_type(head.get(b"content-type"), accepts=version.accepts)
        limit = self._options.max_json_bytes if media == JSON and not version.takes_raw else self._options.max_raw_bytes
        body = await wire.read_body(receive, head, limit=limit, memory=self._uploads, owner=owner)
        found = Payload(media, body)
        if media != JSON and negotiation.base_type(media) == MULTIPART:
            found = await asyncio.to_thread(read_multipart, found, version, self._options)
        if found.content_type == JSON and not version.takes_raw:
            await self._check_json(found.data, version)
        elif found.content_type == NPY_MEDIA and NPY_MEDIA in version.accepts:
            # Few callers send arrays, and only models that take them read such a file.
            from penstock.gateway.jobs.tensors import npy_input

            found = await npy_input(found.data)
        return found

    async def check(self, payload: Payload, version: VersionEntry) -> None:
        """Raises `BadRequest` or `InvalidInput` for an input, JSON or a form, that this version does not accept."""
        if version.takes_raw:
            return
        if payload.content_type == JSON:
            await self._check_json(payload.data, version)
        elif payload.content_type == FORM_MEDIA:
            await asyncio.to_thread(check_form, decode_form(payload.data), version, self._options)
        elif payload.content_type == TENSORS_MEDIA:
            from penstock.gateway.jobs.tensors import check_tensor_payload

            await asyncio.to_thread(check_tensor_payload, payload.data, version)

    async def _check_json(self, body: bytes, version: VersionEntry) -> None:
        value = bodies.parse_json(body, max_depth=self._options.max_json_depth)
        if version.validator is None:
            return
        if value is not bodies.UNBUILT:
            bodies.check_schema(value, version.validator, version.input_schema)
        elif bodies.is_cheap_to_build(body):
            await asyncio.to_thread(bodies.check_large, body, version.validator, version.input_schema)

    def _admit(self, request: SubmitRequest, deadline_s: float) -> None:
        model, now = request.model, time.monotonic()
        if model.backlog.is_stale(now):
            self._registry.measure(model)
        limit, owner = model.info.limits.max_queue_depth, request.caller.owner
        if request.options.delay_s:
            # What the queue will be like by then, nobody knows; the store has the limit of jobs.
            return
        admit(model.backlog, request.version.capacity, now, deadline_s=deadline_s, max_depth=limit, owner=owner)

    async def _stored(
        self, request: SubmitRequest, job: JobId, *, deadline_s: float, result_ttl_s: float, reply_to: str
    ) -> Submitted:
        limits = request.model.info.limits
        stored_input = await self._put(request.input, job)
        words = request.webhook.word_of(request.caller.owner) if request.webhook else {}
        if request.version.split:
            words["splits"] = request.version.split
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
            words=words,
        )
        most = limits.max_queue_depth
        if request.model.info.held > 1:
            from penstock.gateway.models.placing import placed

            new, most = await placed(self._store, request.model.info, new)
        submitted = await self._store.submit(new, max_depth=most)
        failpoint("after_submit_before_reply")
        created = submitted.status is SubmitStatus.CREATED
        owner = request.caller.owner if created and not request.options.delay_s else ""
        request.model.backlog.record_submit(submitted.depth, time.monotonic(), owner=owner, partition=new.id.partition)
        if not created:
            await self._not_created(request, stored_input, submitted)
        return submitted

    async def _put(self, payload: Payload, job: JobId) -> Payload:
        if len(payload.data) <= self._options.inline_input_bytes:
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
            await asyncio.to_thread(self._blobs.delete, payload.blob)
        if submitted.status is not SubmitStatus.EXISTING:
            from penstock.gateway.jobs.submitting.refusals import refusal_of

            raise refusal_of(request, submitted)


def request_of(
    entry: ModelEntry, version: VersionEntry, payload: Payload, *, caller: Caller, headers: RawHeaders, options: SubmitOptions
) -> SubmitRequest:
    """The request with a checked input, which gets the headers and parameters that the model's settings name."""
    if entry.info.request_headers or options.query:
        said = wanted_headers(headers, entry.info.request_headers)
        payload = packed(payload, headers=said, query=options.query)
    return SubmitRequest(entry, version, payload, options, caller)


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

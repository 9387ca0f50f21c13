"""POST /predictions/{model}[/{version}] and /explanations/...: submit a job, wait for its end, answer with the output."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from penstock.broker.records import Push
from penstock.errors import BadRequest, NoWorker, StoreUnavailable
from penstock.gateway.asgi import wire
from penstock.gateway.asgi.connection import ClientConnection, connection_of
from penstock.gateway.asgi.negotiation import JSON, OCTETS, Head, is_streamed, trace_header
from penstock.gateway.asgi.problems import EndedWithoutOutput, NoAnswerYet
from penstock.gateway.asgi.wire import NOSNIFF, ClientGone, Receive, Scope, Send
from penstock.gateway.jobs.results import first_is_gone
from penstock.gateway.models.slots import why_unserved
from penstock.job import BatchRecord, Call, Job, JobId, JobState, Payload
from penstock.logs import job_fields

if TYPE_CHECKING:
    from penstock.broker.store.notifications import Waiter
    from penstock.gateway.asgi.content import ContentResponse
    from penstock.gateway.jobs.events.encoding import EventEncoder
    from penstock.gateway.jobs.submitting.draft import SubmitRequest
    from penstock.gateway.services import Services

log = structlog.get_logger(__name__)

# The store ends a job at its deadline; the push of that end arrives a moment later.
LAST_PUSH_S = 0.02
# Outputs of these types are sent as they are, in one write.
_USUAL_TYPES = {JSON: (b"content-type", JSON.encode()), OCTETS: (b"content-type", OCTETS.encode())}


class PredictEndpoint:
    """Predictions, or explanations, of one gateway process."""

    def __init__(self, services: Services, *, call: Call = Call.PREDICT) -> None:
        self._call = call
        self._route = "explanations" if call is Call.EXPLAIN else "predictions"
        self._job_log = services.job_log
        self._submitter = services.submitter
        self._sync_timeout_s = services.settings.gateway.sync_timeout_s
        self._store = services.store
        self._registry = services.registry
        self._results = services.results
        self._metrics = services.metrics
        self._lifetime = services.lifetime
        self._follower = services.follower
        self._reading = services.reading

    async def __call__(self, scope: Scope, receive: Receive, send: Send, head: Head, model: str, version: str) -> int:
        """Returns the status code that was sent."""
        started = time.perf_counter()
        kind, call = self._route, self._call
        draft = self._submitter.inputs.draft(scope, receive, head, model, version, kind=kind, call=call, is_awaited=True)
        request = await self._submitter.prepare(draft)
        self.count_request(model, version)
        # Most requests ask for one answer and skip the code of streams.
        accept = head.get(b"accept", b"")
        has_events = is_streamed(accept)
        longest_s = request.model.info.limits.deadline_s if has_events else self._sync_timeout_s
        deadline_s = answer_deadline(request, longest_s)
        if not request.version.capacity.is_served:
            await self.require_worker(request)
        if has_events:
            ended = await self.stream_as_accepted(request, accept, send, connection_of(scope), deadline_s)
            if ended is not None and ended.state is JobState.SUCCEEDED:
                self.count_answer(model, version, ended.batch, time.perf_counter() - started)
            return 200
        end = await self.end_of(request, connection_of(scope), deadline_s)
        output = _pushed_output(end)
        response = await self._file(end, accept) if output is None else None
        total_s = time.perf_counter() - started
        self.count_answer(model, version, end.batch, total_s)
        extra = [
            (b"x-penstock-job", str(end.id).encode("ascii")),
            (b"x-penstock-version", (end.version or request.version.name).encode("ascii")),
            (b"server-timing", server_timing(end.batch, total_s)),
            *trace_header(request.trace),
        ]
        if output is not None:
            length = (b"content-length", b"%d" % len(output.data))
            await wire.answer(send, 200, [_USUAL_TYPES[output.content_type], length, NOSNIFF, *extra], output.data)
        elif response is not None:
            response.raw_headers += extra
            with self._reading(request.caller):
                await response(scope, receive, send)
        return 200

    def count_request(self, model: str, version: str) -> None:
        if self._metrics.predictions is not None:
            self._metrics.predictions.count_request(model, version)

    def count_answer(self, model: str, version: str, batch: BatchRecord | None, total_s: float) -> None:
        if self._metrics.predictions is not None:
            self._metrics.predictions.count_answer(model, version, batch, total_s)

    async def _file(self, end: Push, accept: bytes) -> ContentResponse:
        return await self._results.answer(end, accept=accept.decode("latin-1"), refusal=EndedWithoutOutput)

    async def stream_as_accepted(
        self, request: SubmitRequest, accept: bytes, send: Send, connection: ClientConnection, deadline_s: float
    ) -> Job | None:
        """As `stream`, in the form that the Accept header names."""
        from penstock.gateway.jobs.events.encoding import encoding_for

        encoder = encoding_for(accept.decode("latin-1"))
        return await self.stream(request, lambda job: encoder, send, connection, deadline_s)

    async def stream(
        self,
        request: SubmitRequest,
        encoder_of: Callable[[JobId], EventEncoder],
        send: Send,
        connection: ClientConnection,
        deadline_s: float,
        *,
        kept_s: float | None = None,
    ) -> Job | None:
        """Answers with the events of the job. Returns its record if it ended, else None.

        `kept_s`: seconds to keep the result; None: only as long as the answer needs it (D14).
        """
        job, ttl_s = request.new_job_id(), kept_s or request.model.info.limits.sync_result_ttl_s
        submitted = await self._submitter.store(request, job, deadline_s=deadline_s, result_ttl_s=ttl_s)
        if submitted.id != job and await self._store.read(submitted.id) is None:
            raise first_is_gone(submitted.id)
        try:
            return await self.follow(submitted.id, request, encoder_of(submitted.id), send, connection)
        except ClientGone:
            # An earlier request with the same key may still wait for its job.
            if submitted.id == job:
                await self._cancel(job, request)
            raise

    async def follow(
        self, job: JobId, request: SubmitRequest, encoder: EventEncoder, send: Send, connection: ClientConnection
    ) -> Job | None:
        """As `stream`, with the events of a job that is stored. Raises `ClientGone` and leaves the job as it is."""
        from penstock.gateway.jobs.events.prediction import StreamedPrediction

        with self._store.waiter(job) as waiter:
            return await StreamedPrediction(self._follower, self._lifetime).answer(
                job, waiter, request, encoder, send, connection
            )

    async def chunks(
        self, request: SubmitRequest, connection: ClientConnection, deadline_s: float
    ) -> AsyncIterator[tuple[JobId, bytes]]:
        """The chunks of a new job, each in JSON, and b"" once it has succeeded. Raises as `end_of` does.

        Also raises `EndedWithoutOutput` if a new attempt began after some chunks: sent chunks cannot be withdrawn.
        """
        from penstock.gateway.jobs.events.prediction import chunks_of

        job, ttl_s = request.new_job_id(), request.model.info.limits.sync_result_ttl_s
        submitted = await self._submitter.store(request, job, deadline_s=deadline_s, result_ttl_s=ttl_s)
        with self._store.waiter(submitted.id) as waiter:
            connection.on_lost = waiter.wake
            events = self._follower.events(
                submitted.id, waiter, None, stop=lambda: connection.lost or self._lifetime.is_last_call()
            )
            async for chunk in chunks_of(submitted.id, events):
                yield submitted.id, chunk
                if not chunk:
                    return
        if not connection.lost:
            raise NoAnswerYet(f"job {submitted.id} did not end before this gateway stopped", job=submitted.id)
        # An earlier request with the same key may still wait for its job.
        if submitted.id == job:
            await self._cancel(job, request)
        raise ClientGone

    async def require_worker(self, request: SubmitRequest) -> None:
        await self._registry.look_again()
        entry, version = await self._registry.find(request.model.name, request.version.name)
        if version.capacity.is_served:
            return
        await self._registry.note_refused(entry)
        why = why_unserved(self._registry.workers, entry.name, version)
        error = NoWorker(
            f"model {entry.name!r} version {version.name!r} has no ready worker: {why}",
            retry_after_s=entry.backlog.drain_s(version.capacity, time.monotonic()),
            hint=f"`penstock workers` lists those alive. Or queue the work: POST /v1/models/{entry.name}/jobs",
        )
        self._metrics.count_refusal(entry.name, error)
        raise error

    async def end_of(
        self, request: SubmitRequest, connection: ClientConnection, deadline_s: float, *, kept_s: float | None = None
    ) -> Push:
        """The end of the job; raises `NoAnswerYet` if the deadline passes first, `ClientGone` if the client hangs up.

        `kept_s`: as for `stream`.
        """
        job = request.new_job_id()
        with self._store.waiter(job) as waiter:
            # D14: only the request itself and its repeats read this result, so it is kept for a short time.
            ttl_s = kept_s or request.model.info.limits.sync_result_ttl_s
            submitted = await self._submitter.store(
                request, job, deadline_s=deadline_s, result_ttl_s=ttl_s, reply_to=self._store.channel
            )
            if submitted.id == job:
                return await self._wait(waiter, job, connection, deadline_s, request=request)
        return await self.end_of_first(submitted.id, connection, deadline_s, request=request)

    async def end_of_first(
        self, job: JobId, connection: ClientConnection, deadline_s: float, *, request: SubmitRequest
    ) -> Push:
        """The end of the job that an earlier request with the same idempotency key made."""
        with self._store.waiter(job) as waiter:
            known = await self._store.watch(job)
            if known is None:
                raise first_is_gone(job)
            end = Push.of_end(known, None) or await self._wait(waiter, job, connection, deadline_s, request=request)
            return replace(end, version=known.version)

    async def _wait(
        self, waiter: Waiter, job: JobId, connection: ClientConnection, deadline_s: float, *, request: SubmitRequest
    ) -> Push:
        connection.on_lost = waiter.wake
        end = await waiter.next_end(deadline_s + LAST_PUSH_S, stop=lambda: connection.lost or self._lifetime.is_last_call())
        if end is not None:
            return end
        if connection.lost:
            await self._cancel(job, request)
            raise ClientGone
        raise NoAnswerYet(f"job {job} did not end within the {deadline_s:g} s allowed for an answer", job=job)

    async def _cancel(self, job: JobId, request: SubmitRequest) -> None:
        try:
            outcome = await self._store.cancel(job, owner=request.caller.owner)
        except StoreUnavailable as error:
            log.warning(
                "cancel_failed", **job_fields(job, version=request.version.name, trace=request.trace_text), reason=error.message
            )
        else:
            self._job_log.log_cancelled(job, outcome, version=request.version.name, trace=request.trace_text)


def _pushed_output(end: Push) -> Payload | None:
    """The output in the push, if it can be sent unchanged. None if it is missing, too large, or a file."""
    output = end.output
    return output if output is not None and not output.blob and output.content_type in _USUAL_TYPES else None


def answer_deadline(request: SubmitRequest, sync_timeout_s: float) -> float:
    """Seconds: the caller's limit, else the gateway's own; never beyond the model's."""
    longest = request.model.info.limits.deadline_s
    if request.options.delay_s:
        raise BadRequest(
            "a prediction is answered at once, so it takes no delay_s or not_before",
            hint=f"Submit a job instead: POST /v1/models/{request.model.name}/jobs?delay_s=...",
        )
    wanted_s = request.options.deadline_s
    if wanted_s is not None and wanted_s > longest:
        raise BadRequest(f"deadline_s is {wanted_s:g}; this model allows at most {longest:g} s")
    return wanted_s or min(sync_timeout_s, longest)


def run_s(batch: BatchRecord | None) -> float:
    """Seconds that a batch spent in the model's stages; 0 if nothing is known about it."""
    return batch.decode_s + batch.preprocess_s + batch.inference_s + batch.postprocess_s if batch else 0.0


def server_timing(batch: BatchRecord | None, total_s: float) -> bytes:
    """Server-Timing, in milliseconds: `run` in the handler's stages, `queue` everything else; `batch`: size and reason."""
    if batch is None:
        return b"total;dur=%.3f" % (total_s * 1e3)
    ran_s = run_s(batch)
    return b'queue;dur=%.3f, batch;desc="%d %b", run;dur=%.3f, total;dur=%.3f' % (
        max(0.0, total_s - ran_s) * 1e3,
        batch.size,
        wire.header_value(batch.reason),
        ran_s * 1e3,
        total_s * 1e3,
    )

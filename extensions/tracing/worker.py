"""A worker's spans: one `process` span per batch, with a link to the trace of each of its jobs."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import structlog

from penstock import trace_context
from penstock.broker.records import ClaimedJob
from penstock.broker.store.ops import queue_name
from penstock.distribution import install_hint
from penstock.extensions.tracing import spans as names
from penstock.job import JobId
from penstock.model_spec import ModelSpec
from penstock.workers.fleet.parts import WorkerHost, WorkerPart
from penstock.workers.ipc.frames import BatchDone, Failed
from penstock.workers.slot.batch import Batch
from penstock.workers.slot.child.events import Cause
from penstock.workers.slot.context import Observer

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Link

log = structlog.get_logger(__name__)
SERVICE = "penstock-worker"
NOT_INSTALLED = "opentelemetry_not_installed"


class BatchSpans(Observer):
    """One span per batch, with links and never a parent, because each job of a batch comes from a trace of its own."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer(__name__)

    def on_ran(self, spec: ModelSpec, batch: Batch, done: BatchDone) -> None:
        failed = {job.id: out.code for job, out in zip(batch.jobs, done.outcomes, strict=False) if isinstance(out, Failed)}
        # The span fails only if every item did; the failure of a single item stands with the link to its job.
        all_failed = len(failed) == batch.size
        self._send(spec, batch, failed, error=next(iter(failed.values())) if all_failed and failed else "")

    def on_lost(self, spec: ModelSpec, cause: Cause, batch: Batch) -> None:
        self._send(spec, batch, {}, error=cause.value)

    def start(self) -> None: ...

    def drain(self) -> None: ...

    def stop(self) -> None:
        names.close(self._provider)

    def _send(self, spec: ModelSpec, batch: Batch, failed: Mapping[JobId, str], *, error: str) -> None:
        # The package is an extra: a worker without it runs untraced.
        from opentelemetry.trace import SpanKind, Status, StatusCode

        now, now_ns = time.monotonic(), time.time_ns()
        span = self._tracer.start_span(
            f"process {queue_name(spec.name)}",
            kind=SpanKind.CONSUMER,
            attributes=_attributes(spec, batch, failed),
            links=[link for job in batch.jobs if (link := _link(job, failed.get(job.id, ""))) is not None],
            # Counted back from now: if the wall clock was set back meanwhile, the span must not end before it began.
            start_time=now_ns - int((now - batch.claimed_at) * 1e9),
        )
        if error:
            span.set_attribute(names.ERROR_TYPE, error)
            span.set_status(Status(StatusCode.ERROR))
        span.end(now_ns)


def _attributes(spec: ModelSpec, batch: Batch, failed: Mapping[JobId, str]) -> dict[str, str | int]:
    return {
        names.SYSTEM: names.SYSTEM_NAME,
        names.DESTINATION: queue_name(spec.name),
        names.OPERATION_NAME: "process",
        names.OPERATION_TYPE: "process",
        names.MESSAGE_COUNT: batch.size,
        names.MODEL: spec.name,
        names.VERSION: spec.version,
        names.DEVICE: batch.device or spec.device,
        names.BATCH: batch.nonce,
        names.BATCH_REASON: batch.reason,
        names.BATCH_FAILED: len(failed),
    }


def _link(job: ClaimedJob, error: str) -> Link | None:
    from opentelemetry.trace import Link, SpanContext, TraceFlags

    context = trace_context.stored(job.trace) if job.trace else None
    if context is None:
        return None
    at = SpanContext(int(context.trace_id, 16), int(context.span_id, 16), is_remote=True, trace_flags=TraceFlags(context.flags))
    return Link(at, {names.MESSAGE_ID: str(job.id), **({names.ERROR_TYPE: error} if error else {})})


def worker_part(host: WorkerHost) -> WorkerPart:
    spans = batch_spans(os.environ)
    return WorkerPart(threads=spans, observers=spans)


def batch_spans(env: Mapping[str, str]) -> Sequence[BatchSpans]:
    """The observer that traces; none if traces are off or the package is missing."""
    if not names.asked_for(env):
        return ()
    if not names.installed():
        log.warning(NOT_INSTALLED, hint=install_hint("otel"))
        return ()
    return (BatchSpans(names.provider(SERVICE, env)),)

"""The gateway's side of a trace: one `send` span per job, child of the caller's span."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import structlog

from penstock.broker.store.ops import queue_name
from penstock.distribution import install_hint
from penstock.extensions.tracing import spans as names
from penstock.gateway.jobs.extending import JobsHost, JobsPart
from penstock.job import JobId
from penstock.trace_context import TraceContext

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

log = structlog.get_logger(__name__)
SERVICE = "penstock-gateway"
NOT_INSTALLED = "opentelemetry_not_installed"


class SendSpan:
    """One open `send` span. `trace` is the context that the job carries."""

    def __init__(self, span: Span, state: str) -> None:
        self._span = span
        at = span.get_span_context()
        self.trace = TraceContext(f"{at.trace_id:032x}", f"{at.span_id:016x}", int(at.trace_flags), state)

    def end_sent(self, job: JobId) -> None:
        self._span.set_attribute(names.MESSAGE_ID, str(job))
        self._span.end()

    def end_refused(self, kind: str) -> None:
        from opentelemetry.trace import Status, StatusCode

        self._span.set_attribute(names.ERROR_TYPE, kind)
        self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


class Tracing:
    """Opens the spans. It exists only if tracing is on."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer(__name__)

    def begin(self, model: str, version: str, parent: TraceContext | None, *, size_bytes: int) -> SendSpan:
        from opentelemetry.trace import SpanKind

        span = self._tracer.start_span(
            f"send {queue_name(model)}",
            context=_remote(parent),
            kind=SpanKind.PRODUCER,
            attributes={
                names.SYSTEM: names.SYSTEM_NAME,
                names.DESTINATION: queue_name(model),
                names.OPERATION_NAME: "send",
                names.OPERATION_TYPE: "send",
                names.MODEL: model,
                names.VERSION: version,
                names.MESSAGE_BYTES: size_bytes,
            },
        )
        return SendSpan(span, parent.state if parent else "")

    def close(self) -> None:
        names.close(self._provider)


def _remote(parent: TraceContext | None) -> Context:
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    if parent is None:
        return Context()
    flags = TraceFlags(parent.flags)
    at = SpanContext(int(parent.trace_id, 16), int(parent.span_id, 16), is_remote=True, trace_flags=flags)
    return set_span_in_context(NonRecordingSpan(at), Context())


def jobs_part(host: JobsHost) -> JobsPart:
    return JobsPart(tracer=tracing(os.environ))


def tracing(env: Mapping[str, str]) -> Tracing | None:
    """None if tracing is off or its package is missing; OpenTelemetry is then not imported."""
    if not names.asked_for(env):
        return None
    if not names.installed():
        log.warning(NOT_INSTALLED, hint=install_hint("otel"))
        return None
    return Tracing(names.provider(SERVICE, env))

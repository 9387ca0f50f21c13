"""A minimal OpenTelemetry collector: receives OTLP over HTTP and keeps every span."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse


@dataclass(frozen=True)
class Sent:
    """One span that was received. `links` holds trace id, span id and attributes of each link; ids are hexadecimal."""

    service: str
    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    links: list[tuple[str, str, dict[str, Any]]]
    seconds: float
    error: bool


@dataclass
class Collector:
    endpoint: str
    spans: list[Sent] = field(default_factory=list)

    def named(self, start: str) -> list[Sent]:
        return [span for span in self.spans if span.name.startswith(start)]

    def env(self) -> dict[str, str]:
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "100"}


@contextmanager
def collecting() -> Iterator[Collector]:
    found: list[Sent] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            found.extend(_spans(ExportTraceServiceRequest.FromString(body)))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield Collector(f"http://127.0.0.1:{server.server_address[1]}", found)
        server.shutdown()
        thread.join()


def _spans(request: ExportTraceServiceRequest) -> Iterator[Sent]:
    for resource in request.resource_spans:
        service = _plain(resource.resource.attributes)["service.name"]
        for span in (span for scope in resource.scope_spans for span in scope.spans):
            yield Sent(
                service=service,
                name=span.name,
                kind=span.kind,
                trace_id=span.trace_id.hex(),
                span_id=span.span_id.hex(),
                parent_id=span.parent_span_id.hex(),
                attributes=_plain(span.attributes),
                links=[(link.trace_id.hex(), link.span_id.hex(), _plain(link.attributes)) for link in span.links],
                seconds=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                error=span.status.code == 2,
            )


def _plain(attributes: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in attributes}

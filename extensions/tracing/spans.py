"""OpenTelemetry, if it is installed and asked for: the provider through which a process sends its spans, and their names.

The SDK's OTEL_* variables configure it. If none of them asks for traces, or the package is missing, nothing of it is imported.
The messaging conventions are still in development, so their names stand here and nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from threading import Thread
from typing import TYPE_CHECKING, Any

from penstock.distribution import install_hint
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

SYSTEM = "messaging.system"
SYSTEM_NAME = "redis"
DESTINATION = "messaging.destination.name"
OPERATION_NAME = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
MESSAGE_ID = "messaging.message.id"
MESSAGE_COUNT = "messaging.batch.message_count"
MESSAGE_BYTES = "messaging.message.body.size"
ERROR_TYPE = "error.type"
MODEL = "penstock.model"
VERSION = "penstock.version"
BATCH = "penstock.batch.id"
BATCH_REASON = "penstock.batch.reason"
BATCH_FAILED = "penstock.batch.failed"
DEVICE = "penstock.device"

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_EXPORTER = "OTEL_TRACES_EXPORTER"
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_LINKS = "OTEL_SPAN_LINK_COUNT_LIMIT"
# A batch span has one link per job; the SDK's own limit of 128 would drop links of large batches.
_MOST_LINKS = 4_096
# How long an ending process waits for its last spans: a collector that is away must not delay a restart.
FLUSH_S = 3.0


def asked_for(env: Mapping[str, str]) -> bool:
    """Whether the OTEL_* variables want traces sent somewhere."""
    if env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or env.get(_EXPORTER, "").strip().lower() == "none":
        return False
    return any(env.get(name) for name in (_EXPORTER, *_ENDPOINTS))


def installed() -> bool:
    try:
        return find_spec("opentelemetry.sdk.trace") is not None
    except ModuleNotFoundError:
        return False


def provider(service: str, env: Mapping[str, str] = os.environ) -> TracerProvider:
    """A provider that sends to the exporters that the variables name, as `service` unless OTEL_SERVICE_NAME says otherwise.

    Call it only if `asked_for` and `installed` are true. Raises `ConfigError` for an exporter that is not installed.
    """
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanLimits, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    limits = SpanLimits() if env.get(_LINKS) else SpanLimits(max_links=_MOST_LINKS)
    # `flush` closes it in time; its own hook at the end of the interpreter would wait half a minute for a collector that is
    # away.
    made = TracerProvider(resource=Resource.create(_named(service, env)), span_limits=limits, shutdown_on_exit=False)
    for name in _exporters(env):
        made.add_span_processor(BatchSpanProcessor(_exporter(name)))
    return made


def close(made: TracerProvider) -> None:
    """Send the remaining spans, for at most `FLUSH_S`."""
    ending = Thread(target=made.shutdown, name="spans", daemon=True)
    ending.start()
    ending.join(FLUSH_S)


def _named(service: str, env: Mapping[str, str]) -> dict[str, Any]:
    given = env.get("OTEL_SERVICE_NAME") or "service.name=" in env.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return {} if given else {"service.name": service}


def _exporters(env: Mapping[str, str]) -> list[str]:
    protocol = next((env[name] for name in _PROTOCOLS if env.get(name)), "http/protobuf")
    otlp = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    names = [name.strip() for name in env.get(_EXPORTER, "otlp").split(",") if name.strip()]
    return [otlp if name == "otlp" else name for name in names]


def _exporter(name: str) -> Any:
    from importlib.metadata import entry_points

    exporters = list(entry_points(group="opentelemetry_traces_exporter", name=name))
    if not exporters:
        raise ConfigError(
            f"{_EXPORTER} names {name!r}, which is not installed", hint=f"{install_hint('otel')} has OTLP over HTTP."
        )
    return exporters[0].load()()

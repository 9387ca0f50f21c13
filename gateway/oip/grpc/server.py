"""The gRPC port of one gateway process: its limits, its certificate, its services, its start and its end."""

# D91: docs/design/protocols.md
from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# gRPC's core writes lines of its own about malformed requests, with which anybody could fill the disk.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
import structlog
from grpc import aio

from penstock.errors import ConfigError
from penstock.gateway.asgi.connection import Lifetime
from penstock.gateway.asgi.negotiation import MAX_HEADER_BYTES
from penstock.gateway.auth.keys import KeyAuth, Shares
from penstock.gateway.oip.grpc.guard import MessagePlaces, RpcGuard, RpcMethod
from penstock.gateway.oip.grpc.messages import SERVICE
from penstock.gateway.oip.grpc.probes import HEALTH, REFLECTION, GrpcHealth, Reflection
from penstock.gateway.oip.grpc.service import INFER, InferenceService
from penstock.gateway.oip.grpc.streams import InferStreams
from penstock.gateway.oip.inference import Inference
from penstock.gateway.oip.repository import Repository
from penstock.gateway.options import GatewayOptions
from penstock.gateway.telemetry.health import Health
from penstock.gateway.telemetry.metrics import GatewayMetrics
from penstock.settings.tables import GatewaySettings

log = structlog.get_logger(__name__)

# A stream keeps an unfinished message in memory for as long as its client likes, so there are fewer of them than over HTTP.
MAX_STREAMS = 256
# Of one connection. A client with more calls waits, or opens another connection.
_CALLS_PER_CONNECTION = 1_024
# gRPC refuses calls with more metadata, after it has read them.
_METADATA_BYTES = 2 * MAX_HEADER_BYTES
_SECOND = 1_000
_PING_AFTER_S, _PING_TIMEOUT_S, _LEAST_PING_S, _IDLE_S = 60, 20, 10, 600


@dataclass(frozen=True, slots=True)
class GrpcParts:
    """What the gRPC port has in common with the gateway's HTTP."""

    auth: KeyAuth
    metrics: GatewayMetrics
    inference: Inference
    repository: Repository
    health: Health
    requests: Shares
    predictions: Shares


class GrpcServer:
    """`shared`: siblings bind the same port."""

    def __init__(
        self, parts: GrpcParts, options: GatewayOptions, table: GatewaySettings, lifetime: Lifetime, *, shared: bool
    ) -> None:
        self._table = table
        self._options = options
        self._shared = shared
        self._server: Any = None
        messages = MessagePlaces(max(2, options.max_upload_bytes // options.max_raw_bytes))
        self._guard = RpcGuard(parts.auth, parts.metrics, messages=messages, body_s=table.body_timeout_s)
        streams = Shares("gRPC streams", min(MAX_STREAMS, options.max_streams), setting="gateway.max_streams")
        self._service = InferenceService(
            parts.inference,
            options,
            guard=self._guard,
            repository=parts.repository,
            health=parts.health,
            requests=parts.requests,
            predictions=parts.predictions,
        )
        self._streams = InferStreams(self._service.stream_answers, self._guard)
        stream = self._guard.stream(RpcMethod("ModelStreamInfer", INFER, streams, "POST"), self._streams.serve)
        self._services = {
            SERVICE: {**self._service.handlers(), "ModelStreamInfer": stream},
            HEALTH: GrpcHealth(parts.health, lifetime, streams=streams).handlers(self._guard),
            REFLECTION: Reflection(streams=streams).handlers(self._guard),
        }

    async def start(self) -> None:
        """Raises `ConfigError` if the address cannot be bound, or for a certificate that cannot be read."""
        table = self._table
        self._server = aio.server(
            options=self._limits(),
            maximum_concurrent_rpcs=table.max_requests + table.max_predictions + min(MAX_STREAMS, table.max_streams),
        )
        handlers = [grpc.method_handlers_generic_handler(name, methods) for name, methods in self._services.items()]
        self._server.add_generic_rpc_handlers(tuple(handlers))
        host = f"[{table.host}]" if ":" in table.host else table.host
        address = f"{host}:{table.grpc_port}"
        try:
            if table.grpc_certificate is None:
                self._server.add_insecure_port(address)
            else:
                self._server.add_secure_port(address, credentials(table))
        except RuntimeError as error:
            raise ConfigError(
                f"cannot listen on {address} for gRPC: {error}", hint="Choose another port with gateway.grpc_port."
            ) from None
        await self._server.start()
        log.info("grpc_listening", address=address, tls=table.grpc_certificate is not None, pid=os.getpid())

    async def stop(self, grace_s: float) -> None:
        """Have clients go elsewhere; calls under way may end for `grace_s`."""
        if self._server is None:
            return
        self._streams.stop()
        await self._server.stop(grace_s)
        await self._guard.finish()

    def _limits(self) -> Sequence[tuple[str, int]]:
        table = self._table
        return (
            ("grpc.so_reuseport", int(self._shared)),
            ("grpc.max_receive_message_length", self._options.max_raw_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", _METADATA_BYTES),
            ("grpc.absolute_max_metadata_size", _METADATA_BYTES),
            ("grpc.max_concurrent_streams", _CALLS_PER_CONNECTION),
            ("grpc.max_allowed_incoming_connections", table.max_connections),
            ("grpc.server_handshake_timeout_ms", round(table.head_timeout_s * _SECOND)),
            # Whoever has gone without a word is noticed, and whoever asks too often whether we are there is hung up on.
            ("grpc.keepalive_time_ms", _PING_AFTER_S * _SECOND),
            ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_S * _SECOND),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", _LEAST_PING_S * _SECOND),
            ("grpc.http2.max_ping_strikes", 4),
            ("grpc.max_connection_idle_ms", _IDLE_S * _SECOND),
            # How much of a message is taken in before it is read.
            ("grpc.http2.bdp_probe", 0),
        )


def credentials(table: GatewaySettings) -> Any:
    """Raises `ConfigError` if the files cannot be read."""
    assert table.grpc_certificate is not None
    assert table.grpc_key is not None
    chain = _read(table.grpc_certificate, "grpc_certificate")
    return grpc.ssl_server_credentials([(_read(table.grpc_key, "grpc_key"), chain)])


def _read(path: Path, setting: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint=f"gateway.{setting} names a PEM file.") from None

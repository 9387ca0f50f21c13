"""One gRPC port of a gateway process: its limits, its certificate, its start and its end."""

# D91: docs/design/protocols.md
from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# gRPC's core logs malformed requests, and any client could fill the disk with them.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
import structlog
from grpc import aio

from penstock.errors import ConfigError
from penstock.gateway.asgi.negotiation import MAX_HEADER_BYTES
from penstock.gateway.auth.keys import Shares
from penstock.gateway.rpc.guard import RpcGuard
from penstock.settings.gateway import GatewaySettings

log = structlog.get_logger(__name__)

# A client can keep a stream's unfinished message in memory, so fewer streams are allowed than over HTTP.
MAX_STREAMS = 256
# Calls per connection. A client with more calls waits, or opens another connection.
_CALLS_PER_CONNECTION = 1_024
# gRPC refuses calls with more metadata, after reading it.
_METADATA_BYTES = 2 * MAX_HEADER_BYTES
_SECOND = 1_000
_PING_AFTER_S, _PING_TIMEOUT_S, _LEAST_PING_S, _IDLE_S = 60, 20, 10, 600
Services = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class RpcAddress:
    """`setting` is what sets the port."""

    host: str
    port: int
    setting: str

    def __str__(self) -> str:
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class RpcShared:
    """The common parts of a process's gRPC ports. `shared`: siblings bind the same ports."""

    guard: RpcGuard
    table: GatewaySettings
    streams: Shares
    shared: bool


def stream_permits(table: GatewaySettings) -> Shares:
    return Shares("gRPC streams", min(MAX_STREAMS, table.max_streams), setting="gateway.max_streams")


class RpcPort:
    """Serves these services. `on_stop` is called before the grace time of calls begins."""

    def __init__(
        self, address: RpcAddress, services: Services, shared: RpcShared, *, on_stop: Callable[[], None] = lambda: None
    ) -> None:
        self._address = address
        self._services = services
        self._shared = shared
        self._on_stop = on_stop
        self._server: Any = None

    async def start(self) -> None:
        """Raises `ConfigError` if the address cannot be bound or a certificate cannot be read."""
        table = self._shared.table
        self._server = aio.server(
            options=self._limits(),
            maximum_concurrent_rpcs=table.max_requests + table.max_predictions + min(MAX_STREAMS, table.max_streams),
        )
        handlers = [grpc.method_handlers_generic_handler(name, methods) for name, methods in self._services.items()]
        self._server.add_generic_rpc_handlers(tuple(handlers))
        address, setting = str(self._address), self._address.setting
        try:
            if table.grpc_certificate is None:
                self._server.add_insecure_port(address)
            else:
                self._server.add_secure_port(address, credentials(table))
        except RuntimeError as error:
            raise ConfigError(
                f"cannot listen on {address} for gRPC: {error}", hint=f"Choose another port with {setting}."
            ) from None
        await self._server.start()
        log.info("grpc_listening", address=address, tls=table.grpc_certificate is not None, pid=os.getpid())

    async def stop(self, grace_s: float) -> None:
        """Send clients elsewhere; calls under way have `grace_s` to end."""
        if self._server is None:
            return
        self._on_stop()
        await self._server.stop(grace_s)
        await self._shared.guard.finish()

    def _limits(self) -> Sequence[tuple[str, int]]:
        table = self._shared.table
        return (
            ("grpc.so_reuseport", int(self._shared.shared)),
            ("grpc.max_receive_message_length", self._shared.table.max_raw_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", _METADATA_BYTES),
            ("grpc.absolute_max_metadata_size", _METADATA_BYTES),
            ("grpc.max_concurrent_streams", _CALLS_PER_CONNECTION),
            ("grpc.max_allowed_incoming_connections", table.max_connections),
            ("grpc.server_handshake_timeout_ms", round(table.head_timeout_s * _SECOND)),
            # Clients that vanished are detected, and a client that pings too often is disconnected.
            ("grpc.keepalive_time_ms", _PING_AFTER_S * _SECOND),
            ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_S * _SECOND),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", _LEAST_PING_S * _SECOND),
            ("grpc.http2.max_ping_strikes", 4),
            ("grpc.max_connection_idle_ms", _IDLE_S * _SECOND),
            # The bytes of a message that are received before it is read.
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

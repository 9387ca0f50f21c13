"""Serves a gateway by its settings, as one process or as several on one port."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from types import FrameType

import structlog

from penstock.broker.blobs.opening import open_blobs
from penstock.broker.protocol import membership
from penstock.broker.store.aio import AsyncStore
from penstock.distribution import install_hint
from penstock.errors import ConfigError
from penstock.gateway.app import Gateway
from penstock.gateway.asgi.connection import Lifetime
from penstock.gateway.asgi.listening import bind, bind_aside
from penstock.gateway.asgi.server import GatewayServer, ListeningSocket, ServerBeside
from penstock.gateway.asgi.wire import MAX_BODIES_BYTES, BodyMemory
from penstock.gateway.telemetry.metrics_endpoint import MetricsPort
from penstock.process_lifetime import PARENT_VARIABLE
from penstock.settings.keys import loopback_names
from penstock.settings.tables import Settings

log = structlog.get_logger(__name__)

_M_MMAP_THRESHOLD = -3

RESTART_S = 1.0
POLL_S = 0.2
SHARED = "--shared-port"


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code. Raises `ConfigError` if the settings do not allow a start."""
    settings.access_rule()
    if settings.gateway.processes > 1:
        return SideBySide(settings).run()
    return serve_one(settings, shared=False)


def serve_one(settings: Settings, *, shared: bool) -> int:
    """Serve with one process. `shared`: siblings bind the same port, and the kernel spreads connections over them."""
    membership.enter("gateway")
    lifetime = Lifetime()
    open_store = partial(AsyncStore, settings.job_store_url, replicated=settings.store.durability == "replicated")
    store, blobs = open_store(), open_blobs(settings.blob_location)
    gateway = Gateway(settings, store=store, blobs=blobs, lifetime=lifetime, shares_port=shared)
    table = settings.gateway
    with ExitStack() as sockets:
        listener = sockets.enter_context(bind(table.host, table.port, shared=shared))
        asides = listeners_beside(gateway, settings, shared=shared)
        for aside in asides:
            sockets.enter_context(aside.socket)
        server = GatewayServer(
            gateway,
            settings,
            lifetime,
            access=settings.access_rule(),
            asides=asides,
            wake=store.wake_waiters,
            beside=grpc_ports(gateway, settings, shared=shared),
        )
        # The server handles both signals from its start on, and raises them again once it has drained. Until then this handler
        # keeps a signal from getting lost: the server then ends right after its start.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: setattr(server, "should_exit", True))
        for part in gateway.parts.extensions:
            if part.beside is not None:
                sockets.enter_context(part.beside(open_store))
        gateway.services.key_beat.on_revoked.append(server.end_requests_of)
        _settle_memory()
        server.run(sockets=[listener])
    return 0


def listeners_beside(gateway: Gateway, settings: Settings, *, shared: bool) -> list[ListeningSocket]:
    """The private port of metrics, and the ports of extensions, if the settings name them. Raises `ConfigError`."""
    table, listeners = settings.gateway, list[ListeningSocket]()
    private = bind_aside(table)
    if private is not None:
        metrics = MetricsPort(gateway.parts.scrape_privately, hosts=loopback_names(table.metrics_host))
        listeners.append(ListeningSocket(private, metrics, "metrics_listening", path="/metrics"))
    for part in gateway.parts.extensions:
        listeners += part.asides(settings, shared) if part.asides is not None else ()
    return listeners


def grpc_ports(gateway: Gateway, settings: Settings, *, shared: bool) -> list[ServerBeside]:
    """The gRPC ports that the settings name. Raises `ConfigError` if the packages for them are missing."""
    services, rules = gateway.services, gateway.parts.rules
    parts = [part.rpc for part in gateway.parts.extensions if part.rpc is not None]
    wanted = [setting for part in parts for setting, port in part.ports_in(settings).items() if port]
    if not wanted:
        return []
    _need_grpc(wanted[0])
    # Imported here: gRPC takes some megabytes, and few gateways serve it.
    from penstock.gateway.rpc.guard import RpcGuard
    from penstock.gateway.rpc.server import RpcShared, stream_permits

    table = settings.gateway
    messages, body_s = BodyMemory(max(2, MAX_BODIES_BYTES // table.max_raw_bytes)), table.body_timeout_s
    guard = RpcGuard(services.auth, rules, services.metrics, messages=messages, bodies=services.uploads, body_s=body_s)
    services.key_beat.on_revoked.append(guard.end_calls_of)
    common = RpcShared(guard, table, stream_permits(table), shared)
    return [port for part in parts for port in part.ports(common)]


def _need_grpc(setting: str) -> None:
    """Raises `ConfigError` if a package is missing that this setting needs."""
    missing = [name for name in ("grpc", "grpc_health", "grpc_reflection") if find_spec(name) is None]
    if missing:
        raise ConfigError(f"{setting} is set, and {' and '.join(missing)} cannot be imported", hint=install_hint("grpc"))


def _settle_memory() -> None:
    """Exclude loaded modules, which stay until the end, from garbage collection, and let it run seldom.

    Requests leave few cycles. By default Python would collect every 700 objects, several times per batch of responses.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    # By default glibc raises this size with each large block that is freed, up to 32 MiB, and keeps freed blocks below it.
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_M_MMAP_THRESHOLD, 1 << 20)


class SideBySide:
    """The parent of several gateway processes on one port: starts them, replaces one that dies, forwards a stop signal."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._children: list[subprocess.Popen[bytes]] = []
        self._stopping = False
        self._signalled: set[int] = set()

    def run(self) -> int:
        table = self._settings.gateway
        # Bound but not listening: this socket turns port 0 into a number for all children and accepts no connections.
        with bind(table.host, table.port, shared=True) as reserved:
            port = reserved.getsockname()[1]
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._stop)
            environments = [child_environment(self._settings, port=port, number=number) for number in range(table.processes)]
            self._children = [_spawn(environment) for environment in environments]
            while any(self._is_needed(child) for child in self._children):
                time.sleep(POLL_S)
                self._children = [self._replaced_if_dead(*pair) for pair in zip(self._children, environments, strict=True)]
                if self._stopping:
                    self._forward_stop()  # to children that were being started when the signal came
        return 0

    def _is_needed(self, child: subprocess.Popen[bytes]) -> bool:
        return child.poll() is None or not self._stopping

    def _replaced_if_dead(self, child: subprocess.Popen[bytes], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        if child.poll() is None or self._stopping:
            return child
        log.error("gateway_process_died", pid=child.pid, code=child.returncode, restart_in_s=RESTART_S)
        time.sleep(RESTART_S)
        return _spawn(environment)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True
        self._forward_stop()

    def _forward_stop(self) -> None:
        for child in self._children:
            if child.poll() is None and child.pid not in self._signalled:
                self._signalled.add(child.pid)
                child.send_signal(signal.SIGTERM)


def _spawn(environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "penstock.gateway", SHARED], env=environment)


def child_environment(settings: Settings, *, port: int, number: int = 0) -> dict[str, str]:
    """This process's environment, for one process of several.

    All children share the API's port; each serves its metrics on a port of its own, counted up from `metrics_port`.
    """
    metrics_port = settings.gateway.metrics_port
    own = {
        "PENSTOCK_GATEWAY__PROCESSES": 1,
        "PENSTOCK_GATEWAY__PORT": port,
        "PENSTOCK_GATEWAY__METRICS_PORT": metrics_port + number if metrics_port else 0,
        PARENT_VARIABLE: 1,
    }
    return {**os.environ, **{name: str(value) for name, value in own.items()}}

"""The gateway's entry point, `python -m penstock.gateway.server`: settings from the environment, processes side by side."""

from __future__ import annotations

import asyncio
import ctypes
import ipaddress
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from types import FrameType
from typing import Any

import structlog
import uvicorn

from penstock.broker.async_store import AsyncStore
from penstock.broker.blobs import LocalBlobs
from penstock.errors import ConfigError
from penstock.gateway.app import Gateway
from penstock.gateway.guard import GuardedProtocol
from penstock.gateway.lifetime import Lifetime
from penstock.gateway.options import GatewayOptions
from penstock.settings import Settings

log = structlog.get_logger(__name__)

KEEP_ALIVE_S = 15
BACKLOG = 2_048
RESTART_S = 1.0
POLL_S = 0.2
SHARED = "--shared-port"
_PR_SET_PDEATHSIG = 1


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; the exit code. Raises `ConfigError` when it cannot start as told."""
    if settings.gateway.processes > 1:
        return SideBySide(settings).run()
    return serve_one(settings, shared=False)


def serve_one(settings: Settings, *, shared: bool) -> int:
    """One process. `shared`: its port may be bound by siblings too, and the kernel spreads connections over them."""
    lifetime = Lifetime()
    store, blobs = AsyncStore(store_url(settings)), LocalBlobs(settings.blob_dir)
    gateway = Gateway(gateway_options(settings), store=store, blobs=blobs, lifetime=lifetime)
    with bind(settings.gateway.host, settings.gateway.port, shared=shared) as listener:
        server = GatewayServer(_server_config(gateway, settings), lifetime, grace_s=settings.worker.grace_s)
        # The server raises the signal again once it has drained; a drained end is a good end.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        server.run(sockets=[listener])
    return 0


def gateway_options(settings: Settings) -> GatewayOptions:
    table = settings.gateway
    if not is_loopback(table.host):
        raise ConfigError(
            f"gateway.host is {table.host!r}: beyond loopback a gateway needs access keys, which do not exist yet",
            hint="Set gateway.host to 127.0.0.1 and put an authenticating proxy in front.",
        )
    return GatewayOptions(
        models=tuple(settings.model_infos()),
        hosts=frozenset({"localhost", "127.0.0.1", "[::1]", table.host.lower()}),
        max_json_bytes=table.max_json_bytes,
        max_raw_bytes=table.max_raw_bytes,
        max_json_depth=table.max_json_depth,
        inline_input_bytes=settings.store.inline_input_bytes,
        sync_timeout_s=table.sync_timeout_s,
    )


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def store_url(settings: Settings) -> str:
    if settings.store.url is None:
        raise ConfigError(
            "no job store is named", hint="Set PENSTOCK_REDIS_URL (or store.url), or run `penstock up`, which starts one."
        )
    return settings.store.url


def bind(host: str, port: int, *, shared: bool) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}",
            hint="Choose another with gateway.port (PENSTOCK_GATEWAY__PORT).",
        ) from error
    return listener


class GatewayServer(uvicorn.Server):
    """The HTTP server, with readiness turned off first on a stop signal and slow clients hung up on once a second."""

    def __init__(self, config: uvicorn.Config, lifetime: Lifetime, *, grace_s: float) -> None:
        super().__init__(config)
        self._lifetime = lifetime
        self._grace_s = grace_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        for listener in sockets or ():
            host, port = listener.getsockname()[:2]
            log.info("gateway_listening", url=f"http://{f'[{host}]' if ':' in host else host}:{port}", pid=os.getpid())

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._lifetime.drain(self._grace_s)
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, GuardedProtocol):
                    connection.enforce(now)
        return await super().on_tick(counter)


class SideBySide:
    """The parent of several gateway processes on one port: starts them, replaces one that dies, passes a stop signal on."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._children: list[subprocess.Popen[bytes]] = []
        self._stopping = False

    def run(self) -> int:
        table = self._settings.gateway
        # Bound but not listening: it settles port 0 and takes no connection.
        with bind(table.host, table.port, shared=True) as reserved:
            environment = child_environment(self._settings, port=reserved.getsockname()[1])
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._stop)
            self._children = [_spawn(environment) for _ in range(table.processes)]
            while self._children:
                time.sleep(POLL_S)
                self._children = [self._alive(child, environment) for child in self._children if self._wanted(child)]
        return 0

    def _wanted(self, child: subprocess.Popen[bytes]) -> bool:
        return child.poll() is None or not self._stopping

    def _alive(self, child: subprocess.Popen[bytes], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        if child.poll() is None:
            return child
        log.error("gateway_process_died", pid=child.pid, code=child.returncode, restart_in_s=RESTART_S)
        time.sleep(RESTART_S)
        return _spawn(environment)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True
        for child in self._children:
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)


def _spawn(environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "penstock.gateway.server", SHARED], env=environment)


def child_environment(settings: Settings, *, port: int) -> dict[str, str]:
    """This process's environment with the settings in force written out, so that flags reach the children too."""
    told: dict[str, Any] = {
        **{f"PENSTOCK_GATEWAY__{name.upper()}": value for name, value in settings.gateway},
        **{f"PENSTOCK_STORE__{name.upper()}": value for name, value in settings.store},
        "PENSTOCK_GATEWAY__PROCESSES": 1,
        "PENSTOCK_GATEWAY__PORT": port,
        "PENSTOCK_DIE_WITH_PARENT": 1,
    }
    return {**os.environ, **{name: str(value) for name, value in told.items() if value is not None}}


def _server_config(gateway: Gateway, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        gateway,
        # By name and class: without the wheels this must fail, not fall back to a parser that allows smuggling.
        http=GuardedProtocol,
        loop="uvloop",
        ws="none",
        interface="asgi3",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, int(settings.worker.grace_s)),
    )


def die_with_parent() -> None:
    """Have the kernel send SIGTERM when the parent dies (Linux); elsewhere the parent's own supervision must do."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before the kernel was told
        sys.exit(0)


def configure_logs() -> None:
    """One JSON object per line on stdout, pretty on a terminal; no payloads, no local variables."""
    renderer: Any = structlog.dev.ConsoleRenderer() if sys.stdout.isatty() else structlog.processors.JSONRenderer()
    before: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*before, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stdout),
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=before, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer]
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)


def main(arguments: list[str]) -> int:
    configure_logs()
    if os.environ.get("PENSTOCK_DIE_WITH_PARENT") == "1":
        die_with_parent()
    try:
        settings = Settings.load()
        return serve_one(settings, shared=True) if SHARED in arguments else serve(settings)
    except ConfigError as error:
        log.error("gateway_cannot_start", reason=error.message, hint=error.hint)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

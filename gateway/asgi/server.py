"""The HTTP server of one gateway process: its start and its end, its sockets, and the private port beside it."""

from __future__ import annotations

import asyncio
import math
import os
import resource
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

import structlog
import uvicorn

from penstock.gateway.asgi.connection import ANSWER_MARGIN_S, NEWCOMER_S, GuardedProtocol, Lifetime, guarded
from penstock.gateway.asgi.door import Door
from penstock.gateway.asgi.listening import HANDSHAKE_S, are_queued, turn_newcomers_away, url_of
from penstock.settings.tables import Settings

log = structlog.get_logger(__name__)

BACKLOG = 2_048
# File descriptors that a gateway needs besides its callers' connections: the store, blobs being read, logs.
OTHER_FILES = 256
# A stopping gateway checks this often whether its clients have left, and assumes so after this time without a new one.
LOOK_S, QUIET_S = 0.02, 0.5


@dataclass(frozen=True, slots=True)
class ListeningSocket:
    """A bound socket and the ASGI application behind it. `event` is logged once it listens, with the URL, which ends with
    `path`, and with its own rule of access, if it has one.
    """

    socket: socket.socket
    app: Any
    event: str
    path: str = ""
    access: str = ""


class ServerBeside(Protocol):
    """A server of another protocol in the same loop. `start` raises `ConfigError` if its address cannot be bound; `stop` gives
    calls `grace_s` to end, then ends them.
    """

    async def start(self) -> None: ...

    async def stop(self, grace_s: float) -> None: ...


class GatewayServer(uvicorn.Server):
    """On a stop signal it first turns readiness off. Once a second it disconnects slow clients.

    `asides` and `beside` are served too, by the same loop; `access` is the rule of access that the start-up line prints. `wake`
    wakes every waiting request, which then checks whether it may continue to wait.
    """

    def __init__(
        self,
        app: Any,
        settings: Settings,
        lifetime: Lifetime,
        *,
        access: str,
        asides: Sequence[ListeningSocket],
        wake: Callable[[], None],
        beside: Sequence[ServerBeside] = (),
    ) -> None:
        super().__init__(_config(app, settings, lifetime))
        self._wake = wake
        self._settings = settings
        self._lifetime = lifetime
        self._access = access
        self._asides = asides
        self._beside = beside

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        for listener in sockets or ():
            log.info("gateway_listening", url=url_of(listener), access=self._access, pid=os.getpid())
        for aside in self._asides:
            await self._open_aside(aside)
            rule = {"access": aside.access} if aside.access else {}
            log.info(aside.event, url=f"{url_of(aside.socket)}{aside.path}", **rule, pid=os.getpid())
        for server in self._beside:
            await server.start()

    async def _open_aside(self, port: ListeningSocket) -> None:
        config = _config(port.app, self._settings, self._lifetime, lifespan="off")
        config.load()
        server = await asyncio.get_running_loop().create_server(
            lambda: config.http_protocol_class(config, self.server_state, {}),  # type: ignore[call-arg]
            sock=port.socket,
            backlog=BACKLOG,
        )
        # In this list, it ends with the other servers.
        self.servers.append(server)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._lifetime.drain(self._settings.worker.grace_s)
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._wake()
        await self._let_clients_leave([*(sockets or ()), *(aside.socket for aside in self._asides)])
        left_s = self._lifetime.cut_at - time.monotonic()
        last_call = asyncio.get_running_loop().call_later(max(0.0, left_s), self._wake) if math.isfinite(left_s) else None
        if self._beside:
            grace_s = max(0.0, left_s) + ANSWER_MARGIN_S / 2 if math.isfinite(left_s) else 0.0
            await asyncio.gather(*(server.stop(grace_s) for server in self._beside))
            left_s = self._lifetime.cut_at - time.monotonic()
        if math.isfinite(left_s):
            self.config.timeout_graceful_shutdown = max(1, math.ceil(left_s + ANSWER_MARGIN_S))
        await super().shutdown(sockets)
        if last_call is not None:
            last_call.cancel()

    async def _let_clients_leave(self, listeners: Sequence[socket.socket]) -> None:
        """Keep serving, with `Connection: close` in every response, until the clients have left, or for `drain_s` (D57).

        Closing an idle connection may lose a request that its client has just sent; `Connection: close` prevents that.
        """
        for connection in self._guarded():
            connection.announce_end()
        loop = asyncio.get_running_loop()
        until = loop.time() + min(self._settings.gateway.drain_s, self._settings.worker.grace_s / 2)
        seen_at = loop.time() if self.server_state.connections else -math.inf
        while loop.time() < until and loop.time() - seen_at < QUIET_S and not self.force_exit:
            await asyncio.sleep(LOOK_S)
            seen_at = loop.time() if self.server_state.connections else seen_at
        await self._accept_the_last(listeners)
        for server in self.servers:
            server.close()
        for _ in range(math.ceil(NEWCOMER_S / LOOK_S)):
            # Clients that connected at the last moment are still answered.
            if self.force_exit or not any(connection.is_newcomer(loop.time()) for connection in self._guarded()):
                return
            await asyncio.sleep(LOOK_S)

    async def _accept_the_last(self, listeners: Sequence[socket.socket]) -> None:
        """Accept the connections in the kernel's queues of these listeners, which the loop still reads."""
        if turn_newcomers_away(listeners):
            await asyncio.sleep(HANDSHAKE_S)
        for _ in range(math.ceil(NEWCOMER_S / LOOK_S)):
            if self.force_exit or not are_queued(listeners):
                return
            await asyncio.sleep(LOOK_S)

    def end_requests_of(self, keys: set[str]) -> None:
        """Disconnect what waits or streams for these keys, which were revoked."""
        for connection in self._guarded():
            if connection.client_connection.key_id in keys:
                connection.break_off()

    def _guarded(self) -> list[GuardedProtocol]:
        return [connection for connection in self.server_state.connections if isinstance(connection, GuardedProtocol)]

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:
            now = asyncio.get_running_loop().time()
            for connection in self._guarded():
                connection.enforce(now)
        return await super().on_tick(counter)


def affordable_connections(wanted: int) -> int:
    """The number of connections: as wanted, at most this process's open files. Raises the soft limit as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY or wanted + OTHER_FILES <= hard:
        return wanted
    allowed = max(1, hard - OTHER_FILES)
    log.warning("connections_limited_by_open_files", wanted=wanted, connections=allowed, open_files=hard)
    return allowed


def _config(app: Any, settings: Settings, lifetime: Lifetime, *, lifespan: str = "on") -> uvicorn.Config:
    table = settings.gateway
    return uvicorn.Config(
        app,
        # Parser and loop are named: without their wheels the start must fail, because the fallback parser allows
        # request smuggling.
        http=guarded(
            head_s=table.head_timeout_s,
            body_s=table.body_timeout_s,
            door=Door(
                most=affordable_connections(table.max_connections),
                per_address=table.max_connections_per_address,
                exempt=table.proxies,
            ),
            lifetime=lifetime,
        ),
        loop="uvloop",
        ws="none",
        interface="asgi3",
        lifespan=lifespan,  # type: ignore[arg-type]
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=table.idle_timeout_s,  # type: ignore[arg-type]
        timeout_graceful_shutdown=max(1, int(settings.worker.grace_s)),
    )

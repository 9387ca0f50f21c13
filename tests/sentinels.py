"""A primary, its replicas, and three sentinels that promote a replica once the primary is gone: real processes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import redis

from penstock.broker.server.embedded import find_server
from penstock.loadtest.stack import free_port
from tests.eventually import eventually
from tests.faults.server import Server

NAME = "main"
_DOWN_AFTER_MS = 500
_FAILOVER_TIMEOUT_MS = 1_000


class SentinelGroup:
    """`servers`: the first is the primary at the start."""

    def __init__(self, servers: list[Server], ports: list[int]) -> None:
        self.servers, self._ports = servers, ports

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        return f"redis+sentinel://{hosts}/{NAME}"

    def primary(self) -> Server:
        """The server that the sentinels name."""
        with redis.Redis(port=self._ports[0]) as sentinel:
            found: Any = sentinel.sentinel_get_master_addr_by_name(NAME)
            [_, port] = found
        return next(server for server in self.servers if server.port == port)

    def await_promotion(self, old: Server) -> Server:
        """Wait until another server than `old` is the primary."""
        eventually(lambda: self.primary() is not old, timeout_s=30.0)
        return self.primary()

    def come_back_empty(self, server: Server, folder: Path) -> None:
        """Start a server again that was lost with its disk, as a replica, and wait until a failover would succeed again."""
        server.folder = folder
        server.follow(self.primary().port)
        server.start()
        self.await_replicated()

    def await_replicated(self) -> None:
        """Wait until all replicas write what the primary sends into their logs, and the sentinels know them.

        Sentinels that lose the primary before may promote a replica that still copies its data.
        """
        others = len(self.servers) - 1
        with self.primary().client() as client:
            eventually(
                lambda: client.set("here", "1") and client.execute_command("WAITAOF", 1, others, 100) == [1, others],
                timeout_s=20.0,
            )
        for port in self._ports:
            with redis.Redis(port=port) as sentinel:
                eventually(partial(_is_watched, sentinel), timeout_s=30.0)


def _is_watched(sentinel: redis.Redis) -> bool:
    state: Any = sentinel.sentinel_master(NAME)
    found: Any = sentinel.sentinel_slaves(NAME)
    replicas = [one for one in found if not one["is_sdown"]]
    return len(replicas) > 1 and state["num-other-sentinels"] == 2 and not state["is_sdown"]


@contextmanager
def sentinel_group(folder: Path) -> Iterator[SentinelGroup]:
    """Yield the group once a failover would succeed."""
    with ExitStack() as stack:
        primary = Server(folder / "one", extra={"repl-diskless-sync-delay": "0"})
        follows = {"repl-diskless-sync-delay": "0", "replicaof": f"127.0.0.1 {primary.port}"}
        servers = [primary, *(Server(folder / name, extra=follows) for name in ("two", "three"))]
        for server in servers:
            stack.callback(server.stop)
            server.start()
        ports = [free_port() for _ in range(3)]
        for number, port in enumerate(ports):
            process = _sentinel(folder / f"sentinel-{number}", port, primary.port)
            stack.callback(_end, process)
        group = SentinelGroup(servers, ports)
        eventually(lambda: all(_answers(port) for port in ports), timeout_s=20.0)
        group.await_replicated()
        yield group


def _sentinel(folder: Path, port: int, primary: int) -> subprocess.Popen[bytes]:
    folder.mkdir()
    lines = [
        f"port {port}",
        "bind 127.0.0.1",
        f"dir {folder}",
        f"sentinel monitor {NAME} 127.0.0.1 {primary} 2",
        f"sentinel down-after-milliseconds {NAME} {_DOWN_AFTER_MS}",
        f"sentinel failover-timeout {NAME} {_FAILOVER_TIMEOUT_MS}",
    ]
    path = folder / "sentinel.conf"
    path.write_text("\n".join(lines) + "\n")
    with (folder / "log").open("ab") as log:
        return subprocess.Popen([str(find_server()), str(path), "--sentinel"], stdout=log, stderr=log, start_new_session=True)


def _answers(port: int) -> bool:
    try:
        with redis.Redis(port=port) as sentinel:
            return bool(sentinel.ping())
    except redis.ConnectionError:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()

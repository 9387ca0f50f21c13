"""A primary, its replicas, and three sentinels that promote a replica once the primary is gone: real processes."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import redis

from penstock.embedded.server import find_server
from penstock.loadtest.stack import free_port
from tests.eventually import eventually
from tests.faults.proxy import Proxy
from tests.faults.server import Server
from tests.hosts import LOOPBACK, Host

NAME = "main"
_DOWN_AFTER_MS = 500
_FAILOVER_TIMEOUT_MS = 1_000


class SentinelGroup:
    """`servers`: the first is the primary at the start. The sentinels listen at `address`, and reach the last server over
    `link` alone; the primary and its clients do not need it.
    """

    def __init__(self, servers: list[Server], address: str, sentinels: dict[int, subprocess.Popen[bytes]], link: Proxy) -> None:
        self.servers, self._address, self.link = servers, address, link
        self._ports, self._processes = list(sentinels), list(sentinels.values())

    @property
    def url(self) -> str:
        hosts = ",".join(f"{self._address}:{port}" for port in self._ports)
        return f"redis+sentinel://{hosts}/{NAME}"

    def primary(self) -> Server:
        """The server that the sentinels name."""
        with redis.Redis(self._address, self._ports[0]) as sentinel:
            found: Any = sentinel.sentinel_get_master_addr_by_name(NAME)
            [_, port] = found
        return self.servers[-1] if port == self.link.port else next(one for one in self.servers if one.port == port)

    def depose(self, old: Server) -> Server:
        """Hold the primary until the sentinels have begun to replace it, and no longer: it is slow, and goes on as a primary
        until they tell it, which takes them ten seconds. Returns the new one.
        """
        old.signal(signal.SIGSTOP)
        try:
            eventually(lambda: any(self._replaces(port, old) for port in self._ports), timeout_s=30.0)
        finally:
            old.signal(signal.SIGCONT)
        return self.await_promotion(old)

    def _replaces(self, port: int, old: Server) -> bool:
        with redis.Redis(self._address, port) as sentinel:
            state: Any = sentinel.sentinel_master(NAME)
        return "failover_in_progress" in state["flags"] or state["port"] != old.port

    def sentinels(self) -> list[redis.Redis]:
        """A client of each."""
        return [redis.Redis(self._address, port) for port in self._ports]

    @contextmanager
    def silent(self, count: int) -> Iterator[None]:
        """So many sentinels answer nothing within the block."""
        for process in self._processes[:count]:
            process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for process in self._processes[:count]:
                process.send_signal(signal.SIGCONT)

    def has_lost_the_last(self) -> bool:
        """Whether all sentinels count the last server as away."""
        with ExitStack() as stack:
            asked = [stack.enter_context(sentinel) for sentinel in self.sentinels()]
            found: list[Any] = [sentinel.sentinel_slaves(NAME) for sentinel in asked]
        return all(one["is_sdown"] for replicas in found for one in replicas if one["port"] == self.link.port)

    def follows(self, old: Server) -> bool:
        """Whether this server is a replica now."""
        with old.client() as client:
            found: Any = client.info("replication")
        return bool(found["role"] == "slave")

    def await_promotion(self, old: Server) -> Server:
        """Wait until another server than `old` is the primary."""
        eventually(lambda: self.primary() is not old, timeout_s=30.0)
        return self.primary()

    def come_back_empty(self, server: Server, folder: Path) -> None:
        """Start a server again that was lost with its disk, as a replica, and wait until a failover would succeed again."""
        server.folder = folder
        server.follow(self.primary())
        server.start()
        self.await_replicated()

    def await_replicated(self) -> None:
        """Wait until all replicas write what the primary sends into their logs, and the sentinels know them.

        Sentinels that lose the primary before may promote a replica that still copies its data.
        """
        eventually(self._is_replicated, timeout_s=20.0)
        for port in self._ports:
            with redis.Redis(self._address, port) as sentinel:
                eventually(partial(_is_watched, sentinel), timeout_s=30.0)

    def _is_replicated(self) -> bool:
        others = len(self.servers) - 1
        try:
            # The primary may be another one by now: sentinels also replace one that did not answer for a moment.
            with self.primary().client() as client:
                return bool(client.set("here", "1") and client.execute_command("WAITAOF", 1, others, 100) == [1, others])
        except redis.RedisError:
            return False


def _is_watched(sentinel: redis.Redis) -> bool:
    state: Any = sentinel.sentinel_master(NAME)
    found: Any = sentinel.sentinel_slaves(NAME)
    replicas = [one for one in found if not one["is_sdown"]]
    return len(replicas) > 1 and state["num-other-sentinels"] == 2 and not state["is_sdown"]


@contextmanager
def sentinel_group(
    folder: Path, hosts: Sequence[Host] = (LOOPBACK, LOOPBACK, LOOPBACK), address: str = LOOPBACK.address
) -> Iterator[SentinelGroup]:
    """Yield the group once a failover would succeed. Each server has a host; the sentinels are here, at `address`."""
    with ExitStack() as stack:
        at_once = {"repl-diskless-sync-delay": "0"}
        names = zip(("one", "two", "three"), hosts, strict=True)
        servers = [Server(folder / name, extra=at_once, host=host) for name, host in names]
        link = Proxy(servers[-1].port)
        if hosts[-1] == LOOPBACK:
            link.start()
            stack.callback(link.stop)
            servers[-1].announce(link.port)
        for server in servers:
            stack.callback(server.stop)
            if server is not servers[0]:
                server.follow(servers[0])
            server.start()
        ports = [free_port() for _ in range(3)]
        sentinels: dict[int, subprocess.Popen[bytes]] = {}
        for number, port in enumerate(ports):
            sentinels[port] = _sentinel(folder / f"sentinel-{number}", address, port, servers[0])
            stack.callback(_end, sentinels[port])
        group = SentinelGroup(servers, address, sentinels, link)
        eventually(lambda: all(_answers(address, port) for port in ports), timeout_s=20.0)
        group.await_replicated()
        yield group


def _sentinel(folder: Path, address: str, port: int, primary: Server) -> subprocess.Popen[bytes]:
    folder.mkdir()
    lines = [
        f"port {port}",
        f"bind {address}",
        f"protected-mode {'yes' if address == LOOPBACK.address else 'no'}",
        f"dir {folder}",
        f"sentinel monitor {NAME} {primary.host.address} {primary.port} 2",
        f"sentinel down-after-milliseconds {NAME} {_DOWN_AFTER_MS}",
        f"sentinel failover-timeout {NAME} {_FAILOVER_TIMEOUT_MS}",
    ]
    path = folder / "sentinel.conf"
    path.write_text("\n".join(lines) + "\n")
    with (folder / "log").open("ab") as log:
        return subprocess.Popen([str(find_server()), str(path), "--sentinel"], stdout=log, stderr=log, start_new_session=True)


def _answers(address: str, port: int) -> bool:
    try:
        with redis.Redis(address, port) as sentinel:
            return bool(sentinel.ping())
    except redis.ConnectionError:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()

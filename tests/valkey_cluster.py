"""A cluster of primaries with a replica each, or without: real processes, which a test can kill and whose slots it can move."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
from redis.crc import key_slot

from penstock.loadtest.stack import free_port
from tests.eventually import eventually
from tests.faults.server import Server, ServerEnded
from tests.hosts import LOOPBACK, Host

_SLOTS = 16_384
_PRIMARIES = 3
_TRIES = 3
# A primary that is away for so long is replaced by its replica.
NODE_TIMEOUT_MS = 1_000


class Cluster:
    """`servers`: those that begin as primaries, then the replica of each, if they have any."""

    def __init__(self, folder: Path, hosts: Sequence[Host], primaries: int = _PRIMARIES) -> None:
        self._primaries = primaries
        self.servers = [_node(folder / f"node-{number}", host) for number, host in enumerate(hosts)]

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(f'{server.host.address}:{server.port}' for server in self.servers)}"

    def start(self) -> None:
        for server in self.servers:
            server.start()
        for number, server in enumerate(self.servers[: self._primaries]):
            with server.client() as client:
                first, last = _SLOTS * number // self._primaries, _SLOTS * (number + 1) // self._primaries - 1
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        with self.servers[0].client() as client:
            for server in self.servers[1:]:
                # With the port of the bus, because that is not the usual one.
                client.execute_command("CLUSTER", "MEET", server.host.address, server.port, _bus_port(server))
        eventually(lambda: all(_knows(server, len(self.servers)) for server in self.servers), timeout_s=30.0)
        for primary, replica in zip(self.servers, self.servers[self._primaries :], strict=False):
            follow(replica, primary)
        self.await_whole()

    def stop(self) -> None:
        for server in self.servers:
            server.stop()

    def await_whole(self, *, timeout_s: float = 30.0) -> None:
        """Wait until every slot is served and every running primary has a replica that confirms its writes."""
        eventually(self._is_whole, timeout_s=timeout_s)

    def _is_whole(self) -> bool:
        running = [server for server in self.servers if server.running]
        if not all(_is_ok(server) for server in running):
            return False
        if len(self.servers) == self._primaries:
            return True
        return all(_is_replicated(server) for server in running if role(server) == "master")

    def primary_of(self, key: str) -> Server:
        """The server that serves the key, as a running one says."""
        slot = key_slot(key.encode())
        asked = next(server for server in self.servers if server.running)
        with asked.client() as client:
            ranges: Any = client.execute_command("CLUSTER", "SLOTS")
        for entry in _entries(ranges):
            if entry[0] <= slot <= entry[1]:
                return next(server for server in self.servers if server.port == entry[2])
        raise LookupError(f"no node serves {key}")

    def await_promotion(self, key: str, old: Server) -> Server:
        """Wait until another server than `old` serves the key."""

        def other() -> Server | None:
            found = self.primary_of(key)
            return found if found is not old else None

        found = eventually(other, timeout_s=30.0)
        assert found is not None
        return found

    def come_back(self, server: Server, key: str) -> None:
        """Start a server again that was killed; it follows the one that has its slots now."""
        server.start()
        eventually(lambda: role(server) == "slave", timeout_s=30.0)
        self.await_whole()
        assert self.primary_of(key) is not server

    def move_slot(self, key: str, target: Server, *, keys_at_once: int = 0) -> None:
        """Move the key's slot to another primary: at once as a whole, or with `keys_at_once` key by key."""
        slot, source = key_slot(key.encode()), self.primary_of(key)
        if keys_at_once:
            self._move_keys(slot, source, target, keys_at_once)
        else:
            with source.client() as client:
                client.execute_command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", node_id(target))
        eventually(lambda: self.primary_of(key) is target, timeout_s=30.0)

    def _move_keys(self, slot: int, source: Server, target: Server, at_once: int) -> None:
        with self.half_moved(slot, source, target), source.client() as here:
            while keys := _keys_in(here, slot, at_once):
                _move(here, keys, target)

    @contextmanager
    def half_moved(self, slot: int, source: Server, target: Server, *, stays: str = "") -> Iterator[None]:
        """Within the block the slot is on its way: with `stays`, all keys but this one are at the target already."""
        with source.client() as here, target.client() as there:
            there.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", node_id(source))
            here.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", node_id(target))
            if stays:
                _move(here, [key for key in _keys_in(here, slot, 10_000) if key != stays.encode()], target)
            yield
            _move(here, _keys_in(here, slot, 10_000), target)
            for client in (there, here):
                client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", node_id(target))


def _keys_in(here: redis.Redis, slot: int, at_most: int) -> list[bytes]:
    found: Any = here.execute_command("CLUSTER", "GETKEYSINSLOT", slot, at_most)
    return [key.encode() if isinstance(key, str) else key for key in found]


def _move(here: redis.Redis, keys: Sequence[bytes], target: Server) -> None:
    if keys:
        here.execute_command("MIGRATE", target.host.address, target.port, "", 0, 5_000, "KEYS", *keys)


def _node(folder: Path, host: Host) -> Server:
    bus = free_port()
    extra = {
        "cluster-enabled": "yes",
        "cluster-port": str(bus),
        "cluster-node-timeout": str(NODE_TIMEOUT_MS),
        "cluster-allow-replica-migration": "no",
        "repl-diskless-sync-delay": "0",
    }
    return Server(folder, extra=extra, host=host)


def _bus_port(server: Server) -> int:
    with server.client() as client:
        return int(client.config_get("cluster-port")["cluster-port"])


def _entries(ranges: Any) -> list[tuple[int, int, int]]:
    """First slot, last slot and the primary's port, in either form in which the client library gives them."""
    if isinstance(ranges, dict):
        return [(first, last, found["primary"][1]) for (first, last), found in ranges.items()]
    return [(entry[0], entry[1], entry[2][1]) for entry in ranges]


def node_id(server: Server) -> str:
    with server.client() as client:
        found: Any = client.execute_command("CLUSTER", "MYID")
    return found.decode() if isinstance(found, bytes) else str(found)


def follow(replica: Server, primary: Server) -> None:
    with replica.client() as client:
        client.execute_command("CLUSTER", "REPLICATE", node_id(primary))


def role(server: Server) -> str:
    with server.client() as client:
        info: Any = client.info("replication")
    return str(info["role"])


def _cluster_info(server: Server) -> dict[str, str]:
    with server.client() as client:
        found: Any = client.execute_command("CLUSTER", "INFO")
    lines = found.decode().splitlines() if isinstance(found, bytes) else [f"{name}:{value}" for name, value in found.items()]
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _knows(server: Server, nodes: int) -> bool:
    return _cluster_info(server)["cluster_known_nodes"] == str(nodes)


def _is_ok(server: Server) -> bool:
    return _cluster_info(server)["cluster_state"] == "ok"


def _is_replicated(server: Server) -> bool:
    try:
        with server.client() as client:
            return bool(client.execute_command("WAITAOF", 1, 1, 200) == [1, 1])
    except redis.RedisError:
        return False


@contextmanager
def valkey_cluster(folder: Path, hosts: Sequence[Host] = (LOOPBACK,) * 2 * _PRIMARIES) -> Iterator[Cluster]:
    """Yield a cluster that serves all slots, with a replica of each primary; each server has a host."""
    with _running(folder, hosts, _PRIMARIES) as cluster:
        yield cluster


@contextmanager
def bare_cluster(folder: Path, primaries: int) -> Iterator[Cluster]:
    """Yield a cluster that serves all slots, without replicas."""
    with _running(folder, (LOOPBACK,) * primaries, primaries) as cluster:
        yield cluster


@contextmanager
def _running(folder: Path, hosts: Sequence[Host], primaries: int) -> Iterator[Cluster]:
    """Yield a started cluster. Its ports are chosen some seconds before its last server binds them, and one of twelve may be
    taken by then; so a start in which a server ended is tried again with others.
    """
    for number in range(_TRIES):
        cluster = Cluster(folder / f"try-{number}", hosts, primaries)
        try:
            cluster.start()
        except ServerEnded:
            cluster.stop()
            if number + 1 == _TRIES:
                raise
        else:
            break
    try:
        yield cluster
    finally:
        cluster.stop()

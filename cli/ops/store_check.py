"""The store's part of `penstock doctor`: whether it is reachable, recent and durable enough, and has the functions loaded."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from penstock.broker.store import library
from penstock.broker.store.connection import connect_all, is_cluster
from penstock.broker.store.links.refusals import LoginRefused, NoFunctions, store_error
from penstock.cli.ops.checks import Finding, Level
from penstock.cli.serve.store_faults import (
    StoreFault,
    fsync_of,
    info_of,
    is_logged,
    refusal_to_wait,
    replica_fault,
    sentinel_faults,
    store_faults,
    version_of,
)
from penstock.embedded.server import find_server
from penstock.errors import ConfigError
from penstock.settings.store_url import StoreRequirement, without_secrets
from penstock.settings.tables import StoreSettings

if TYPE_CHECKING:
    import redis


def embedded() -> Finding:
    """No store is configured or running: `penstock up` will start the packaged server, if there is one."""
    try:
        binary = find_server()
    except ConfigError as fault:
        return Finding("store", Level.FAIL, fault.message, "set PENSTOCK_REDIS_URL to a Redis or Valkey server")
    return Finding("store", Level.OK, f"embedded server found ({binary.name}); `penstock up` starts it")


def reachable(url: str, settings: StoreSettings) -> Finding:
    replicated, clustered = settings.durability == "replicated", is_cluster(url)
    try:
        opened = connect_all(url, name="penstock-doctor")
        nodes = [_look_at(node, client, waits=replicated) for node, client in opened.items()]
        by_sentinels = sentinel_faults(url) if replicated else []
    except (RedisError, OSError) as error:
        fault = store_error(error)
        known = fault.hint if isinstance(fault, LoginRefused | NoFunctions) else None
        cure = known or "start it, or correct PENSTOCK_REDIS_URL"
        return Finding("store", Level.FAIL, f"{without_secrets(url)}: {fault}", cure)
    # Replicas get the functions from their primaries.
    primaries = [node for node in nodes if not node.is_replica] if clustered else nodes
    loaded = all(node.has_functions for node in primaries)
    functions = "functions loaded" if loaded else "functions not loaded yet (the first gateway or worker does it)"
    size = [f"{len(primaries)} primaries and {len(nodes) - len(primaries)} replicas"] if clustered else []
    first = nodes[0]
    text = ", ".join([without_secrets(url), *size, name_of(first.info), first.log, functions])
    faults = by_sentinels + [fault for node in nodes for fault in node.faults(as_cluster=clustered)]
    lacks = [node.said(lack) for node in primaries if (lack := replica_fault(node.info))]
    if replicated and lacks and not any(node.refusal_to_wait for node in primaries):
        return Finding("store", Level.FAIL, f"{text}; {'; '.join(lacks)}", "connect a replica with appendonly yes")
    return judged(text, faults, settings.require)


def celery_off(settings: StoreSettings) -> Finding | None:
    """The finding that Celery's own connection reaches no store; None if it does."""
    if not settings.url or not is_cluster(settings.url) or settings.celery_url:
        return None
    text = "off, because Celery cannot use a cluster: no remote control, no events, no Flower, no Celery clients"
    return Finding("celery", Level.WARN, text, "name a Redis of its own for control, events and Flower: store.celery_url")


@dataclass(frozen=True, slots=True)
class _Server:
    """One server of the store. `name`: its address in a cluster, or empty."""

    name: str
    info: dict[str, Any]
    fsync: str
    has_functions: bool
    refusal_to_wait: str

    @property
    def is_replica(self) -> bool:
        return str(self.info.get("role", "master")) == "slave"

    @property
    def log(self) -> str:
        return f"fsync {self.fsync or 'unknown'}" if is_logged(self.info) else "no append-only file"

    def said(self, fault: str) -> str:
        return f"{self.name}: {fault}" if self.name else fault

    def faults(self, *, as_cluster: bool) -> list[StoreFault]:
        found = store_faults(self.info, self.fsync, as_cluster=as_cluster, cannot_wait=self.refusal_to_wait)
        return [replace(fault, text=self.said(fault.text)) for fault in found]


def _look_at(node: str, opened: redis.Redis, *, waits: bool) -> _Server:
    """`waits`: writes are to wait for replicas. Raises `RedisError`."""
    with closing(opened) as client:
        functions: Any = client.function_list(library=f"penstock_{library.library()[0]}")
        info = info_of(client)
        return _Server(node, info, fsync_of(client), bool(functions), refusal_to_wait(client, info) if waits else "")


def judged(text: str, faults: Sequence[StoreFault], required: StoreRequirement) -> Finding:
    """The finding for the worst fault."""
    if not faults:
        return Finding("store", Level.OK, text)
    worst = faults[0]
    level = Level.FAIL if worst.is_refused(required) else Level.WARN
    return Finding("store", level, "; ".join([text, *(fault.text for fault in faults)]), worst.hint)


def name_of(info: dict[str, Any]) -> str:
    kind = "Valkey" if info.get("valkey_version") else "Redis"
    return f"{kind} {'.'.join(map(str, version_of(info)))}"

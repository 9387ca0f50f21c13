"""The store's part of `penstock doctor`: whether it is reachable, new and durable enough, and has the functions loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.exceptions import RedisError

from penstock.broker.server.embedded import find_server
from penstock.broker.server.health import StoreFault, fsync_of, info_of, is_logged, replica_fault, store_faults, version_of
from penstock.broker.store import library
from penstock.broker.store.connection import connect
from penstock.cli.ops.checks import Finding, Level
from penstock.errors import ConfigError
from penstock.settings.store_url import StoreRequirement, without_secrets
from penstock.settings.stores import OtherStoreSettings
from penstock.settings.tables import StoreSettings


def embedded() -> Finding:
    """No store is configured or running: `penstock up` will start the packaged server, if there is one."""
    try:
        binary = find_server()
    except ConfigError as fault:
        return Finding("store", Level.FAIL, fault.message, "set PENSTOCK_REDIS_URL to a Redis or Valkey server")
    return Finding("store", Level.OK, f"embedded server found ({binary.name}); `penstock up` starts it")


def reachable(url: str, settings: StoreSettings | OtherStoreSettings, name: str = "store") -> Finding:
    """`name`: that of the finding."""
    client = connect(url, name="penstock-doctor")
    try:
        info = info_of(client)
        fsync = fsync_of(client)
        functions: Any = client.function_list(library=f"penstock_{library.library()[0]}")
    except RedisError as fault:
        setting = "PENSTOCK_REDIS_URL" if name == "store" else f"{name}.url"
        return Finding(name, Level.FAIL, f"{without_secrets(url)}: {fault}", f"start it, or correct {setting}")
    finally:
        client.close()
    loaded = "functions loaded" if functions else "functions not loaded yet (the first gateway or worker does it)"
    log = f"fsync {fsync or 'unknown'}" if is_logged(info) else "no append-only file"
    text = f"{without_secrets(url)}, {name_of(info)}, {log}, {loaded}"
    if settings.durability == "replicated" and (lacks := replica_fault(info)):
        return Finding(name, Level.FAIL, f"{text}; {lacks}", "connect a replica with appendonly yes")
    return judged(text, store_faults(info, fsync), settings.require, name)


def judged(text: str, faults: Sequence[StoreFault], required: StoreRequirement, name: str = "store") -> Finding:
    """The worst fault decides."""
    if not faults:
        return Finding(name, Level.OK, text)
    worst = faults[0]
    level = Level.FAIL if worst.is_refused(required) else Level.WARN
    return Finding(name, level, "; ".join([text, *(fault.text for fault in faults)]), worst.hint)


def name_of(info: dict[str, Any]) -> str:
    kind = "Valkey" if info.get("valkey_version") else "Redis"
    return f"{kind} {'.'.join(map(str, version_of(info)))}"

"""The store's part of `penstock doctor`: whether it is reachable, new and durable enough, and has the functions loaded."""

from __future__ import annotations

from typing import Any

from redis.exceptions import RedisError

from penstock.broker.server.embedded import find_server
from penstock.broker.server.health import eviction_fault
from penstock.broker.store import library
from penstock.broker.store.connection import connect
from penstock.cli.ops.checks import OLDEST_REDIS, Finding, Level
from penstock.errors import ConfigError


def embedded() -> Finding:
    """No store is configured or running: `penstock up` will start the packaged server, if there is one."""
    try:
        binary = find_server()
    except ConfigError as fault:
        return Finding("store", Level.FAIL, fault.message, "set PENSTOCK_REDIS_URL to a Redis or Valkey server")
    return Finding("store", Level.OK, f"embedded server found ({binary.name}); `penstock up` starts it")


def reachable(url: str) -> Finding:
    client = connect(url, name="penstock-doctor")
    try:
        info: Any = client.info("server")
        memory: Any = client.info("memory")
        durability = fsync_of(client)
        functions: Any = client.function_list(library=f"penstock_{library.library()[0]}")
    except RedisError as fault:
        return Finding("store", Level.FAIL, f"{without_password(url)}: {fault}", "start it, or correct PENSTOCK_REDIS_URL")
    finally:
        client.close()
    loaded = "functions loaded" if functions else "functions not loaded yet (the first gateway or worker does it)"
    text = f"{without_password(url)}, {name_of(info)}, {durability}, {loaded}"
    return judged(text, version_of(info), durability, eviction_fault(memory))


def judged(text: str, version: tuple[int, ...], durability: str, eviction: str = "") -> Finding:
    if version < OLDEST_REDIS:
        return Finding("store", Level.FAIL, text, "use Redis 7.0 or newer, or Valkey: older versions have no functions")
    if eviction:
        return Finding("store", Level.FAIL, f"{text}; {eviction}", "CONFIG SET maxmemory-policy noeviction, and in its file")
    if durability != "fsync always":
        return Finding("store", Level.WARN, text, "to keep jobs across a power cut, set appendonly yes and appendfsync always")
    return Finding("store", Level.OK, text)


def fsync_of(client: Any) -> str:
    """The durability of the store in words; managed services often refuse to report it."""
    try:
        found = {_text(name): _text(value) for name, value in client.config_get("append*").items()}
    except RedisError:
        return "fsync unknown"
    return f"fsync {found.get('appendfsync', 'unknown')}" if found.get("appendonly") == "yes" else "no append-only file"


def version_of(info: dict[str, Any]) -> tuple[int, ...]:
    words = _text(info.get("valkey_version") or info.get("redis_version") or "0").split(".")
    return tuple(int(word) for word in words if word.isdigit())


def name_of(info: dict[str, Any]) -> str:
    kind = "Valkey" if info.get("valkey_version") else "Redis"
    return f"{kind} {'.'.join(map(str, version_of(info)))}"


def without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)

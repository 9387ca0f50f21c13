"""The state of the Redis server's memory and log, as its INFO reports it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SECTIONS = ("memory", "persistence")
_KEEPS_ALL = "noeviction"
_WELL = "ok"


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """`memory_limit_bytes` is maxmemory, or the machine's where none is set. `log_bytes` is 0 without an append-only file.

    `persistence_ok`: the last write of the log, the last rewrite of it and the last snapshot went well.
    """

    memory_used_bytes: int
    memory_limit_bytes: int
    log_bytes: int
    persistence_ok: bool


def eviction_fault(info: Mapping[str, Any]) -> str:
    """Why a store with these fields of INFO memory may delete jobs by itself, and what to do; empty if it does not.

    INFO is asked instead of CONFIG, which managed services forbid. A store that says nothing of its policy is taken as it is.
    """
    policy = info.get("maxmemory_policy", _KEEPS_ALL)
    policy = policy.decode() if isinstance(policy, bytes) else str(policy)
    if policy == _KEEPS_ALL:
        return ""
    return f"maxmemory-policy is {policy}: a full store would delete jobs that were accepted; set it to {_KEEPS_ALL}"


def store_health(info: Mapping[str, Any]) -> StoreHealth:
    """From the fields of INFO as redis-py parses them."""
    saves = ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status")
    return StoreHealth(
        memory_used_bytes=int(info["used_memory"]),
        memory_limit_bytes=int(info["maxmemory"]) or int(info.get("total_system_memory", 0)),
        # The field is there only while the log is on.
        log_bytes=int(info.get("aof_current_size", 0)),
        persistence_ok=all(info.get(name, _WELL) == _WELL for name in saves),
    )

"""A store server's own report of its memory and log. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SECTIONS = ("memory", "persistence")
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


def worst_health(nodes: Sequence[StoreHealth]) -> StoreHealth:
    """Of several nodes: the fullest one's memory, all logs together, and whether all write theirs."""
    fullest = max(nodes, key=lambda one: one.memory_used_bytes / max(1, one.memory_limit_bytes))
    return StoreHealth(
        fullest.memory_used_bytes,
        fullest.memory_limit_bytes,
        sum(one.log_bytes for one in nodes),
        all(one.persistence_ok for one in nodes),
    )

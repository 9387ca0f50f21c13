"""Why a store may lose jobs that were accepted, by the reports of its servers and its sentinels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from penstock.settings.store_url import StoreKind, StoreRequirement, parse_store_url

# Without replicas to wait for, 7.0 is enough.
OLDEST_REDIS = (7, 0)
# The sections of INFO that `store_faults` reads.
EXAMINED = ("server", "memory", "persistence", "replication", "cluster")
_KEEPS_ALL = "noeviction"
_IN_ITS_FILE = "and in its configuration file"


@dataclass(frozen=True, slots=True)
class StoreFault:
    """`since`: the requirement from which on this fault is a refusal; before it, it is a warning. `hint`: what to do."""

    since: StoreRequirement
    text: str
    hint: str

    def is_refused(self, required: StoreRequirement) -> bool:
        return required.includes(self.since)


def store_faults(info: Mapping[str, Any], fsync: str, *, as_cluster: bool = False, cannot_wait: str = "") -> list[StoreFault]:
    """The faults of a server with these fields of INFO, the worst first. `as_cluster`: it was asked as a node of a cluster.
    `cannot_wait`: as `refusal_to_wait` has it, where writes are to wait for replicas.

    `fsync` is the server's `appendfsync`; empty where the user may not ask, as in managed services. A store that reports
    nothing of its eviction or of its log is taken as it is.
    """
    faults = (
        _age_fault(info),
        _waiting_fault(cannot_wait),
        _kind_fault(info, as_cluster=as_cluster),
        _eviction_fault(info),
        _log_fault(info),
        _fsync_fault(info, fsync),
    )
    return [fault for fault in faults if fault]


def info_of(client: Any) -> dict[str, Any]:
    """The fields of INFO that `store_faults` reads. Raises `RedisError`."""
    return {name: value for section in EXAMINED for name, value in client.info(section).items()}


def fsync_of(client: Any) -> str:
    """The server's `appendfsync`; empty where this user may not ask, as managed services have it. Raises `RedisError`."""
    from redis.exceptions import ResponseError

    try:
        config = {_text(name): _text(value) for name, value in client.config_get("appendfsync").items()}
    except ResponseError:
        return ""
    return config.get("appendfsync", "")


def refusal_to_wait(client: Any, info: Mapping[str, Any]) -> str:
    """Why this primary cannot wait until a replica has a write on its disk; empty if it can, and for a replica. Raises
    `RedisError`.
    """
    from redis.exceptions import ResponseError

    if _text(info.get("role", "master")) != "master":
        return ""
    try:
        client.execute_command("WAITAOF", 1, 0, 1)
    except ResponseError as refused:
        return str(refused)
    return ""


def replica_fault(info: Mapping[str, Any]) -> str:
    """Why a store that answers only with a replica would refuse writes at this moment; empty if it would not."""
    if _text(info.get("role", "master")) != "master":
        return "it is a replica itself: name the primary, or an address that follows it"
    if int(info.get("connected_slaves", 0)):
        return ""
    return "no replica is connected, and store.durability asks for one: every submit is refused"


def version_of(info: Mapping[str, Any]) -> tuple[int, ...]:
    words = _text(info.get("valkey_version") or info.get("redis_version") or "0").split(".")
    return tuple(int(word) for word in words if word.isdigit())


def is_logged(info: Mapping[str, Any]) -> bool:
    """Whether the store has an append-only file; taken as true where it reports nothing of it."""
    return _text(info.get("aof_enabled", 1)) == "1"


def _age_fault(info: Mapping[str, Any]) -> StoreFault | None:
    version = version_of(info)
    if not any(version) or version >= OLDEST_REDIS:
        return None
    return StoreFault(
        StoreRequirement.NONE,
        f"it is version {'.'.join(map(str, version))}, which has no functions",
        "use Redis 7.2 or newer, or Valkey",
    )


def _waiting_fault(refusal: str) -> StoreFault | None:
    if not refusal:
        return None
    return StoreFault(
        StoreRequirement.NONE,
        f'it cannot wait for replicas, as store.durability = "replicated" asks: {refusal}',
        "use Redis 7.2 or newer, or Valkey, with appendonly yes and the users of `penstock store users`; "
        'or set store.durability = "local"',
    )


def _kind_fault(info: Mapping[str, Any], *, as_cluster: bool) -> StoreFault | None:
    if as_cluster or _text(info.get("cluster_enabled", 0)) != "1":
        return None
    return StoreFault(
        StoreRequirement.NONE,
        "it is a node of a cluster, and has a part of the keys only",
        "write redis+cluster://HOST:PORT, with some more of its nodes",
    )


def _eviction_fault(info: Mapping[str, Any]) -> StoreFault | None:
    policy = _text(info.get("maxmemory_policy", _KEEPS_ALL))
    if policy == _KEEPS_ALL:
        return None
    return StoreFault(
        StoreRequirement.NO_EVICTION,
        f"maxmemory-policy is {policy}: a full store would delete jobs that were accepted; set it to {_KEEPS_ALL}",
        f"CONFIG SET maxmemory-policy {_KEEPS_ALL}, {_IN_ITS_FILE}",
    )


def _log_fault(info: Mapping[str, Any]) -> StoreFault | None:
    if is_logged(info):
        return None
    return StoreFault(
        StoreRequirement.LOG,
        "it has no append-only file: a restart loses all jobs since the last snapshot",
        f"CONFIG SET appendonly yes, then CONFIG SET appendfsync always, {_IN_ITS_FILE}",
    )


def _fsync_fault(info: Mapping[str, Any], fsync: str) -> StoreFault | None:
    if not is_logged(info) or fsync == "always":
        return None
    if not fsync:
        return StoreFault(
            StoreRequirement.FSYNC,
            "it does not say when it syncs its log, so a power cut may lose jobs",
            'allow this user CONFIG GET, or ask less with store.require = "log"',
        )
    return StoreFault(
        StoreRequirement.FSYNC,
        f"appendfsync is {fsync}: a power cut may lose the jobs of the last seconds",
        f"CONFIG SET appendfsync always, {_IN_ITS_FILE}",
    )


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def sentinel_faults(url: str) -> list[StoreFault]:
    """Why the sentinels that the URL names could promote a server that lacks what others confirmed. Empty where it names none,
    and where none of them answers.
    """
    address = parse_store_url(url)
    if address.kind is not StoreKind.SENTINEL:
        return []
    from redis import Redis, RedisError

    from penstock.broker.store.links.sentinel import asking

    for host, port in address.hosts:
        try:
            with closing(Redis(host, port, **asking(address))) as sentinel:
                primary: Any = sentinel.execute_command("SENTINEL", "MASTER", address.service)
                replicas: Any = sentinel.execute_command("SENTINEL", "REPLICAS", address.service)
        except (RedisError, OSError):
            continue
        return promotion_faults(_pairs(primary), [_pairs(one) for one in replicas], named=len(address.hosts))
    return []


def promotion_faults(primary: Mapping[str, str], replicas: Sequence[Mapping[str, str]], *, named: int) -> list[StoreFault]:
    """From the replies to SENTINEL MASTER and REPLICAS, and the number of sentinels that the URL names."""
    sentinels, quorum = int(primary["num-other-sentinels"]) + 1, int(primary["quorum"])
    priorities = sorted({int(one["slave-priority"]) for one in replicas} - {0})
    most, faults = sentinels // 2 + 1, list[tuple[str, str]]()
    if named < most:
        text = f"store.url names {named} of its {sentinels} sentinels, and most of them must say which server is the primary"
        faults.append((text, "name all of them in store.url"))
    if quorum < most:
        text = f"{quorum} of its {sentinels} sentinels may find the primary gone, where most of them should agree"
        faults.append((text, f"SENTINEL SET {primary['name']} quorum {most}, at each of them"))
    if len(priorities) > 1:
        text = f"its replicas have the priorities {priorities}, so the one with the least data may be promoted"
        faults.append((text, f"give all servers one replica-priority, {_IN_ITS_FILE}"))
    return [StoreFault(StoreRequirement.NONE, *fault) for fault in faults]


def _pairs(words: Sequence[str]) -> dict[str, str]:
    return dict(zip(words[::2], words[1::2], strict=True))

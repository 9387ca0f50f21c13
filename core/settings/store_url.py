"""Which URLs of a store are taken, in which form the Redis client and kombu take them, and what a store must promise."""

from __future__ import annotations

from enum import StrEnum
from urllib.parse import SplitResult, urlsplit

# Valkey's schemes mean the same servers, but the client library knows Redis' names only.
_SAME_AS = {"redis": "redis", "rediss": "rediss", "valkey": "redis", "valkeys": "rediss", "unix": "unix"}
_SCHEMES = "redis://, rediss://, valkey://, valkeys:// or unix://"
_INSTEAD = {
    "sentinel": "Sentinel is not supported: name the primary, or an address that follows it",
    "redis+socket": "write unix:///path/to/the.sock",
}


class StoreRequirement(StrEnum):
    """What a store of the user's own must promise, `store.require`; each includes those before it."""

    NONE = "none"
    NO_EVICTION = "no_eviction"
    LOG = "log"
    FSYNC = "fsync"

    def includes(self, other: StoreRequirement) -> bool:
        order = tuple(StoreRequirement)
        return order.index(self) >= order.index(other)


def store_url(url: str) -> str:
    """`url` with a scheme of the Redis client. Raises `ValueError`, whose text leaves out the URL, which may hold a password.

    What would end in a traceback at the first connection is refused here: other schemes, a port or database that is no number.
    """
    scheme, _, rest = url.partition("://")
    ours = _SAME_AS.get(scheme.lower())
    if not ours or not rest:
        instead = _INSTEAD.get(scheme.lower())
        raise ValueError(f"must start with {_SCHEMES}" + (f"; {instead}" if instead else ""))
    fault = _socket_fault(rest) if ours == "unix" else _address_fault(urlsplit(f"{ours}://{rest}"))
    if fault:
        raise ValueError(fault)
    return f"{ours}://{rest}"


def _socket_fault(rest: str) -> str:
    path = rest.rpartition("@")[2].partition("?")[0]
    return "" if path.startswith("/") else "must name the socket by its whole path, as in unix:///run/valkey.sock"


def _address_fault(parts: SplitResult) -> str:
    try:
        _ = parts.port
    except ValueError:
        return "the port must be a number from 0 to 65535; write a password's special characters as %XX"
    database = parts.path.strip("/")
    if database and not database.isdecimal():
        return "after the address, only the number of a database may stand, as in redis://host:6379/0"
    return ""

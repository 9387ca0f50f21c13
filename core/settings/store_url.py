"""The accepted URLs of a store, their parts, and what a store must promise. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import parse_qsl, unquote


class StoreKind(StrEnum):
    """Where an address leads: a server, its socket, sentinels that know the primary, or nodes of a cluster."""

    SERVER = "server"
    SOCKET = "socket"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


# Our spelling of each scheme. Valkey's mean the same servers, but the client library knows Redis' names only.
_OURS = {
    "redis": "redis",
    "valkey": "redis",
    "rediss": "rediss",
    "valkeys": "rediss",
    "unix": "unix",
    "redis+sentinel": "redis+sentinel",
    "valkey+sentinel": "redis+sentinel",
    "rediss+sentinel": "rediss+sentinel",
    "valkeys+sentinel": "rediss+sentinel",
    "redis+cluster": "redis+cluster",
    "valkey+cluster": "redis+cluster",
    "rediss+cluster": "rediss+cluster",
    "valkeys+cluster": "rediss+cluster",
}
_KINDS = {"": StoreKind.SERVER, "sentinel": StoreKind.SENTINEL, "cluster": StoreKind.CLUSTER}
_SCHEMES = "redis://, unix://, redis+sentinel:// or redis+cluster://, with rediss for TLS; valkey means redis"
_INSTEAD = {
    "sentinel": "for sentinels write redis+sentinel://HOST:26379,HOST:26379/NAME",
    "redis-sentinel": "for sentinels write redis+sentinel://HOST:26379,HOST:26379/NAME",
    "rediscluster": "for a cluster write redis+cluster://HOST:6379,HOST:6379",
    "redis-cluster": "for a cluster write redis+cluster://HOST:6379,HOST:6379",
    "redis+socket": "write unix:///path/to/the.sock",
    "redis+unix": "write unix:///path/to/the.sock",
    "socket": "write unix:///path/to/the.sock",
    "redis+tls": "for TLS write rediss://HOST:6379",
    "redis+ssl": "for TLS write rediss://HOST:6379",
    "amqp": "jobs are stored in Redis or Valkey; RabbitMQ keeps none",
}
_CHECKS = ("none", "optional", "required")
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
_SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")
_PORTS = {StoreKind.SENTINEL: 26379}
_LAST_PORT = 65_535


class StoreRequirement(StrEnum):
    """What a store of the user's own must promise, `store.require`; each includes those before it."""

    NONE = "none"
    NO_EVICTION = "no_eviction"
    LOG = "log"
    FSYNC = "fsync"

    def includes(self, other: StoreRequirement) -> bool:
        order = tuple(StoreRequirement)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """`hosts`: names and ports of the server, of the sentinels, or of some nodes of the cluster. `path`: the socket.
    `service`: the name under which the sentinels know the primary. `options`: those of TLS and of sentinels, as written.
    """

    kind: StoreKind
    tls: bool = False
    hosts: tuple[tuple[str, int], ...] = ()
    username: str = ""
    password: str = field(default="", repr=False)
    database: int = 0
    path: str = ""
    service: str = ""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def tls_options(self) -> dict[str, str | bool]:
        """Options for the Redis client. By default the server's certificate and its host name are checked."""
        if not self.tls:
            return {}
        options: dict[str, str | bool] = {name: value for name, value in self.options.items() if name in _TLS_OPTIONS}
        checks = str(options.setdefault("ssl_cert_reqs", "required")) != "none"
        return {**options, "ssl_check_hostname": checks and self.options.get("ssl_check_hostname", "true") == "true"}


def store_url(url: str) -> str:
    """`url` with the scheme in our spelling. Raises `ValueError`, whose text leaves out the URL, which may hold a password.

    It refuses URLs that would end in a traceback at the first connection.
    """
    parse_store_url(url)
    scheme, _, rest = url.partition("://")
    return f"{_OURS[scheme.lower()]}://{rest}"


def celery_store_url(url: str) -> str:
    """As `store_url`, for Celery's own connection."""
    if parse_store_url(url).kind is StoreKind.CLUSTER:
        raise ValueError("Celery cannot use a cluster: name one server, or sentinels")
    return store_url(url)


def parse_store_url(url: str) -> StoreAddress:
    """What the URL says. Raises `ValueError` as `store_url` does."""
    scheme, _, rest = url.partition("://")
    ours = _OURS.get(scheme.lower())
    if not ours or not rest:
        instead = _INSTEAD.get(scheme.lower())
        raise ValueError(f"must start with {_SCHEMES}" + (f"; {instead}" if instead else ""))
    rest, _, query = rest.partition("?")
    login, _, address = rest.rpartition("@")
    username, _, password = login.partition(":")
    options = dict(parse_qsl(query, keep_blank_values=True))
    kind = StoreKind.SOCKET if ours == "unix" else _KINDS[ours.partition("+")[2]]
    _check_options(kind, ours.startswith("rediss"), options)
    shared = {"kind": kind, "username": unquote(username), "password": unquote(password), "options": options}
    if kind is StoreKind.SOCKET:
        return StoreAddress(**shared, path=_socket(address), database=_database(options.get("db", "")))  # type: ignore[arg-type]
    hosts, _, path = address.partition("/")
    service, database = _service(kind, path)
    return StoreAddress(
        **shared,  # type: ignore[arg-type]
        tls=ours.startswith("rediss"),
        hosts=_hosts(kind, hosts),
        service=service,
        database=_checked_database(kind, database or options.get("db", "")),
    )


def without_secrets(url: str) -> str:
    """The URL without its login and options, for people and logs."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"


def _check_options(kind: StoreKind, tls: bool, options: Mapping[str, str]) -> None:
    allowed: tuple[str, ...] = ("db",) if kind is not StoreKind.CLUSTER else ()
    allowed += _TLS_OPTIONS if tls else ()
    allowed += _SENTINEL_OPTIONS if kind is StoreKind.SENTINEL else ()
    for name in options:
        if name not in allowed:
            tls_hint = "; for TLS write rediss" if name in _TLS_OPTIONS else ""
            raise ValueError(f"has the option {name}, and takes {', '.join(allowed) or 'none'}{tls_hint}")
    if options.get("ssl_cert_reqs", _CHECKS[0]) not in _CHECKS:
        raise ValueError(f"ssl_cert_reqs must be one of {', '.join(_CHECKS)}")
    if options.get("ssl_check_hostname", "true") not in ("true", "false"):
        raise ValueError("ssl_check_hostname must be true or false")


def _socket(address: str) -> str:
    if not address.startswith("/"):
        raise ValueError("must name the socket by its whole path, as in unix:///run/valkey.sock")
    return unquote(address)


def _service(kind: StoreKind, path: str) -> tuple[str, str]:
    """The name that sentinels know, and the database; each empty if there is none."""
    if kind is not StoreKind.SENTINEL:
        return "", path.strip("/")
    service, _, database = path.partition("/")
    if not service:
        raise ValueError(
            "must end with the name of the primary that the sentinels watch, as in redis+sentinel://host:26379/NAME"
        )
    return unquote(service), database.strip("/")


def _hosts(kind: StoreKind, text: str) -> tuple[tuple[str, int], ...]:
    hosts = tuple(_host(one, _PORTS.get(kind, 6379)) for one in text.split(","))
    if kind is StoreKind.SERVER and len(hosts) > 1:
        raise ValueError("names several servers: write redis+sentinel:// or redis+cluster://, or one address")
    return hosts


def _host(text: str, default: int) -> tuple[str, int]:
    name, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        name, port = text, str(default)
    if not port.isdecimal() or int(port) > _LAST_PORT:
        raise ValueError("the port must be a number from 0 to 65535; write a password's special characters as %XX")
    return unquote(name).strip("[]") or "localhost", int(port)


def _checked_database(kind: StoreKind, text: str) -> int:
    number = _database(text)
    if number and kind is StoreKind.CLUSTER:
        raise ValueError("a cluster is used by its database 0 alone")
    return number


def _database(text: str) -> int:
    if text and not text.isdecimal():
        raise ValueError("after the address, only the number of a database may stand, as in redis://host:6379/0")
    return int(text or 0)

"""How Celery's own connection, for remote control, events and its clients' queues, opens a store. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import quote

from penstock.settings.store_url import StoreAddress, StoreKind, parse_store_url

_CONNECT_TIMEOUT_S = 2.0


class CeleryConnection(NamedTuple):
    """`tls`: options of Celery's `broker_use_ssl`, None without TLS. `options`: of the transport, and of the result backend."""

    url: str
    result_url: str
    tls: dict[str, Any] | None
    options: dict[str, Any]


def celery_connection(url: str) -> CeleryConnection:
    """How kombu and Celery's result backend open the store at `url`."""
    address = parse_store_url(url)
    if address.kind is StoreKind.CLUSTER:
        # Celery has no transport for it: its remote control and events reach no process.
        return CeleryConnection("memory://", "cache+memory://", None, {})
    # Named here, because kombu does not look at the certificate unless it is told to, and Celery does not start.
    tls = address.tls_options() or None
    if address.kind is StoreKind.SENTINEL:
        return _at(_sentinels(address), tls, _sentinel_options(address))
    if address.kind is StoreKind.SOCKET:
        return _at(f"redis+socket://{_login(address)}{quote(address.path)}{_query(address)}", None, {})
    [(host, port)] = address.hosts
    scheme = "rediss" if address.tls else "redis"
    return _at(f"{scheme}://{_login(address)}{_place(host, port)}/{address.database}", tls, {})


def _at(url: str, tls: dict[str, Any] | None, options: dict[str, Any]) -> CeleryConnection:
    return CeleryConnection(url, url, tls, options)


def broker_url(url: str) -> str:
    """The store's URL as kombu spells it."""
    return celery_connection(url).url


def _sentinels(address: StoreAddress) -> str:
    login = _login(address)
    return ";".join(f"sentinel://{login}{_place(host, port)}/{address.database}" for host, port in address.hosts)


def _sentinel_options(address: StoreAddress) -> dict[str, Any]:
    logins = {"username": address.options.get("sentinel_username"), "password": address.options.get("sentinel_password")}
    tls = {"ssl": True, **address.tls_options()} if address.tls else {}
    given = {name: value for name, value in logins.items() if value}
    return {
        "master_name": address.service,
        "sentinel_kwargs": {"socket_timeout": _CONNECT_TIMEOUT_S, "socket_connect_timeout": _CONNECT_TIMEOUT_S, **given, **tls},
    }


def _login(address: StoreAddress) -> str:
    if not address.username and not address.password:
        return ""
    return f"{quote(address.username, safe='')}:{quote(address.password, safe='')}@"


def _place(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _query(address: StoreAddress) -> str:
    return f"?virtual_host={address.database}" if address.database else ""

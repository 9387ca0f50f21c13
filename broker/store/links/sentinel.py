"""Clients of a primary that sentinels name. Each new connection asks them, so that it leads to the present primary."""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio
from redis.asyncio.connection import Connection as AsyncConnection
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.asyncio.sentinel import SentinelConnectionPool as AsyncSentinelConnectionPool
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from penstock.settings.store_url import StoreAddress, parse_store_url

# A sentinel that is away must not hold up the question to the next one for long.
_ASK_FOR_S = 1.0


class _Pool(SentinelConnectionPool):
    """Closes the connections to the sentinels with its own."""

    def disconnect(self, inuse_connections: bool = True) -> None:
        super().disconnect(inuse_connections)
        if inuse_connections:
            self.sentinel_manager.close()


class _AsyncPool(AsyncSentinelConnectionPool):
    """Closes the connections to the sentinels with its own."""

    async def disconnect(self, inuse_connections: bool = True) -> None:
        await super().disconnect(inuse_connections)
        if inuse_connections:
            await self.sentinel_manager.aclose()


class _Reader:
    """Keeps a connection whose server has become a replica: the links decide what to do with it."""

    def read_response(self, *args: Any, **options: Any) -> Any:
        return redis.Connection.read_response(self, *args, **options)  # type: ignore[arg-type]


class _AsyncReader:
    """The same for an event loop."""

    async def read_response(self, *args: Any, **options: Any) -> Any:
        return await AsyncConnection.read_response(self, *args, **options)  # type: ignore[arg-type]


def sentinel_client(url: str, options: dict[str, Any]) -> redis.Redis:
    """As `connect`."""
    address = parse_store_url(url)
    sentinels = Sentinel(list(address.hosts), sentinel_kwargs=_asking(address) | {"retry": Retry(NoBackoff(), 0)})
    client: redis.Redis = sentinels.master_for(
        address.service, connection_pool_class=_Pool, retry=Retry(NoBackoff(), 0), **_primary(address, options)
    )
    pool = client.connection_pool
    pool.connection_class = type("Primary", (_Reader, pool.connection_class), {})
    return client


def async_sentinel_client(url: str, options: dict[str, Any]) -> redis.asyncio.Redis:
    """As `connect_async`."""
    address = parse_store_url(url)
    sentinels = AsyncSentinel(list(address.hosts), sentinel_kwargs=_asking(address) | {"retry": AsyncRetry(NoBackoff(), 0)})
    client: redis.asyncio.Redis = sentinels.master_for(
        address.service, connection_pool_class=_AsyncPool, retry=AsyncRetry(NoBackoff(), 0), **_primary(address, options)
    )
    pool = client.connection_pool
    pool.connection_class = type("Primary", (_AsyncReader, pool.connection_class), {})
    return client


def _primary(address: StoreAddress, options: dict[str, Any]) -> dict[str, Any]:
    login = {"username": address.username or None, "password": address.password or None}
    tls = {"ssl": True, **address.tls_options()} if address.tls else {}
    return {**options, "db": address.database, **login, **tls}


def _asking(address: StoreAddress) -> dict[str, Any]:
    login = {"username": address.options.get("sentinel_username"), "password": address.options.get("sentinel_password")}
    tls = {"ssl": True, **address.tls_options()} if address.tls else {}
    return {"socket_timeout": _ASK_FOR_S, "socket_connect_timeout": _ASK_FOR_S, "protocol": 2, **login, **tls}

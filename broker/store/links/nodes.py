"""Connections to the nodes of a cluster."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.connection import Connection as AsyncConnection
from redis.asyncio.connection import SSLConnection as AsyncSSLConnection
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from penstock.broker.store.connection import AsyncLink
from penstock.broker.store.links.refusals import AWAY
from penstock.broker.store.links.topology import Node
from penstock.settings.store_url import StoreAddress, parse_store_url

# What a connection asks where to go, before it goes.
Finder = Callable[[Any], Node]
AsyncFinder = Callable[[Any], Awaitable[Node]]


def node_pool(address: StoreAddress, node: Node, options: dict[str, Any]) -> redis.ConnectionPool:
    """Connections of one thread to one node."""
    kind = redis.SSLConnection if address.tls else redis.Connection
    return redis.ConnectionPool(kind, host=node.host, port=node.port, retry=Retry(NoBackoff(), 0), **_login(address), **options)


def async_node_pool(address: StoreAddress, node: Node, options: dict[str, Any]) -> redis.asyncio.ConnectionPool:
    """Connections of one event loop to one node."""
    kind = type("Link", (AsyncLink, AsyncSSLConnection if address.tls else AsyncConnection), {})
    return redis.asyncio.ConnectionPool(
        kind, host=node.host, port=node.port, retry=AsyncRetry(NoBackoff(), 0), **_login(address), **options
    )


def found_client(address: StoreAddress, options: dict[str, Any], find: Finder) -> redis.Redis:
    """A client of the node that `find` names, each time it connects."""
    pool = node_pool(address, Node("", 0), options)
    pool.connection_class = type("Found", (_Found, pool.connection_class), {"find": find})
    return redis.Redis.from_pool(pool)


def async_found_client(address: StoreAddress, options: dict[str, Any], find: AsyncFinder) -> redis.asyncio.Redis:
    """The same for an event loop."""
    return _async_client(address, options, _AsyncFound, {"find": find})


def any_client(address: StoreAddress, options: dict[str, Any]) -> redis.Redis:
    """A client of any node that answers."""
    pool = node_pool(address, Node("", 0), options)
    pool.connection_class = type("Any", (_Any, pool.connection_class), {"seeds": seeds_of(address)})
    return redis.Redis.from_pool(pool)


def async_any_client(url: str, options: dict[str, Any]) -> redis.asyncio.Redis:
    """A client of any node that answers: published messages and cluster-wide facts are the same at each."""
    address = parse_store_url(url)
    return _async_client(address, options, _AsyncAny, {"seeds": seeds_of(address)})


def _async_client(address: StoreAddress, options: dict[str, Any], kind: type, members: dict[str, Any]) -> redis.asyncio.Redis:
    """A client whose connections are of this kind."""
    connection_class = type("Node", (kind, AsyncSSLConnection if address.tls else AsyncConnection), members)
    pool = redis.asyncio.ConnectionPool(connection_class, retry=AsyncRetry(NoBackoff(), 0), **_login(address), **options)
    return redis.asyncio.Redis.from_pool(pool)


def seeds_of(address: StoreAddress) -> list[Node]:
    """The nodes that the URL names, in another order each time, so that clients are spread over them."""
    seeds = [Node(*host) for host in address.hosts]
    return random.sample(seeds, len(seeds))


def _login(address: StoreAddress) -> dict[str, Any]:
    return {"username": address.username or None, "password": address.password or None, **address.tls_options()}


class _Found:
    """A connection that asks where to go before it goes."""

    find: Callable[[], Node]
    host: str
    port: int

    def connect(self) -> None:
        if getattr(self, "_sock", None) is None:
            self.host, self.port = self.find()
        super().connect()  # type: ignore[misc]


class _AsyncFound:
    """The same for an event loop."""

    find: Callable[[], Awaitable[Node]]
    host: str
    port: int

    async def connect(self) -> None:
        if getattr(self, "_reader", None) is None:
            self.host, self.port = await self.find()
        await super().connect()  # type: ignore[misc]


class _Any:
    """A connection to the first node that takes it."""

    seeds: list[Node]
    host: str
    port: int

    def connect(self) -> None:
        for node in self.seeds:
            if getattr(self, "_sock", None) is None:
                self.host, self.port = node
            try:
                super().connect()  # type: ignore[misc]
            except AWAY:
                if node is self.seeds[-1]:
                    raise
            else:
                return


class _AsyncAny:
    """The same for an event loop."""

    seeds: list[Node]
    host: str
    port: int

    async def connect(self) -> None:
        for node in self.seeds:
            if getattr(self, "_reader", None) is None:
                self.host, self.port = node
            try:
                await super().connect()  # type: ignore[misc]
            except AWAY:
                if node is self.seeds[-1]:
                    raise
            else:
                return

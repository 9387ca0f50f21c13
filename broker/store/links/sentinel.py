"""The primary that sentinels name: a thread of the process asks them each second, and its connections follow their answer."""

# D143: docs/design/store.md

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from penstock.broker.store.links.nodes import async_found_client, found_client
from penstock.broker.store.links.topology import Node
from penstock.settings.store_url import StoreAddress, parse_store_url

_EVERY_S, _PACE_S = 1.0, 0.02
_ANSWER_S, _LOOK_S = 0.5, 1.0
# A sentinel that did not answer is not asked for so long, so that it does not hold up each look.
_REST_S = 5.0
# An election lasts no longer, so a doubt that is older has led to no other primary.
_DOUBTED_FOR_S = 10.0
_DOWN, _REPLACED = {"s_down", "o_down"}, {"failover_in_progress"}


@dataclass(frozen=True, slots=True)
class SentinelView:
    """What the sentinels that answered one look say together, by the newest of their configurations.

    `primary`: None if none of them answered. `replicas`: all that they know, also those that are away. `is_reached`,
    `is_doubted`: some of them reach the primary; some do not, or replace it. `is_certain`: at the time of the look no other
    server was the primary, nor about to become it.
    """

    primary: Node | None = None
    replicas: int = 0
    is_reached: bool = False
    is_doubted: bool = True
    is_certain: bool = False


def view_of(answers: Sequence[Mapping[str, str]], doubted: Node | None = None) -> SentinelView:
    """From replies to SENTINEL MASTER, at least one. `doubted`: the primary that was doubted within the last ten seconds.

    A failover needs the votes of most sentinels. So if most have answered, the one that replaces the primary is among them; or
    it is silent, and one that agreed with it has doubted the primary shortly before.
    """
    newest = max(answers, key=lambda one: (int(one["config-epoch"]), not _flags(one) & _REPLACED))
    # A sentinel that replaces the primary names the old one up to the end, with the number of the new configuration.
    agreeing = [one for one in answers if one["config-epoch"] == newest["config-epoch"] and _node(one) == _node(newest)]
    is_doubted = any(_flags(one) & (_DOWN | _REPLACED) for one in agreeing)
    sentinels = 1 + max(int(one["num-other-sentinels"]) for one in answers)
    has_all, has_most = len(answers) >= sentinels, len(answers) * 2 > sentinels
    return SentinelView(
        _node(newest),
        max(int(one["num-slaves"]) for one in agreeing),
        is_reached=not all(_flags(one) & _DOWN for one in agreeing),
        is_doubted=is_doubted,
        is_certain=has_most and not is_doubted and (has_all or _node(newest) != doubted),
    )


def _flags(answer: Mapping[str, str]) -> set[str]:
    return set(answer["flags"].split(","))


def _node(answer: Mapping[str, str]) -> Node:
    return Node(answer["ip"], int(answer["port"]))


class SentinelWatch:
    """Looks at the sentinels of one store, in a thread that lasts as long as a connection to a primary is open."""

    def __init__(self, address: StoreAddress) -> None:
        self._address = address
        self._lock, self._wake = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._asked: list[Future[SentinelView]] = []
        self._connections: weakref.WeakSet[Any] = weakref.WeakSet()
        self._doubted: tuple[Node | None, float] = (None, 0.0)
        self._failure: Exception | None = None
        self.view = SentinelView()

    def look(self) -> Future[SentinelView]:
        """What the sentinels say in a look that begins after this call."""
        asked: Future[SentinelView] = Future()
        with self._lock:
            self._asked.append(asked)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="penstock-sentinels", daemon=True)
                self._thread.start()
        self._wake.set()
        return asked

    async def seen(self) -> SentinelView:
        """As `look`, for an event loop; a view without a primary where the look takes too long."""
        try:
            return await asyncio.wait_for(asyncio.wrap_future(self.look()), _LOOK_S)
        except TimeoutError:
            return SentinelView()

    def primary(self, view: SentinelView, connection: Any) -> Node:
        """Where this connection is to lead: it is broken once another primary is named. Raises `ConnectionError` if none is."""
        if view.primary is None:
            raise redis.ConnectionError(f"no sentinel names a primary: {self._failure}")
        if not view.is_reached:
            raise redis.ConnectionError(f"the sentinels do not reach the primary, {view.primary}")
        with self._lock:
            self._connections.add(connection)
        return view.primary

    def _run(self) -> None:
        options = asking(self._address)
        # Each with the moment until which it is not asked.
        sentinels = {redis.Redis(host, port, **options): 0.0 for host, port in self._address.hosts}
        while asked_and_open := self._awaited():
            asked, connections = asked_and_open
            self.view = self._view(sentinels)
            for one in asked:
                if one.set_running_or_notify_cancel():
                    one.set_result(self.view)
            for connection in connections:
                if self.view.primary not in (None, Node(connection.host, connection.port)):
                    _cut(connection)
            time.sleep(_PACE_S)
        for sentinel in sentinels:
            sentinel.close()

    def _awaited(self) -> tuple[list[Future[SentinelView]], list[Any]] | None:
        """Who asked for the next look, and which connections are open; None, and the thread ends, if there is neither."""
        self._wake.wait(_EVERY_S)
        self._wake.clear()
        with self._lock:
            asked, self._asked = self._asked, []
            connections = [one for one in self._connections if _socket_of(one) is not None]
            if asked or connections:
                return asked, connections
            self._thread = None
            return None

    def _view(self, sentinels: dict[redis.Redis, float]) -> SentinelView:
        answers = [answer for sentinel in sentinels if (answer := self._answer(sentinel, sentinels))]
        if not answers:
            return SentinelView(replicas=self.view.replicas)
        (doubted, until), now = self._doubted, time.monotonic()
        view = view_of(answers, doubted if now < until else None)
        if view.is_doubted:
            self._doubted = (view.primary, now + _DOUBTED_FOR_S)
        return view

    def _answer(self, sentinel: redis.Redis, resting: dict[redis.Redis, float]) -> dict[str, str] | None:
        if time.monotonic() < resting[sentinel]:
            return None
        try:
            words: Any = iter(sentinel.execute_command("SENTINEL", "MASTER", self._address.service))
        except (redis.RedisError, OSError) as failure:
            self._failure, resting[sentinel] = failure, time.monotonic() + _REST_S
            return None
        return dict(zip(words, words, strict=True))


@cache
def watch_of(url: str) -> SentinelWatch:
    """The watch of this process for the store at this URL."""
    return SentinelWatch(parse_store_url(url))


def sentinel_client(url: str, options: dict[str, Any]) -> redis.Redis:
    """As `connect`."""
    address, watch = parse_store_url(url), watch_of(url)

    def find(connection: Any) -> Node:
        return watch.primary(watch.look().result(_LOOK_S), connection)

    return found_client(address, {**options, "db": address.database}, find)


def async_sentinel_client(url: str, options: dict[str, Any]) -> redis.asyncio.Redis:
    """As `connect_async`."""
    address, watch = parse_store_url(url), watch_of(url)

    async def find(connection: Any) -> Node:
        return watch.primary(await watch.seen(), connection)

    return async_found_client(address, {**options, "db": address.database}, find)


def _socket_of(connection: Any) -> Any:
    writer = getattr(connection, "_writer", None)
    return getattr(connection, "_sock", None) if writer is None else writer.get_extra_info("socket")


def _cut(connection: Any) -> None:
    """Whatever waits for an answer on this connection, in another thread or an event loop, sees its end."""
    with suppress(OSError, AttributeError), socket.socket(fileno=os.dup(_socket_of(connection).fileno())) as twin:
        twin.shutdown(socket.SHUT_RDWR)


def asking(address: StoreAddress) -> dict[str, Any]:
    """Options of a client of one of the sentinels."""
    login = {"username": address.options.get("sentinel_username"), "password": address.options.get("sentinel_password")}
    tls = {"ssl": True, **address.tls_options()} if address.tls else {}
    limits = {"socket_timeout": _ANSWER_S, "socket_connect_timeout": _ANSWER_S, "retry": Retry(NoBackoff(), 0)}
    return {"protocol": 2, "decode_responses": True, **limits, **login, **tls}

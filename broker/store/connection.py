"""Redis clients as penstock needs them: short time-outs, no silent retries, replies as bytes; and the errors they raise.

A `CallLink` writes calls the moment they are made and reads their answers in order. redis-py's pool takes three turns of the
event loop until a command is written. In a burst each turn lasts as long as the work of all requests of the burst, and the
store is idle meanwhile. redis-py also packs a command seven times slower than hiredis. And its pool takes a connection for each
call under way, so that the hundred-and-first caller of a moment is refused as if the store were away.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import hiredis
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from penstock.broker.store.links.refusals import DEMOTED

if TYPE_CHECKING:
    from penstock.broker.store.links.cluster_calls import CallNodes
    from penstock.broker.store.links.sentinel import SentinelWatch


class RedisConnection(Protocol):
    """The methods of a connection of `connect_async` that are used here."""

    async def connect(self) -> None: ...

    def write_now(self, packed: bytes) -> None: ...

    async def read_response(self, *, timeout: float) -> Any: ...

    async def disconnect(self, nowait: bool = False) -> None: ...


# How often the link looks whether answers come. An event loop that stands still takes one look late, instead of many looks.
_LOOKS = 6
_TRIES = 3


# D7: docs/design/store.md
class CallLink:
    """`pool` makes the connection. If no answer at all comes for `within_s`, the link breaks, as a lost connection does.

    Any number of calls share the connection, so that the number of callers is bounded by memory and not by connections.
    """

    def __init__(self, pool: redis.asyncio.ConnectionPool, *, within_s: float) -> None:
        self._pool = pool
        self._within_s = within_s
        self._connection: RedisConnection | None = None
        self._calls: deque[asyncio.Future[Any]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._standing: asyncio.Future[Exception | None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._silent_looks = 0

    def waits_for(self, function: str) -> bool:
        """Whether an answer of this function comes only once a replica has what it wrote."""
        return False

    def open(self) -> asyncio.Future[Exception | None]:
        """Begin to connect, unless the link is connecting or connected. The future tells why it could not."""
        if self._standing is None or self._task is None or self._task.done():
            loop = asyncio.get_running_loop()
            self._standing = loop.create_future()
            self._task = loop.create_task(self._serve(self._standing))
        return self._standing

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def answer(self, command: Sequence[Any]) -> Any:
        """Send the command, once the link stands, and return the answer; raises what redis-py raises.

        Whether a command was carried out whose connection broke is unknown, so it is never sent twice.
        """
        for _ in range(_TRIES):
            sent = self.call(command)
            if sent is not None:
                return await sent
            failure = await self._connected()
            if failure is not None:
                raise failure
        raise redis.ConnectionError("the link breaks as soon as it stands")

    async def _connected(self) -> Exception | None:
        """Wait until the link stands; returns why it does not."""
        if self._task is not None and self._task.cancelling():
            await asyncio.wait([self._task])
        return await asyncio.shield(self.open())

    def call(self, command: Sequence[Any]) -> asyncio.Future[Any] | None:
        """Send the command; returns a future of its answer, or None if the link is down and nothing was sent.

        The future raises what redis-py raises.
        """
        sent = self.calls([command])
        return sent[0] if sent else None

    def calls(self, commands: Sequence[Sequence[Any]]) -> list[asyncio.Future[Any]] | None:
        """Send the commands in one write, and so over one connection; else as `call`."""
        if self._connection is None:
            self.open()
            return None
        try:
            self._connection.write_now(b"".join([hiredis.pack_command(tuple(command)) for command in commands]))
        except redis.ConnectionError:
            return None
        loop = asyncio.get_running_loop()
        answers: list[asyncio.Future[Any]] = [loop.create_future() for _ in commands]
        self._calls.extend(answers)
        if self._timer is None:
            self._silent_looks = 0
            self._look_again()
        return answers

    def _look_again(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._within_s / _LOOKS, self._look)

    def _look(self) -> None:
        """Break the link if none of the last looks saw an answer; calls whose callers have left count too."""
        self._timer = None
        self._silent_looks += 1
        if not self._calls:
            return
        if self._silent_looks < _LOOKS:
            self._look_again()
            return
        self._break(redis.TimeoutError(f"no answer within {self._within_s:g} s"))
        if self._task is not None:
            self._task.cancel()

    async def _serve(self, standing: asyncio.Future[Exception | None]) -> None:
        connection = cast("RedisConnection", self._pool.make_connection())
        failure: Exception = redis.ConnectionError("the link was closed")
        try:
            await connection.connect()
            self._connection = connection
            standing.set_result(None)
            while True:
                self._answer(await _reply(connection))
        except (redis.RedisError, OSError) as error:
            # The pending calls fail with this error; the next call opens the link again.
            failure = error
        finally:
            if not standing.done():
                standing.set_result(failure)
            self._break(failure)
            await connection.disconnect(nowait=True)

    def _answer(self, reply: Any) -> None:
        self._silent_looks = 0
        answer = self._calls.popleft()
        if isinstance(reply, Exception):
            if not answer.done():  # the caller was cancelled
                answer.set_exception(reply)
            if isinstance(reply, DEMOTED):
                raise redis.ConnectionError(f"this server is not the primary any more: {reply}")
        elif not answer.done():
            answer.set_result(reply)

    async def load(self, source: str) -> None:
        """Load the library of functions. Raises what redis-py raises."""
        await self.answer(("FUNCTION", "LOAD", source))

    def _break(self, error: Exception) -> None:
        self._connection = None
        while self._calls:
            answer = self._calls.popleft()
            if not answer.done():
                answer.set_exception(error)


async def _reply(connection: RedisConnection) -> Any:
    """The next reply; a refusal is returned as an error, not raised."""
    try:
        return await connection.read_response(timeout=math.inf)
    except redis.ResponseError as refused:
        return refused


CONNECT_TIMEOUT_S = 2.0
READ_TIMEOUT_S = 5.0


def client_options(url: str, name: str, read_timeout_s: float | None) -> dict[str, Any]:
    """What every client of a store is made with."""
    # Never repeat a command silently: a repeated claim would take a second batch.
    options: dict[str, Any] = {
        "protocol": 2,
        "socket_timeout": read_timeout_s,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "client_name": name or None,
    }
    if not url.startswith("unix:"):
        options["socket_keepalive"] = True
    if url.startswith("rediss:"):
        # Most stores are reached without TLS, and do without this import.
        from penstock.settings.store_url import parse_store_url

        options |= parse_store_url(url).tls_options()
    return options


def is_cluster(url: str) -> bool:
    return "+cluster:" in url


def _is_followed(url: str) -> bool:
    return "+sentinel:" in url


# What a plain server does not need is imported where it is needed.


def connect(url: str, *, name: str = "", read_timeout_s: float | None = READ_TIMEOUT_S, key: str = "") -> redis.Redis:
    """A client for one thread; opens its connection on first use. Of a cluster, it asks the node that serves `key`, or any."""
    options = client_options(url, name, read_timeout_s)
    if is_cluster(url):
        from penstock.broker.store.links.cluster_threads import cluster_client

        return cluster_client(url, options, key)
    if _is_followed(url):
        from penstock.broker.store.links.sentinel import sentinel_client

        return sentinel_client(url, options)
    return redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), **options)


def connect_all(url: str, *, name: str = "") -> dict[str, redis.Redis]:
    """A client of each server of the store, by its name: of a cluster one for each node. Raises what redis-py raises."""
    if not is_cluster(url):
        return {"": connect(url, name=name)}
    from penstock.broker.store.links.cluster_threads import node_clients

    return node_clients(url, client_options(url, name, READ_TIMEOUT_S))


def connect_async(url: str, *, name: str = "", read_timeout_s: float | None = READ_TIMEOUT_S) -> redis.asyncio.Redis:
    """A client for one event loop; opens its connections on first use. Of a cluster, it asks any node."""
    client = _async_client(url, client_options(url, name, read_timeout_s))
    pool = client.connection_pool
    pool.connection_class = type("Link", (AsyncLink, pool.connection_class), {})
    return client


def _async_client(url: str, options: dict[str, Any]) -> redis.asyncio.Redis:
    if is_cluster(url):
        from penstock.broker.store.links.nodes import async_any_client

        return async_any_client(url, options)
    if _is_followed(url):
        from penstock.broker.store.links.sentinel import async_sentinel_client

        return async_sentinel_client(url, options)
    return redis.asyncio.Redis.from_pool(
        redis.asyncio.ConnectionPool.from_url(url, retry=AsyncRetry(NoBackoff(), 0), **options)
    )


def cluster_nodes(url: str, *, name: str, within_s: float) -> CallNodes:
    """The nodes of a cluster for an event loop; a link to one breaks after this time without an answer."""
    from penstock.broker.store.links.cluster_calls import CallNodes

    return CallNodes(url, client_options(url, name, within_s), within_s=within_s)


def sentinels_of(url: str) -> SentinelWatch | None:
    """The watch of the sentinels that the URL names; None if it names none."""
    if not _is_followed(url):
        return None
    from penstock.broker.store.links.sentinel import watch_of

    return watch_of(url)


class AsyncLink:
    """Wraps redis-py's connection class and works around two faults of it.

    A closed connection is a broken link: uvloop raises RuntimeError for a write to one, and redis-py passes that on as if it
    were a bug of the program. And a cancellation is never lost: redis-py sends within asyncio.wait_for, which before Python
    3.12 loses one that comes just after the write. A gateway that lost one that way did not end on SIGTERM.
    """

    async def send_packed_command(self, *args: Any, **options: Any) -> None:
        task = asyncio.current_task()
        cancels = task.cancelling() if task is not None else 0
        try:
            await super().send_packed_command(*args, **options)  # type: ignore[misc]
        except RuntimeError as closed:
            raise redis.ConnectionError(f"the link is closed: {closed}") from closed
        if task is not None and task.cancelling() > cancels:
            # The reply is on its way, and no caller will read it from this connection.
            await self.disconnect(nowait=True)  # type: ignore[attr-defined]
            raise asyncio.CancelledError

    def write_now(self, packed: bytes) -> None:
        """Write at once, not in order with `send_packed_command`: only for the sole user of the connection."""
        try:
            self._writer.write(packed)  # type: ignore[attr-defined]
        except RuntimeError as closed:
            raise redis.ConnectionError(f"the link is closed: {closed}") from closed

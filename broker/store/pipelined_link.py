"""A connection on which calls are written the moment they are made, and answered in their order.

redis-py's pool takes three turns of the event loop until a command is written. In a burst each turn lasts as long as the work
of all requests of the burst, and the store is idle meanwhile. redis-py also packs a command seven times slower than hiredis.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol, cast

import hiredis
import redis
import redis.asyncio


class RedisConnection(Protocol):
    """The methods of a connection of `connect_async` that are used here."""

    async def connect(self) -> None: ...

    def write_now(self, packed: bytes) -> None: ...

    async def read_response(self, *, timeout: float) -> Any: ...

    async def disconnect(self, nowait: bool = False) -> None: ...


# D7: docs/design/store.md
class CallLink:
    """`pool` makes the connection. An answer that takes longer than `within_s` breaks the link, as a lost connection does."""

    def __init__(self, pool: redis.asyncio.ConnectionPool, *, within_s: float) -> None:
        self._pool = pool
        self._within_s = within_s
        self._connection: RedisConnection | None = None
        self._calls: deque[tuple[asyncio.Future[Any], asyncio.TimerHandle]] = deque()
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begin to connect, unless the link is connecting or connected."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._serve())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def call(self, command: Sequence[Any]) -> asyncio.Future[Any] | None:
        """Send the command; returns a future of its answer, or None if the link is down and nothing was sent.

        The future raises what redis-py raises.
        """
        if self._connection is None:
            self.open()
            return None
        try:
            self._connection.write_now(hiredis.pack_command(tuple(command)))
        except redis.ConnectionError:
            return None
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._calls.append((answer, loop.call_later(self._within_s, self._expire)))
        return answer

    def _expire(self) -> None:
        self._break(redis.TimeoutError(f"no answer within {self._within_s:g} s"))
        if self._task is not None:
            self._task.cancel()

    async def _serve(self) -> None:
        connection = cast("RedisConnection", self._pool.make_connection())
        try:
            await connection.connect()
            self._connection = connection
            while True:
                self._answer(await _reply(connection))
        except (redis.RedisError, OSError) as error:
            # The pending calls fail with this error; the next call opens the link again.
            self._break(error)
        finally:
            self._break(redis.ConnectionError("the link was closed"))
            await connection.disconnect(nowait=True)

    def _answer(self, reply: Any) -> None:
        answer, timer = self._calls.popleft()
        timer.cancel()
        if answer.done():  # the caller was cancelled
            return
        if isinstance(reply, Exception):
            answer.set_exception(reply)
        else:
            answer.set_result(reply)

    def _break(self, error: Exception) -> None:
        self._connection = None
        while self._calls:
            self._answer(error)


async def _reply(connection: RedisConnection) -> Any:
    """The next reply; a refusal is returned as an error, not raised."""
    try:
        return await connection.read_response(timeout=math.inf)
    except redis.ResponseError as refused:
        return refused

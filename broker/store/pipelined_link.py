"""Calls that leave the moment they are made: a connection of their own, its answers in the order of the calls.

redis-py's pool takes three turns of the event loop until a command is written. In a burst each turn lasts as long as the work
of all requests that came with it, and the store has nothing to do meanwhile. Its packing costs seven times hiredis' own.
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
    """What is used of a connection of `connect_async`."""

    async def connect(self) -> None: ...

    def write_now(self, packed: bytes) -> None: ...

    async def read_response(self, *, timeout: float) -> Any: ...

    async def disconnect(self, nowait: bool = False) -> None: ...


# D7: docs/design/store.md
class CallLink:
    """`pool` says how to connect. An answer that takes longer than `within_s` breaks the link, as a lost connection does."""

    def __init__(self, pool: redis.asyncio.ConnectionPool, *, within_s: float) -> None:
        self._pool = pool
        self._within_s = within_s
        self._connection: RedisConnection | None = None
        self._calls: deque[tuple[asyncio.Future[Any], asyncio.TimerHandle]] = deque()
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begin to connect, unless that is under way or done."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._serve())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def call(self, command: Sequence[Any]) -> asyncio.Future[Any] | None:
        """The answer to come, the command being on its way; None while the link does not stand, and then nothing was sent.

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
            # Those who wait hear of it; the next call opens the link anew.
            self._break(error)
        finally:
            self._break(redis.ConnectionError("the link was closed"))
            await connection.disconnect(nowait=True)

    def _answer(self, reply: Any) -> None:
        answer, timer = self._calls.popleft()
        timer.cancel()
        if answer.done():  # whoever asked has gone
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
    """The next one; a refusal is a reply too."""
    try:
        return await connection.read_response(timeout=math.inf)
    except redis.ResponseError as refused:
        return refused

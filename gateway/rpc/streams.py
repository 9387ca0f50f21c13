"""ModelStreamInfer: requests and answers in one call. A few requests are served at a time; answers leave in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import grpc
from grpc import aio

from penstock.gateway.asgi.connection import ClientConnection
from penstock.gateway.rpc.guard import Rpc, RpcGuard

# Requests of one stream served at a time, and answers of one request that wait for those of earlier ones.
AT_A_TIME = 8
_WAITING = 4
Answers = Callable[[Rpc, bytes, ClientConnection], AsyncIterator[bytes]]
_STOPPING = "this gateway stops; open the stream again, and send what has no answer"


class AnswerLine:
    """The queued answers to one request. Their producer waits while the line is full."""

    def __init__(self) -> None:
        self._line: deque[bytes | None] = deque()
        self._news, self._room = asyncio.Event(), asyncio.Event()
        self._room.set()
        self._unread = False

    async def put(self, answer: bytes | None) -> None:
        """None ends the answers."""
        await self._room.wait()
        if self._unread:
            return
        self._line.append(answer)
        self._news.set()
        if len(self._line) >= _WAITING:
            self._room.clear()

    async def get(self) -> bytes | None:
        while not self._line:
            self._news.clear()
            await self._news.wait()
        self._room.set()
        return self._line.popleft()

    def leave_unread(self) -> None:
        """The client has left: drop further answers, and never wait."""
        self._unread = True
        self._line.clear()
        self._room.set()


class RequestStreams:
    """The open streams of this process. `stop` lets each send the answers under way."""

    def __init__(self, answers: Answers, guard: RpcGuard) -> None:
        self._answers = answers
        self._guard = guard
        self._open: set[RequestStream] = set()

    async def serve(self, rpc: Rpc) -> None:
        stream = RequestStream(rpc, self._answers, self._guard)
        self._open.add(stream)
        try:
            await stream.run()
        finally:
            self._open.discard(stream)

    def stop(self) -> None:
        for stream in self._open:
            stream.stop()


class RequestStream:
    """One call of ModelStreamInfer."""

    def __init__(self, rpc: Rpc, answers: Answers, guard: RpcGuard) -> None:
        self._rpc = rpc
        self._answers = answers
        self._guard = guard
        self._places = asyncio.Semaphore(AT_A_TIME)
        self._under_way: dict[AnswerLine, ClientConnection] = {}
        self._order: asyncio.Queue[AnswerLine | None] = asyncio.Queue()
        self._reading: asyncio.Task[None] | None = None
        self._stopping = False

    def stop(self) -> None:
        """Read no further request."""
        self._stopping = True
        self._order.put_nowait(None)
        if self._reading is not None:
            self._reading.cancel()

    async def run(self) -> None:
        self._reading = self._guard.background(self._read_all())
        try:
            while (line := await self._order.get()) is not None:
                while (answer := await line.get()) is not None:
                    await self._rpc.context.write(answer)
        finally:
            self._reading.cancel()
            for line, connection in self._under_way.items():
                line.leave_unread()
                connection.mark_lost()
        if self._stopping:
            await self._rpc.context.abort(grpc.StatusCode.UNAVAILABLE, _STOPPING)

    async def _read_all(self) -> None:
        try:
            while not self._stopping:
                await self._places.acquire()
                message = await self._rpc.context.read()
                if message is aio.EOF:
                    break
                rpc = replace(self._rpc, scope={"caller": self._rpc.caller})
                # No further message is read before this one has its share of the memory.
                await self._guard.take_share(rpc, message)
                line = AnswerLine()
                self._under_way[line] = ClientConnection()
                self._order.put_nowait(line)
                self._guard.background(self._answer(rpc, self._answers(rpc, message, self._under_way[line]), line))
                # The next message may be long in coming.
                del message
        finally:
            self._order.put_nowait(None)

    async def _answer(self, rpc: Rpc, answers: AsyncIterator[bytes], line: AnswerLine) -> None:
        try:
            async for answer in answers:
                await line.put(answer)
        finally:
            self._guard.give_back(rpc)
            del self._under_way[line]
            self._places.release()
            await line.put(None)

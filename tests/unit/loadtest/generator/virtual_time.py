"""An event loop whose clock jumps to the next timer, and a server in it: loads of minutes run at once, and exactly."""

from __future__ import annotations

import asyncio
import selectors
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, cast

from benchmarks.experiments.known_queue import KnownDevice
from penstock.loadtest.generator.alarm import LoopAlarm
from penstock.loadtest.generator.connection import Connection, ConnectionOwner, HttpTarget

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class LeapingSelector(selectors.DefaultSelector):
    """A selector without sockets: it advances the clock to the moment of the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        self.now += max(0.0, timeout or 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._leaping = LeapingSelector()
        super().__init__(self._leaping)

    def time(self) -> float:
        return self._leaping.now


def run_virtually(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work)


def virtual_alarm(ring: Callable[[], None]) -> LoopAlarm:
    """A timer of the loop, which is exact in virtual time."""
    return LoopAlarm(ring, asyncio.get_running_loop().time)


class Server:
    """Answers with the device's latencies. During `stalls` (begin and end), the device begins no call."""

    def __init__(self, device: KnownDevice, stalls: tuple[float, float] = (0.0, 0.0)) -> None:
        self._device = device
        self._stalls = stalls
        self._waiting: deque[Connection] = deque()
        self._runs = False
        self.connections = 0

    async def dial(self, target: HttpTarget, owner: ConnectionOwner) -> Connection:
        self.connections += 1
        connection = Connection(owner)
        connection.connection_made(cast("asyncio.Transport", _Transport(self, connection)))
        return connection

    def arrive(self, connection: Connection) -> None:
        self._waiting.append(connection)
        if not self._runs:
            self._begin()

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        begins, ends = self._stalls
        self._runs = True
        if begins <= loop.time() < ends:
            loop.call_at(ends, self._begin)
            return
        batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._device.most))]
        loop.call_later(self._device.run_s(len(batch)), self._end, batch)

    def _end(self, batch: list[Connection]) -> None:
        self._runs = False
        if self._waiting:
            self._begin()
        for connection in batch:
            connection.data_received(ANSWER)


class _Transport:
    def __init__(self, server: Server, connection: Connection) -> None:
        self._server = server
        self._connection = connection

    def write(self, data: bytes) -> None:
        self._server.arrive(self._connection)

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass

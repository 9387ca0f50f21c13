"""Closed loop: each connection asks again when its answer is in. Open loop: requests leave on a schedule, answered or not."""

from __future__ import annotations

import asyncio
import random
import time
from array import array
from collections import deque
from collections.abc import Collection, Iterator
from itertools import count

from penstock.benchmarks.connection import Connection, Driver, Target, connect
from penstock.benchmarks.summary import LOST, Samples

_clock = time.perf_counter
_RECONNECT_S = 0.02
# uvloop's timers count whole milliseconds; a shorter wait would spin and take CPU from the server under test.
_TICK_S = 0.001


class Recorder:
    """What came back so far; the first body of every status is kept, to say what a failure was about."""

    def __init__(self) -> None:
        self.samples = Samples()
        self.bodies: dict[int, bytes] = {}

    def answer(self, connection: Connection, now: float) -> None:
        reader = connection.reader
        self.samples.add(now - connection.sent_at, reader.status, at=now)
        if reader.status not in self.bodies:
            self.bodies[reader.status] = reader.body

    def lost(self, connection: Connection, now: float) -> None:
        self.samples.add(now - connection.sent_at, LOST, at=now)


async def reconnect(target: Target, driver: Driver, *, until: float) -> Connection | None:
    """A new connection as soon as the server takes one; None when it did not before `until`."""
    while _clock() < until:
        try:
            return await connect(target, driver)
        except OSError:
            await asyncio.sleep(_RECONNECT_S)
    return None


async def shut(connections: Collection[Connection], tasks: Collection[asyncio.Task[None]]) -> None:
    """Close what is still open; what is owed on it is given up, not counted as lost."""
    for task in list(tasks):
        task.cancel()
    for connection in list(connections):
        connection.busy = False
        connection.close()
    # A turn for the loop to tell the connections, before it is closed itself.
    await asyncio.sleep(0)


class ClosedLoop:
    """`concurrency` connections, each with one request under way, until the time is over or the requests are used up."""

    def __init__(self, target: Target, requests: Iterator[bytes]) -> None:
        self._target = target
        self._requests = requests
        self._ends_at = 0.0
        self._active = 0
        self._done = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: list[Connection] = []
        self.recorder = Recorder()
        self.unfinished = 0

    async def run(self, concurrency: int, duration_s: float, *, drain_s: float) -> float:
        """The seconds from the first request to the last answer; answers later than `drain_s` after the end are given up."""
        self._connections = [await connect(self._target, self) for _ in range(concurrency)]
        started_at = _clock()
        self._ends_at, self._active = started_at + duration_s, concurrency
        for connection in self._connections:
            self._next(connection)
        try:
            await asyncio.wait_for(self._done.wait(), duration_s + drain_s)
        except TimeoutError:
            self.unfinished = sum(connection.busy for connection in self._connections)
        elapsed_s = _clock() - started_at
        await self._shut()
        return elapsed_s

    def on_answer(self, connection: Connection) -> None:
        self.recorder.answer(connection, _clock())
        if connection.usable:
            self._next(connection)

    def on_lost(self, connection: Connection) -> None:
        if connection.busy:
            self.recorder.lost(connection, _clock())
            connection.busy = False
        if connection in self._connections and not self._done.is_set():
            self._connections.remove(connection)
            task = asyncio.get_running_loop().create_task(self._revive())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _revive(self) -> None:
        fresh = await reconnect(self._target, self, until=self._ends_at)
        if fresh is None:
            self._retire()
        else:
            self._connections.append(fresh)
            self._next(fresh)

    def _next(self, connection: Connection) -> None:
        now = _clock()
        request = next(self._requests, None) if now < self._ends_at else None
        if request is None:
            self._retire()
        else:
            connection.send(request, now)

    def _retire(self) -> None:
        self._active -= 1
        if self._active <= 0:
            self._done.set()

    async def _shut(self) -> None:
        self._done.set()
        await shut(self._connections, self._tasks)


def poisson(rate: float, seed: int) -> Iterator[float]:
    """Moments of arrivals from 0 on, in seconds, ascending without end."""
    gaps = random.Random(seed)
    at = 0.0
    while True:
        at += gaps.expovariate(rate)
        yield at


def constant(rate: float) -> Iterator[float]:
    return (number / rate for number in count(1))


class OpenLoop:
    """Requests leave when `arrivals` says so, on an idle connection. Latency counts from the intended moment.

    `starved` counts arrivals that found every connection busy and waited inside the generator; `lag_s` is how late each request
    left. Both belong to the generator, and a run in which they matter says nothing of the server.
    """

    def __init__(self, target: Target, requests: Iterator[bytes], arrivals: Iterator[float]) -> None:
        self._target = target
        self._requests = requests
        self._arrivals = arrivals
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._overdue: deque[float] = deque()
        self._next_at = 0.0
        self._ends_at = 0.0
        self._pending = 0
        self._done = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.recorder = Recorder()
        self.offered = 0
        self.starved = 0
        self.unfinished = 0
        self.lag_s = array("d")

    async def run(self, connections: int, duration_s: float, *, drain_s: float) -> float:
        """The seconds from the start to the last answer; answers later than `drain_s` after the end are given up."""
        self._idle = [await connect(self._target, self) for _ in range(connections)]
        self._open.update(self._idle)
        started_at = _clock()
        self._arrivals = (started_at + offset for offset in self._arrivals)
        self._next_at, self._ends_at = next(self._arrivals), started_at + duration_s
        self._tick()
        try:
            await asyncio.wait_for(self._done.wait(), duration_s + drain_s)
        except TimeoutError:
            self.unfinished = self._pending
        elapsed_s = _clock() - started_at
        await self._shut()
        return elapsed_s

    def _tick(self) -> None:
        now = _clock()
        while self._next_at <= now and self._next_at < self._ends_at:
            self._arrive(self._next_at, now)
            self._next_at = next(self._arrivals)
        if self._next_at < self._ends_at:
            asyncio.get_running_loop().call_later(max(self._next_at - now, _TICK_S), self._tick)
        elif self._pending == 0:
            self._done.set()

    def _arrive(self, due_at: float, now: float) -> None:
        self.offered += 1
        self._pending += 1
        if self._idle:
            self._send(self._idle.pop(), due_at, now)
        else:
            self.starved += 1
            self._overdue.append(due_at)

    def _send(self, connection: Connection, due_at: float, now: float) -> None:
        self.lag_s.append(now - due_at)
        connection.send(next(self._requests), due_at)

    def on_answer(self, connection: Connection) -> None:
        now = _clock()
        self.recorder.answer(connection, now)
        self._settled()
        if connection.usable:
            self._release(connection, now)

    def _release(self, connection: Connection, now: float) -> None:
        if self._overdue:
            self._send(connection, self._overdue.popleft(), now)
        else:
            self._idle.append(connection)

    def _settled(self) -> None:
        self._pending -= 1
        if self._pending == 0 and self._next_at >= self._ends_at:
            self._done.set()

    def on_lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if connection.busy:
            self.recorder.lost(connection, _clock())
            connection.busy = False
            self._settled()
        if not self._done.is_set():
            task = asyncio.get_running_loop().create_task(self._revive())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _revive(self) -> None:
        fresh = await reconnect(self._target, self, until=self._ends_at)
        if fresh is not None:
            self._open.add(fresh)
            self._release(fresh, _clock())

    async def _shut(self) -> None:
        self._done.set()
        await shut(self._open, self._tasks)

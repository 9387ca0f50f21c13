"""The common part of the closed and the open loop: broken connections are replaced, a call may be several requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from penstock.loadtest.generator.alarm import Alarm, open_alarm
from penstock.loadtest.generator.connection import Connection, ConnectionOwner, HttpTarget, connect
from penstock.loadtest.generator.summary import LOST, Samples

_RECONNECT_S = 0.02

Follow = Callable[[Connection], bytes | None]
Dial = Callable[[HttpTarget, ConnectionOwner], Awaitable[Connection]]


def nothing_follows(connection: Connection) -> bytes | None:
    """For calls that are a single request."""
    return None


class ResponseRecorder:
    """Records answers, and the first body of each status, to show the reason of failures."""

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


class LoadWire:
    """The target of a load. After an answer, `follow` returns the next request of the same call, or None.

    Tests pass a `clock`, `dial` and `alarm` of virtual time.
    """

    def __init__(
        self,
        target: HttpTarget,
        follow: Follow = nothing_follows,
        *,
        clock: Callable[[], float] = time.perf_counter,
        dial: Dial = connect,
        alarm: Callable[[Callable[[], None]], Alarm] = open_alarm,
    ) -> None:
        self.target = target
        self.follow = follow
        self.clock = clock
        self.dial = dial
        self.alarm = alarm


class LoadLoop:
    """Keeps the connections of one load. A subclass decides when the next call leaves (`_free`) and when the load is done."""

    def __init__(self, wire: LoadWire, recorder: ResponseRecorder) -> None:
        self._wire = wire
        self._clock = wire.clock
        self._ends_at = 0.0
        self._done = asyncio.Event()
        self._give_up: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: set[Connection] = set()
        self.recorder = recorder
        self.unfinished = 0

    async def _connected(self, count: int) -> list[Connection]:
        made = [await self._wire.dial(self._wire.target, self) for _ in range(count)]
        self._open.update(made)
        return made

    async def _until_done(self, started_at: float, duration_s: float, drain_s: float) -> float:
        """The seconds from the start to the last answer."""
        self._arm(started_at + duration_s + drain_s - self._clock())
        await self._done.wait()
        elapsed_s = self._clock() - started_at
        await self._shut()
        return elapsed_s

    def stop(self, drain_s: float) -> None:
        """Start no more calls; calls under way have `drain_s` left."""
        self._ends_at = min(self._ends_at, self._clock())
        self._arm(drain_s)

    def _arm(self, seconds: float) -> None:
        if self._give_up is not None:
            self._give_up.cancel()
        self._give_up = asyncio.get_running_loop().call_later(max(0.0, seconds), self._end_unfinished)

    def _end_unfinished(self) -> None:
        self.unfinished = self._under_way()
        self._done.set()

    def on_answer(self, connection: Connection) -> None:
        more = self._wire.follow(connection)
        if more is not None and connection.usable:
            connection.send(more, connection.sent_at)
            return
        now = self._clock()
        # If the server closes the connection in the middle of a call, the call has no answer.
        (self.recorder.answer if more is None else self.recorder.lost)(connection, now)
        self._on_call_over()
        if connection.usable:
            self._free(connection, now)

    def on_lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._forget(connection)
        if connection.busy:
            connection.busy = False
            self.recorder.lost(connection, self._clock())
            self._on_call_over()
        if not self._done.is_set():
            self._spawn(self._revive())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _revive(self) -> None:
        """Opens a new connection as soon as the server accepts one, unless the load ends before."""
        while self._clock() < self._ends_at:
            try:
                fresh = await self._wire.dial(self._wire.target, self)
            except OSError:
                await asyncio.sleep(_RECONNECT_S)
            else:
                self._open.add(fresh)
                return self._free(fresh, self._clock())
        return self._on_connection_lost_for_good()

    async def _shut(self) -> None:
        """Closes all connections; calls under way are unfinished, not lost."""
        if self._give_up is not None:
            self._give_up.cancel()
        for task in list(self._tasks):
            task.cancel()
        for connection in list(self._open):
            connection.busy = False
            connection.close()
        # One turn of the event loop, so that every connection learns of its end before the loop is closed.
        await asyncio.sleep(0)

    def _under_way(self) -> int:
        return sum(connection.busy for connection in self._open)

    def _on_call_over(self) -> None:
        """One call is over, answered or lost."""

    def _free(self, connection: Connection, now: float) -> None:
        """The connection can carry the next call."""
        raise NotImplementedError

    def _forget(self, connection: Connection) -> None:
        """The connection has broken: no call may use it."""

    def _on_connection_lost_for_good(self) -> None:
        """The load ended before a lost connection could be replaced."""

"""Open loop: calls leave on a schedule, whether earlier calls are answered or not."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterator

from penstock.loadtest.generator.alarm import Alarm
from penstock.loadtest.generator.connection import Connection
from penstock.loadtest.generator.load_loop import LoadLoop, LoadWire, ResponseRecorder

# Calls closer together than this leave at once, because each ring of the alarm takes CPU from the server under test.
_TICK_S = 0.0005
# Idle connections to open ahead of calls, because connecting takes a round trip.
_SPARE = 8


class OpenLoop(LoadLoop):
    """Calls leave at the moments of `arrivals`, on idle connections. Latency counts from the intended moment.

    `starved` counts calls that waited inside the generator because all connections were busy; `lag_s` is the delay of each call
    behind its moment. If either is large, the generator is the limit and the run says nothing about the server.
    """

    def __init__(
        self, wire: LoadWire, requests: Iterator[bytes], arrivals: Iterator[float], recorder: ResponseRecorder
    ) -> None:
        super().__init__(wire, recorder)
        self._requests = requests
        self._arrivals = arrivals
        self._idle: list[Connection] = []
        self._overdue: deque[float] = deque()
        self._next_at = 0.0
        self._pending = 0
        self._opening = 0
        self._most = 0
        self._alarm: Alarm | None = None
        self.starved = 0
        self.due_at = array("d")
        self.lag_s = array("d")

    @property
    def offered(self) -> int:
        return len(self.due_at)

    async def run(
        self, connections: int, duration_s: float, *, drain_s: float, most: int = 0, started_at: float | None = None
    ) -> float:
        """The seconds from the start to the last answer. Answers later than `drain_s` after the end do not count.

        Opens `connections`, and more when they are needed, up to `most`. `started_at`: moment 0 of the schedule, by the clock.
        """
        self._idle, self._most = await self._connected(connections), max(connections, most)
        began_at = self._clock() if started_at is None else started_at
        self._arrivals = (began_at + offset for offset in self._arrivals)
        self._next_at, self._ends_at = next(self._arrivals, math.inf), began_at + duration_s
        self._alarm = self._wire.alarm(self._tick)
        try:
            self._tick()
            return await self._until_done(began_at, duration_s, drain_s)
        finally:
            self._alarm.close()
            self._alarm = None

    def stop(self, drain_s: float) -> None:
        super().stop(drain_s)
        self._tick()

    def _tick(self) -> None:
        now = self._clock()
        while self._next_at <= now and self._next_at < self._ends_at:
            self._arrive(self._next_at, now)
            self._next_at = next(self._arrivals, math.inf)
        if self._next_at < self._ends_at and self._alarm is not None:
            self._alarm.set(max(self._next_at, now + _TICK_S))
        elif self._pending == 0:
            self._done.set()

    def _arrive(self, due_at: float, now: float) -> None:
        self.due_at.append(due_at)
        self.lag_s.append(now - due_at)
        self._pending += 1
        widens = len(self._open) + self._opening < self._most
        if self._idle:
            self._idle.pop().send(next(self._requests), due_at)
        else:
            self.starved += not widens
            self._overdue.append(due_at)
        if widens and len(self._idle) < _SPARE:
            self._opening += 1
            self._spawn(self._widen())

    async def _widen(self) -> None:
        try:
            await self._revive()
        finally:
            self._opening -= 1

    def _free(self, connection: Connection, now: float) -> None:
        if self._overdue:
            connection.send(next(self._requests), self._overdue.popleft())
        else:
            self._idle.append(connection)

    def _on_call_over(self) -> None:
        self._pending -= 1
        if self._pending == 0 and self._next_at >= self._ends_at:
            self._done.set()

    def _forget(self, connection: Connection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    def _under_way(self) -> int:
        return self._pending

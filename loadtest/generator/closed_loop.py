"""Closed loop: each connection sends its next request when the answer has come."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.loadtest.generator.connection import Connection
from penstock.loadtest.generator.load_loop import LoadLoop, LoadWire, ResponseRecorder


class ClosedLoop(LoadLoop):
    """A fixed number of connections, each with one call under way, until the time is over or the requests are used up."""

    def __init__(self, wire: LoadWire, requests: Iterator[bytes], recorder: ResponseRecorder) -> None:
        super().__init__(wire, recorder)
        self._requests = requests
        self._active = 0

    async def run(self, concurrency: int, duration_s: float, *, drain_s: float) -> float:
        """The seconds from the first request to the last answer. Answers later than `drain_s` after the end do not count."""
        connections = await self._connected(concurrency)
        started_at = self._clock()
        self._ends_at, self._active = started_at + duration_s, concurrency
        for connection in connections:
            self._free(connection, self._clock())
        return await self._until_done(started_at, duration_s, drain_s)

    @property
    def offered(self) -> int:
        return len(self.recorder.samples.statuses)

    def _free(self, connection: Connection, now: float) -> None:
        request = next(self._requests, None) if now < self._ends_at else None
        if request is None:
            self._on_connection_lost_for_good()
        else:
            connection.send(request, now)

    def _on_connection_lost_for_good(self) -> None:
        self._active -= 1
        if self._active <= 0:
            self._done.set()

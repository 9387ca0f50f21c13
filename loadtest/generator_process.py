"""A process that sends one part of a load. It is told over stdin what to do and when, and tells over stdout how it goes.

A process of its own, so that drawing progress and reading the machine do not delay what it sends.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress

import msgspec
import uvloop

from penstock.errors import PenstockError
from penstock.loadtest.assignment import Assignment, Begin, GeneratorFailure, LoadProgress, LoadTally, frame, read_frame
from penstock.loadtest.details import DetailRecorder
from penstock.loadtest.generator.arrivals import along, every_nth, unit_constant, unit_poisson
from penstock.loadtest.generator.closed_loop import ClosedLoop
from penstock.loadtest.generator.driver import LoadWire
from penstock.loadtest.generator.open_loop import OpenLoop
from penstock.loadtest.plan import Arrivals, Shape

_TELL_EVERY_S = 1.0
_FIRST_CONNECTIONS = 32
# After Ctrl-C: what is under way may still answer for this long.
_STOP_S = 1.0


def moments(shape: Shape) -> Iterator[float]:
    """The whole schedule of an open loop, warm-up included, from its beginning."""
    if shape.trace:
        return iter(shape.trace)
    units = unit_constant() if shape.arrivals is Arrivals.CONSTANT else unit_poisson(shape.seed)
    return along(shape.schedule(), units)


class Work:
    """One load, from its beginning to its tally."""

    def __init__(self, assignment: Assignment, starts_at: float) -> None:
        self._given = assignment
        self._starts_at = starts_at
        shape = assignment.shape
        self._measured_at = starts_at + shape.warm_up_s
        self._recorder = DetailRecorder(
            assignment.caller, assignment.poll, sample=assignment.sample, seed=shape.seed, since=self._measured_at
        )
        self._loop: ClosedLoop | OpenLoop = self._made()
        self._stopped_at = float("inf")
        self._lags_told = 0

    def _made(self) -> ClosedLoop | OpenLoop:
        given = self._given
        requests = itertools.cycle(given.requests[given.number % len(given.requests) :] + given.requests)
        wire = LoadWire(given.target, self._recorder.follow)
        if given.shape.concurrency is not None:
            return ClosedLoop(wire, requests, self._recorder)
        return OpenLoop(wire, requests, every_nth(moments(given.shape), given.number, given.of), self._recorder)

    async def run(self) -> LoadTally:
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._stop)
        telling = asyncio.create_task(self._tell())
        began_cpu_s = time.process_time()
        await self._load()
        telling.cancel()
        return self._tally(time.process_time() - began_cpu_s)

    async def _load(self) -> None:
        shape = self._given.shape
        if isinstance(self._loop, ClosedLoop):
            await asyncio.sleep(max(0.0, self._starts_at - time.perf_counter()))
            await self._loop.run(self._given.concurrency, shape.whole_s, drain_s=shape.drain_s)
            return
        most = max(1, shape.most // self._given.of)
        first = min(_FIRST_CONNECTIONS, most)
        await self._loop.run(first, shape.whole_s, drain_s=shape.drain_s, most=most, started_at=self._starts_at)

    def _stop(self) -> None:
        """Anything on stdin, and its end, means: no more."""
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        self._stopped_at = time.perf_counter()
        self._loop.stop(_STOP_S)

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(_TELL_EVERY_S)
            _say(LoadProgress(self._loop.offered, self._recorder.good, self._recorder.bad, self._worst_lag_s()))

    def _worst_lag_s(self) -> float:
        lags = self._loop.lag_s if isinstance(self._loop, OpenLoop) else array("d")
        fresh, self._lags_told = lags[self._lags_told :], len(lags)
        return max(fresh, default=0.0)

    def _tally(self, cpu_s: float) -> LoadTally:
        recorder, loop = self._recorder, self._loop
        told = LoadTally(
            sent_at=self._moved(recorder.sent_at),
            latencies_s=recorder.samples.latencies_s.tobytes(),
            statuses=recorder.samples.statuses.tobytes(),
            queue_s=recorder.queue_s.tobytes(),
            run_s=recorder.run_s.tobytes(),
            sizes=recorder.sizes.tobytes(),
            reason_of=recorder.reason_of.tobytes(),
            reasons=recorder.reasons,
            jobs=recorder.jobs,
            bodies={status: body.decode("utf-8", "replace") for status, body in recorder.bodies.items()},
            unfinished=loop.unfinished,
            cpu_s=cpu_s,
            wall_s=time.perf_counter() - self._starts_at,
            stopped_at=self._stopped_at - self._measured_at,
        )
        if isinstance(loop, OpenLoop):
            told.due_at, told.lag_s, told.starved = self._moved(loop.due_at), loop.lag_s.tobytes(), loop.starved
        else:
            told.due_at = told.sent_at
        return told

    def _moved(self, at: Iterable[float]) -> bytes:
        return array("d", (moment - self._measured_at for moment in at)).tobytes()


def _say(value: object) -> None:
    # Unbuffered, and whole: a pipe takes this much at once or blocks until it has.
    with suppress(BrokenPipeError):
        data = frame(value)
        while data:
            data = data[os.write(sys.stdout.fileno(), data) :]


def main() -> int:
    assignment = msgspec.msgpack.decode(read_frame(sys.stdin.buffer), type=Assignment)
    _say(LoadProgress())
    begin = read_frame(sys.stdin.buffer)
    if not begin:
        return 1
    work = Work(assignment, msgspec.msgpack.decode(begin, type=Begin).starts_at)
    try:
        _say(uvloop.run(work.run()))
        # It stays until it is ended, so that the last look at the processes finds it. The loop left the pipe non-blocking.
        os.set_blocking(sys.stdin.fileno(), True)
        sys.stdin.buffer.read()
    except (OSError, PenstockError) as fault:
        _say(GeneratorFailure(str(fault)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

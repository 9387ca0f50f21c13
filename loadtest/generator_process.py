"""A process that sends one part of a load. Its assignment comes over stdin; progress and the tally leave over stdout.

It is a separate process, so that drawing progress and reading the machine's counters do not delay requests.
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
from penstock.loadtest.assignment import Assignment, Begin, GeneratorFailure, LoadProgress, LoadTally, encode_frame, read_frame
from penstock.loadtest.details import DetailRecorder
from penstock.loadtest.generator.arrivals import along, every_nth, unit_constant, unit_poisson
from penstock.loadtest.generator.closed_loop import ClosedLoop
from penstock.loadtest.generator.load_loop import LoadWire
from penstock.loadtest.generator.open_loop import OpenLoop
from penstock.loadtest.workload import Arrivals, Shape

_REPORT_EVERY_S = 1.0
_FIRST_CONNECTIONS = 32
# After Ctrl-C, calls under way may still be answered for this long.
_STOP_S = 1.0
# Made while one thread loads this module: D106.
_ASSIGNMENT, _BEGIN = msgspec.msgpack.Decoder(Assignment), msgspec.msgpack.Decoder(Begin)


def moments(shape: Shape) -> Iterator[float]:
    """The moments of an open loop, from the beginning of its warm-up."""
    if shape.trace:
        return iter(shape.trace)
    units = unit_constant() if shape.arrivals is Arrivals.CONSTANT else unit_poisson(shape.seed)
    return along(shape.schedule(), units)


class GeneratorRun:
    """Runs one part of a load."""

    def __init__(self, assignment: Assignment, starts_at: float) -> None:
        self._assignment = assignment
        self._starts_at = starts_at
        shape = assignment.shape
        self._measured_at = starts_at + shape.warm_up_s
        self._recorder = DetailRecorder(
            assignment.caller, assignment.poll, sample=assignment.sample, seed=shape.seed, since=self._measured_at
        )
        self._loop: ClosedLoop | OpenLoop = self._make_loop()
        self._stopped_at = float("inf")
        self._lags_reported = 0

    def _make_loop(self) -> ClosedLoop | OpenLoop:
        assignment = self._assignment
        requests = itertools.cycle(assignment.requests[assignment.number % len(assignment.requests) :] + assignment.requests)
        wire = LoadWire(assignment.target, self._recorder.follow)
        if assignment.shape.concurrency is not None:
            return ClosedLoop(wire, requests, self._recorder)
        return OpenLoop(wire, requests, every_nth(moments(assignment.shape), assignment.number, assignment.of), self._recorder)

    async def run(self) -> LoadTally:
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._stop)
        reporting = asyncio.create_task(self._report_progress())
        began_cpu_s = time.process_time()
        await self._load()
        reporting.cancel()
        return self._tally(time.process_time() - began_cpu_s)

    async def _load(self) -> None:
        shape = self._assignment.shape
        if isinstance(self._loop, ClosedLoop):
            await asyncio.sleep(max(0.0, self._starts_at - time.perf_counter()))
            await self._loop.run(self._assignment.concurrency, shape.whole_s, drain_s=shape.drain_s)
            return
        most = max(1, shape.most // self._assignment.of)
        first = min(_FIRST_CONNECTIONS, most)
        await self._loop.run(first, shape.whole_s, drain_s=shape.drain_s, most=most, started_at=self._starts_at)

    def _stop(self) -> None:
        """The load ends early: data on stdin, or its end, is the signal."""
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        self._stopped_at = time.perf_counter()
        self._loop.stop(_STOP_S)

    async def _report_progress(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_EVERY_S)
            _send(LoadProgress(self._loop.offered, self._recorder.good, self._recorder.bad, self._worst_lag_s()))

    def _worst_lag_s(self) -> float:
        lags = self._loop.lag_s if isinstance(self._loop, OpenLoop) else array("d")
        fresh, self._lags_reported = lags[self._lags_reported :], len(lags)
        return max(fresh, default=0.0)

    def _tally(self, cpu_s: float) -> LoadTally:
        recorder, loop = self._recorder, self._loop
        tally = LoadTally(
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
            tally.due_at, tally.lag_s, tally.starved = self._moved(loop.due_at), loop.lag_s.tobytes(), loop.starved
        else:
            tally.due_at = tally.sent_at
        return tally

    def _moved(self, at: Iterable[float]) -> bytes:
        return array("d", (moment - self._measured_at for moment in at)).tobytes()


def _send(value: object) -> None:
    # Unbuffered, so that no part of a frame waits; a pipe may take fewer bytes than offered.
    with suppress(BrokenPipeError):
        data = encode_frame(value)
        while data:
            data = data[os.write(sys.stdout.fileno(), data) :]


def main() -> int:
    assignment = _ASSIGNMENT.decode(read_frame(sys.stdin.buffer))
    _send(LoadProgress())
    begin = read_frame(sys.stdin.buffer)
    if not begin:
        return 1
    work = GeneratorRun(assignment, _BEGIN.decode(begin).starts_at)
    try:
        _send(uvloop.run(work.run()))
        # The process stays until its parent ends it, so that the last snapshot of all processes holds it. The event loop left
        # the pipe non-blocking.
        os.set_blocking(sys.stdin.fileno(), True)
        sys.stdin.buffer.read()
    except (OSError, PenstockError) as fault:
        _send(GeneratorFailure(str(fault)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

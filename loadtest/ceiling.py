"""Measures the rate that the load generator can reach against an idle server, and judges whether a load came near it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from penstock.loadtest.assignment import Assignment, MergedTally
from penstock.loadtest.generator.connection import HttpTarget
from penstock.loadtest.generator.load import own_limits
from penstock.loadtest.generator.summary import is_good, percentile
from penstock.loadtest.generator_pool import started_generators
from penstock.loadtest.result import Generator
from penstock.loadtest.workload import CallStyle, Shape

_SECONDS = 0.4
_CONNECTIONS = 64
# Above this share of its ceiling, the generator's own queueing shows in the percentiles.
_MAX_CEILING_SHARE = 0.8


async def measure_ceiling(assignment: Assignment) -> float | None:
    """Requests per second that one generator process can send with its own core; None if that could not be measured.

    This is the number of requests in a closed loop divided by their CPU seconds, so other work on the machine does not
    change it. Here each call is one request; a call of an asynchronous client takes several.
    """
    shape = Shape(duration_s=_SECONDS, warm_up_s=0.0, concurrency=_CONNECTIONS, drain_s=1.0)
    async with _null_server() as port, started_generators(1, lambda progress: None) as few:
        target = HttpTarget("127.0.0.1", port, "/")
        await few.prepare(replace(assignment, target=target, shape=shape, caller=CallStyle.SYNC, sample=0))
        load = await few.run()
    good = sum(1 for status in load.statuses if is_good(status))
    return good / load.cpu_s if good and load.cpu_s else None


@asynccontextmanager
async def _null_server() -> AsyncIterator[int]:
    """The server's port. The server is a process of its own, so that its CPU time does not count as the generator's."""
    command = [sys.executable, "-P", "-m", "penstock.loadtest.null_server"]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, start_new_session=True)
    try:
        assert process.stdout is not None
        yield int(await process.stdout.readline())
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def judge(
    load: MergedTally, *, processes: int, ceiling_rps: float | None, offered_rps: float, requests_per_call: int
) -> Generator:
    """`ceiling_rps`: requests per second of one generator process."""
    lag_p99_s = percentile(sorted(load.lag_s), 99.0) if load.lag_s else 0.0
    whole = ceiling_rps * processes / requests_per_call if ceiling_rps else None
    limits = own_limits(load.core_share, lag_p99_s, load.starved)
    if whole and offered_rps > _MAX_CEILING_SHARE * whole:
        limits.append(
            f"{offered_rps:,.0f} calls/s is over {_MAX_CEILING_SHARE:.0%} of its ceiling of {whole:,.0f}/s: add --processes"
        )
    return Generator(
        processes=processes,
        ceiling_rps=whole,
        cpu_us_per_call=load.cpu_s / max(len(load.due_at), 1) * 1e6,
        core_share=load.core_share,
        lag_p99_ms=lag_p99_s * 1e3 if load.lag_s else None,
        starved=load.starved,
        limits=limits,
    )

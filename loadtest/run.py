"""One benchmark from its first look at the server to its result."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from penstock.client.sync import Client
from penstock.client.views import JobView
from penstock.loadtest import figures
from penstock.loadtest.adapters import ProtocolAdapter
from penstock.loadtest.assignment import Assignment, LoadProgress, Merged
from penstock.loadtest.ceiling import judge, measure_ceiling
from penstock.loadtest.first_call import check_first_call
from penstock.loadtest.generator.connection import RequestBody
from penstock.loadtest.generator_pool import LEAD_S, Generators, generators
from penstock.loadtest.observed.inside import counted, told_inside
from penstock.loadtest.observed.machine import describe_machine
from penstock.loadtest.observed.processes import ProcessWatch, cpu_series, foreign_share, is_here, listening_on, process_use
from penstock.loadtest.observed.stack_facts import Standing, job_records, read_counters
from penstock.loadtest.plan import CallStyle, Kind, Shape
from penstock.loadtest.result import Inside, LoadOutcome, LoadTestResult, TestSubject

_LOOK_EVERY_S = 1.0
_SAMPLED_JOBS = 200
FOREIGN_SHARE = 0.10
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


Told = Callable[[float, LoadProgress], None]


@dataclass(frozen=True, slots=True)
class LoadTest:
    """`bodies` are sent in turn; empty: requests without one. `told` is the load as the reports repeat it. `roots`: processes
    known to belong to the server."""

    door: ProtocolAdapter
    shape: Shape
    bodies: Sequence[RequestBody]
    told: Mapping[str, object]
    standing: Standing = field(default_factory=Standing)
    client: Client | None = None
    processes: int = 1
    roots: tuple[int, ...] = ()


@dataclass(slots=True)
class _Found:
    """What the run brought, before it is made into figures."""

    load: Merged = field(default_factory=Merged)
    watch: ProcessWatch = field(default_factory=lambda: ProcessWatch((), (), ()))
    counters: dict[str, float] = field(default_factory=dict)
    ceiling_rps: float | None = None
    stopped: bool = False


async def run_bench(bench: LoadTest, told: Told) -> LoadTestResult:
    """The result, also of a run that Ctrl-C ended early. A second Ctrl-C cancels it.

    `told` is called about once a second with the seconds since moment 0 (the warm-up's beginning) and how far the load is.
    """
    requests = [bench.door.request(body) for body in bench.bodies] or [bench.door.request(None)]
    await check_first_call(bench.door, requests[0])
    given = Assignment(
        target=bench.door.target,
        requests=requests,
        shape=bench.shape,
        caller=bench.door.caller,
        poll=bench.door.poll_head(),
        sample=_SAMPLED_JOBS // bench.processes if bench.client else 0,
    )
    found = _Found(ceiling_rps=await measure_ceiling(given))
    before = _counters(bench)
    await _load(bench, given, found, told)
    found.counters = counted(before, _counters(bench))
    records = job_records(bench.client, found.load.jobs) if bench.client else []
    return _result(bench, found, records)


def _counters(bench: LoadTest) -> dict[str, float]:
    return read_counters(bench.door.base, bench.door.model) if bench.door.kind is Kind.PENSTOCK else {}


async def _load(bench: LoadTest, given: Assignment, found: _Found, told: Told) -> None:
    began_at = time.monotonic()

    def summed(progress: LoadProgress) -> None:
        told(time.monotonic() - began_at, progress)

    async with generators(bench.processes, summed) as started:
        await started.ready(given)
        with _stopping(started, found):
            found.watch = ProcessWatch(_roots(bench), started.pids, bench.standing.devices)
            began_at = time.monotonic()
            looking = asyncio.create_task(_look(found.watch, bench.shape))
            found.load = await started.run()
            if found.stopped:
                looking.cancel()
            with suppress(asyncio.CancelledError):
                await looking


@contextmanager
def _stopping(started: Generators, found: _Found) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM ends the load in order, the second cancels all."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def stop() -> None:
        if found.stopped and task is not None:
            task.cancel("stopped twice")
        found.stopped = True
        started.stop()

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def _roots(bench: LoadTest) -> list[int]:
    target = bench.door.target
    if not is_here(target.host):
        return list(bench.roots)
    return [*bench.roots, *bench.standing.pids, *listening_on(target.port)]


async def _look(watch: ProcessWatch, shape: Shape) -> None:
    """From the end of the warm-up to the end of the load, once a second and at both ends."""
    await asyncio.sleep(LEAD_S + shape.warm_up_s)
    ends_at = time.monotonic() + shape.duration_s
    watch.look()
    while (left_s := ends_at - time.monotonic()) > 0.0:
        await asyncio.sleep(min(_LOOK_EVERY_S, left_s))
        watch.look()


def _result(bench: LoadTest, found: _Found, records: Sequence[JobView]) -> LoadTestResult:
    load, shape = found.load, bench.shape
    calls = figures.calls_of(load)
    seconds = max(1e-3, min(shape.duration_s, load.stopped_at))
    outcome = figures.outcome(load, calls, seconds, deadline_s=shape.deadline_s)
    generator = judge(
        load,
        processes=bench.processes,
        ceiling_rps=found.ceiling_rps,
        offered_rps=outcome.offered_rps,
        requests_per_call=2 if bench.door.caller is CallStyle.ASYNC else 1,
    )
    inside = _inside(bench, found, records, outcome)
    looks = found.watch.looks
    return LoadTestResult(
        subject=_subject(bench),
        load=dict(bench.told),
        outcome=outcome,
        generator=generator,
        generator_limited=generator.limited,
        stopped=found.stopped,
        inside=inside,
        processes=process_use(looks),
        devices=found.watch.device_use(),
        steps=figures.parts(load, calls, figures.within(shape.steps(), seconds), deadline_s=shape.deadline_s),
        series=figures.series(load, calls, seconds),
        cpu_series=cpu_series(looks),
        cdf=figures.cdf(calls, seconds),
        machine=describe_machine(),
        foreign_share=foreign_share(looks),
        notes=_notes(bench, found, inside),
    )


def _inside(bench: LoadTest, found: _Found, records: Sequence[JobView], outcome: LoadOutcome) -> Inside | None:
    latency = outcome.latency.mean_ms if outcome.latency and bench.door.caller is not CallStyle.SUBMIT else None
    return told_inside(
        found.load,
        records,
        seconds=outcome.seconds,
        slots=bench.standing.slots,
        mean_latency_ms=latency,
        counters=found.counters,
    )


def _subject(bench: LoadTest) -> TestSubject:
    door, standing = bench.door, bench.standing
    return TestSubject(
        target=door.kind.value,
        url=door.base,
        model=door.name,
        client=door.caller.value,
        version=door.version or standing.version,
        method=door.method,
        bodies=len(bench.bodies),
        body_bytes=sum(len(body.data) for body in bench.bodies) / len(bench.bodies) if bench.bodies else 0.0,
        slots=standing.slots,
        max_batch_size=standing.max_batch_size,
        max_wait_s=standing.max_wait_s,
    )


def _notes(bench: LoadTest, found: _Found, inside: Inside | None) -> list[str]:
    """What is missing from this result, or in doubt, and why."""
    share = foreign_share(found.watch.looks)
    server = [glance for look in found.watch.looks[:1] for glance in look.processes.values() if glance.role != "generator"]
    doubts = {
        f"other processes took {share:.0%} of the machine meanwhile: measure again when it is idle": share > FOREIGN_SHARE,
        "stopped early: figures are of the time until then": found.stopped,
        "queue wait, batches and stages are unknown: only penstock tells them": (
            inside is None and bench.door.kind is not Kind.PENSTOCK
        ),
        "no answer told its batch and no job had a record: queue wait, batches and stages are unknown": (
            inside is None and bench.door.kind is Kind.PENSTOCK
        ),
        "the GPUs' load is unknown: the workers run elsewhere, or nvidia-ml-py is not installed here": (
            bench.standing.on_gpu and not found.watch.device_use()
        ),
        "CPU and memory of the server are unknown: it runs elsewhere, or this user may not see its processes": not server,
    }
    return [text for text, holds in doubts.items() if holds]

"""A load test from the first call to its result."""

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
from penstock.loadtest.assignment import Assignment, LoadProgress, MergedTally
from penstock.loadtest.ceiling import judge, measure_ceiling
from penstock.loadtest.first_call import check_first_call
from penstock.loadtest.generator.connection import RequestBody
from penstock.loadtest.generator_pool import LEAD_S, Generators, started_generators
from penstock.loadtest.observed.inside import counter_increases, inside_view
from penstock.loadtest.observed.machine import describe_machine
from penstock.loadtest.observed.processes import ProcessWatch, cpu_series, foreign_share, is_here, listening_on, process_use
from penstock.loadtest.observed.stack_facts import ModelFacts, job_records, read_counters
from penstock.loadtest.result import Inside, LoadOutcome, LoadTestResult, TestSubject
from penstock.loadtest.workload import CallStyle, Kind, Shape

_SNAPSHOT_EVERY_S = 1.0
_SAMPLED_JOBS = 200
FOREIGN_SHARE = 0.10
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


OnProgress = Callable[[float, LoadProgress], None]


@dataclass(frozen=True, slots=True)
class LoadTest:
    """`bodies` are sent in turn; empty: requests have no body. `description`: the load's options for reports. `roots`:
    processes that belong to the server.
    """

    adapter: ProtocolAdapter
    shape: Shape
    bodies: Sequence[RequestBody]
    description: Mapping[str, object]
    facts: ModelFacts = field(default_factory=ModelFacts)
    client: Client | None = None
    processes: int = 1
    roots: tuple[int, ...] = ()


@dataclass(slots=True)
class _Observations:
    """Raw observations, before they become figures."""

    load: MergedTally = field(default_factory=MergedTally)
    watch: ProcessWatch = field(default_factory=lambda: ProcessWatch((), (), ()))
    counters: dict[str, float] = field(default_factory=dict)
    ceiling_rps: float | None = None
    stopped: bool = False


async def run_load_test(test: LoadTest, on_progress: OnProgress) -> LoadTestResult:
    """The result, even of a run that Ctrl-C ended early. A second Ctrl-C cancels the run.

    `on_progress` is called about once a second with the seconds since the warm-up began, and the progress of the load.
    """
    requests = [test.adapter.request(body) for body in test.bodies] or [test.adapter.request(None)]
    await check_first_call(test.adapter, requests[0])
    assignment = Assignment(
        target=test.adapter.target,
        requests=requests,
        shape=test.shape,
        caller=test.adapter.caller,
        poll=test.adapter.poll_head(),
        sample=_SAMPLED_JOBS // test.processes if test.client else 0,
    )
    seen = _Observations(ceiling_rps=await measure_ceiling(assignment))
    before = _counters(test)
    await _load(test, assignment, seen, on_progress)
    seen.counters = counter_increases(before, _counters(test))
    records = job_records(test.client, seen.load.jobs) if test.client else []
    return _result(test, seen, records)


def _counters(test: LoadTest) -> dict[str, float]:
    return read_counters(test.adapter.base, test.adapter.model) if test.adapter.kind is Kind.PENSTOCK else {}


async def _load(test: LoadTest, assignment: Assignment, seen: _Observations, on_progress: OnProgress) -> None:
    began_at = time.monotonic()

    def add_up(progress: LoadProgress) -> None:
        on_progress(time.monotonic() - began_at, progress)

    async with started_generators(test.processes, add_up) as started:
        await started.prepare(assignment)
        with _stopping(started, seen):
            seen.watch = ProcessWatch(_roots(test), started.pids, test.facts.devices)
            began_at = time.monotonic()
            observing = asyncio.create_task(_observe(seen.watch, test.shape))
            seen.load = await started.run()
            if seen.stopped:
                observing.cancel()
            with suppress(asyncio.CancelledError):
                await observing


@contextmanager
def _stopping(started: Generators, seen: _Observations) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM ends the load in order, the second cancels everything."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def stop() -> None:
        if seen.stopped and task is not None:
            task.cancel("stopped twice")
        seen.stopped = True
        started.stop()

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def _roots(test: LoadTest) -> list[int]:
    target = test.adapter.target
    if not is_here(target.host):
        return list(test.roots)
    return [*test.roots, *test.facts.pids, *listening_on(target.port)]


async def _observe(watch: ProcessWatch, shape: Shape) -> None:
    """Takes snapshots once a second from the end of the warm-up to the end of the load, and at both ends."""
    await asyncio.sleep(LEAD_S + shape.warm_up_s)
    ends_at = time.monotonic() + shape.duration_s
    watch.take_snapshot()
    while (left_s := ends_at - time.monotonic()) > 0.0:
        await asyncio.sleep(min(_SNAPSHOT_EVERY_S, left_s))
        watch.take_snapshot()


def _result(test: LoadTest, seen: _Observations, records: Sequence[JobView]) -> LoadTestResult:
    load, shape = seen.load, test.shape
    calls = figures.calls_of(load)
    seconds = max(1e-3, min(shape.duration_s, load.stopped_at))
    outcome = figures.outcome(load, calls, seconds, deadline_s=shape.deadline_s)
    generator = judge(
        load,
        processes=test.processes,
        ceiling_rps=seen.ceiling_rps,
        offered_rps=outcome.offered_rps,
        requests_per_call=2 if test.adapter.caller is CallStyle.ASYNC else 1,
    )
    inside = _inside(test, seen, records, outcome)
    snapshots = seen.watch.snapshots
    return LoadTestResult(
        subject=_subject(test),
        load=dict(test.description),
        outcome=outcome,
        generator=generator,
        generator_limited=generator.limited,
        stopped=seen.stopped,
        inside=inside,
        processes=process_use(snapshots),
        devices=seen.watch.device_use(),
        steps=figures.parts(load, calls, figures.within(shape.steps(), seconds), deadline_s=shape.deadline_s),
        series=figures.series(load, calls, seconds),
        cpu_series=cpu_series(snapshots),
        cdf=figures.cdf(calls, seconds),
        machine=describe_machine(),
        foreign_share=foreign_share(snapshots),
        notes=_notes(test, seen, inside),
    )


def _inside(test: LoadTest, seen: _Observations, records: Sequence[JobView], outcome: LoadOutcome) -> Inside | None:
    latency = outcome.latency.mean_ms if outcome.latency and test.adapter.caller is not CallStyle.SUBMIT else None
    return inside_view(
        seen.load,
        records,
        seconds=outcome.seconds,
        slots=test.facts.slots,
        mean_latency_ms=latency,
        counters=seen.counters,
    )


def _subject(test: LoadTest) -> TestSubject:
    adapter, facts = test.adapter, test.facts
    return TestSubject(
        target=adapter.kind.value,
        url=adapter.base,
        model=adapter.name,
        client=adapter.caller.value,
        version=adapter.version or facts.version,
        method=adapter.method,
        bodies=len(test.bodies),
        body_bytes=sum(len(body.data) for body in test.bodies) / len(test.bodies) if test.bodies else 0.0,
        slots=facts.slots,
        max_batch_size=facts.max_batch_size,
        max_wait_s=facts.max_wait_s,
    )


def _notes(test: LoadTest, seen: _Observations, inside: Inside | None) -> list[str]:
    """The missing or doubtful parts of the result, and why."""
    share = foreign_share(seen.watch.snapshots)
    server = [
        sample for snapshot in seen.watch.snapshots[:1] for sample in snapshot.processes.values() if sample.role != "generator"
    ]
    doubts = {
        f"other processes took {share:.0%} of the machine meanwhile: measure again when it is idle": share > FOREIGN_SHARE,
        "stopped early: the figures are of the time until then": seen.stopped,
        "queue wait, batches and stages are unknown: only penstock reports them": (
            inside is None and test.adapter.kind is not Kind.PENSTOCK
        ),
        "no answer named its batch and no job had a record: queue wait, batches and stages are unknown": (
            inside is None and test.adapter.kind is Kind.PENSTOCK
        ),
        "the GPUs' load is unknown: the workers run elsewhere, or nvidia-ml-py is not installed here": (
            test.facts.on_gpu and not seen.watch.device_use()
        ),
        "CPU and memory of the server are unknown: it runs elsewhere, or this user may not see its processes": not server,
    }
    return [text for text, holds in doubts.items() if holds]

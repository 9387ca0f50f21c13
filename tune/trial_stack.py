"""A configuration under load on its own stack: store, gateway and worker as `penstock up` runs them."""

from __future__ import annotations

import asyncio
import json
import math
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.client.sync import Client
from penstock.loadtest.adapters import make_adapter
from penstock.loadtest.assignment import LoadProgress
from penstock.loadtest.generator.arrivals import Stretch
from penstock.loadtest.generator.connection import RequestBody
from penstock.loadtest.observed.stack_facts import read_model_facts
from penstock.loadtest.result import LoadTestResult
from penstock.loadtest.run import LoadTest, run_load_test
from penstock.loadtest.stack import Processes, await_ready, free_port, running
from penstock.loadtest.workload import Kind, Shape
from penstock.model_spec import bucket_fault, fitted_buckets
from penstock.tune.result import Choice, Figures, Goal

NO_LIMIT = 10_000_000
_DRAIN_S = 5.0
_MOST_CONNECTIONS = 2_048
# If more calls are unanswered than arrive within this many goals, the queue only grows and the load is stopped.
_BACKLOG_GOALS = 6.0
_BACKLOG_LEAST = 64
_EMPTY_S, _ANSWER_S, _LOOK_S = 15.0, 5.0, 0.05


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The result of one load. `figures` None: the load failed or was stopped, and `why` says why. `stages_ms` and `batches` are
    those of the load test."""

    figures: Figures | None
    why: str = ""
    stages_ms: dict[str, float] = field(default_factory=dict)
    batches: dict[int, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TuneEnvironment:
    """The inputs of trial stacks: an empty folder on a real disk, the model's declared settings, and the inputs to send."""

    folder: Path
    name: str
    version: str
    table: Mapping[str, Any]
    inputs: tuple[RequestBody, ...]

    @contextmanager
    def stack(self, choice: Choice, *, number: int) -> Iterator[TrialStack]:
        """A stack that is ready to answer. Raises `PenstockError` if it does not become ready."""
        table = trial_table(choice, self.table, self.version)
        folder = self.folder / f"stack-{number}"
        with started_stack(folder, {self.name: table}, pinning=choice.engine.pinning) as (url, processes):
            yield TrialStack(self.name, url, processes, self.inputs)


def trial_table(choice: Choice, table: Mapping[str, Any], version: str) -> dict[str, Any]:
    """`[models.NAME]` of a trial: the declared settings with those of the choice, and a queue without a limit."""
    return {**table, **settings_of(choice, table), "max_queue_depth": NO_LIMIT, "version": version}


@contextmanager
def started_stack(
    folder: Path,
    models: Mapping[str, Mapping[str, Any]],
    *,
    pinning: str,
    pipelines: Mapping[str, Mapping[str, Any]] | None = None,
) -> Iterator[tuple[str, Processes]]:
    """The address and the processes of a `penstock up` with these models and its own state folder."""
    folder.mkdir(parents=True)
    port = free_port()
    config = folder / "penstock.toml"
    config.write_text(f'[store]\nstate_dir = "{folder / "state"}"\n[gateway]\nport = {port}\n[worker]\npinning = "{pinning}"\n')
    variables = {
        "PENSTOCK_CONFIG": str(config),
        "PENSTOCK_MODELS": json.dumps(models),
        "PENSTOCK_PIPELINES": json.dumps(pipelines or {}),
    }
    with running(Processes(folder, variables), [["up", str(config)]]) as processes:
        await_ready(port, processes, path="/readyz")
        yield f"http://127.0.0.1:{port}", processes


def settings_of(choice: Choice, table: Mapping[str, Any]) -> dict[str, Any]:
    """The choice as keys of `[models.NAME]`. Buckets of `table` above the batch size are dropped.

    `pinning` is not among the keys, because it is a setting of the worker.
    """
    engine = choice.engine
    on_cpu = engine.device == "cpu"
    written: dict[str, Any] = {
        "max_batch_size": choice.batch_size,
        "max_wait_s": choice.max_wait_s,
        "slots" if on_cpu else "slots_per_device": choice.slots,
        "threads": engine.threads,
        "device": engine.device,
        "runtime": engine.runtime,
        "precision": engine.precision,
        "compile": engine.compile,
        "placement": choice.placement,
    }
    buckets = table.get("batch_buckets", ())
    if bucket_fault(buckets, choice.batch_size):
        written["batch_buckets"] = list(fitted_buckets(buckets, choice.batch_size))
    return {name: value for name, value in written.items() if value is not None}


@dataclass(frozen=True, slots=True)
class TrialStack:
    """A stack that runs."""

    model: str
    url: str
    processes: Processes
    inputs: Sequence[RequestBody]

    def offer(self, rate: float, goal: Goal, *, seconds: float, warm_up_s: float, seed: int) -> TrialResult:
        """Sends Poisson arrivals at `rate`; stops early if the queue only grows."""
        shape = Shape(
            duration_s=seconds,
            warm_up_s=warm_up_s,
            profile=(Stretch(rate, rate, seconds),),
            seed=seed,
            deadline_s=goal.limit_s,
            drain_s=_DRAIN_S,
            most=_MOST_CONNECTIONS,
        )
        most = max(_BACKLOG_LEAST, _BACKLOG_GOALS * goal.limit_s * rate)
        return self._run(shape, goal, most=most)

    def saturate(self, goal: Goal, *, concurrency: int, seconds: float) -> TrialResult:
        """Sends a closed loop."""
        shape = Shape(duration_s=seconds, warm_up_s=min(0.5, seconds / 2), concurrency=concurrency, drain_s=_DRAIN_S)
        return self._run(shape, goal, most=math.inf)

    def _run(self, shape: Shape, goal: Goal, *, most: float) -> TrialResult:
        with Client(self.url) as client:
            bench = LoadTest(
                adapter=make_adapter(Kind.PENSTOCK, self.url, self.model),
                shape=shape,
                bodies=self.inputs,
                description={},
                facts=read_model_facts(client, self.model, ""),
                client=client,
            )
            result, why = asyncio.run(_watched(bench, most))
        self.processes.check()
        self._await_empty()
        return TrialResult(None, why) if result is None else trial_result(result, goal)

    def _await_empty(self) -> None:
        """Waits until the queue is empty, but not forever, so that jobs of one load do not delay the next load."""
        give_up_at = time.monotonic() + _EMPTY_S
        while time.monotonic() < give_up_at:
            with urllib.request.urlopen(f"{self.url}/v1/queues/{self.model}", timeout=_ANSWER_S) as answer:
                queue = json.loads(answer.read())
            if not queue["depth"] and not queue["in_flight"]:
                return
            time.sleep(_LOOK_S)


async def _watched(bench: LoadTest, most: float) -> tuple[LoadTestResult | None, str]:
    task = asyncio.current_task()
    assert task is not None
    why = ""

    def on_progress(seconds: float, progress: LoadProgress) -> None:
        nonlocal why
        waiting = progress.offered - progress.good - progress.bad
        if waiting > most and not why:
            why = f"the queue only grew: {waiting:,} calls had no answer after {seconds:.1f} s"
            task.cancel()

    try:
        return await run_load_test(bench, on_progress), ""
    except asyncio.CancelledError:
        if not why:
            raise
        task.uncancel()
        return None, why


def trial_result(result: LoadTestResult, goal: Goal) -> TrialResult:
    """A load test's result as the result of a trial."""
    outcome, latency = result.outcome, result.outcome.latency
    if latency is None or outcome.error_rate > 0.0:
        errors = "; ".join(f"{count} x {status}" for status, count in outcome.errors.items()) or "no call was answered"
        return TrialResult(None, f"calls failed: {errors}")
    inside = result.inside
    figures = Figures(
        offered_rps=outcome.offered_rps,
        throughput_rps=outcome.throughput_rps,
        p50_ms=latency.p50_ms,
        p99_ms=latency.p99_ms,
        tail_ms=_tail_ms(result, goal),
        mean_batch=_mean_batch(inside.batch_sizes if inside else {}),
        seconds=outcome.seconds,
    )
    return TrialResult(
        figures,
        stages_ms=dict(inside.stages_ms) if inside else {},
        batches=dict(inside.batch_sizes) if inside else {},
        notes=tuple(result.generator.limits),
    )


def _tail_ms(result: LoadTestResult, goal: Goal) -> float:
    latency = result.outcome.latency
    assert latency is not None
    named = {50.0: latency.p50_ms, 90.0: latency.p90_ms, 95.0: latency.p95_ms, 99.0: latency.p99_ms, 99.9: latency.p999_ms}
    return named[goal.percentile]


def _mean_batch(batches: Mapping[int, float]) -> float:
    count = sum(batches.values())
    return sum(size * number for size, number in batches.items()) / count if count else 0.0

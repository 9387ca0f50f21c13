"""A configuration under open-loop load on a stack of its own: store, gateway and worker as `penstock up` runs them."""

from __future__ import annotations

import asyncio
import json
import math
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.broker.records import ClaimRequest
from penstock.broker.server.embedded import EmbeddedServer
from penstock.broker.store.sync import RedisStore
from penstock.client.sync import Client
from penstock.errors import PenstockError
from penstock.loadtest.adapters import open_door
from penstock.loadtest.assignment import LoadProgress
from penstock.loadtest.generator.arrivals import Stretch
from penstock.loadtest.generator.connection import RequestBody
from penstock.loadtest.observed.stack_facts import standing
from penstock.loadtest.plan import Kind, Shape
from penstock.loadtest.result import LoadTestResult
from penstock.loadtest.run import LoadTest, run_bench
from penstock.loadtest.stack import Processes, await_ready, free_port, running
from penstock.model_spec import bucket_fault, fitted_buckets
from penstock.tune.result import Choice, Figures, Goal, Overheads

_NO_LIMIT = 10_000_000
_ECHO = "penstock.tune.measuring.echo:Echo"
_DRAIN_S = 5.0
_MOST_CONNECTIONS = 2_048
# With so many goals' worth of calls unanswered the queue only grows: no need to see the end of it.
_BACKLOG_GOALS = 6.0
_BACKLOG_LEAST = 64
_CLAIMS = 200
_EMPTY_S, _ANSWER_S, _LOOK_S = 15.0, 5.0, 0.05
_LONE_RPS = 40.0
_CONCURRENCY = 32
_STAGES = ("preprocess", "inference", "postprocess")


@dataclass(frozen=True, slots=True)
class Met:
    """What a load met. `figures` None: it was stopped, `why` says at what. `stages_ms`, `batches`: as of `penstock bench`."""

    figures: Figures | None
    why: str = ""
    stages_ms: dict[str, float] = field(default_factory=dict)
    batches: dict[int, float] = field(default_factory=dict)
    closed_rps: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TuneEnvironment:
    """Where stacks are set up: an empty folder on a real disk, the model's settings as declared, and the inputs sent."""

    folder: Path
    name: str
    version: str
    table: Mapping[str, Any]
    inputs: tuple[RequestBody, ...]

    @contextmanager
    def stack(self, choice: Choice, *, number: int) -> Iterator[TrialStack]:
        """Ready to answer. Raises `PenstockError` when it does not come up."""
        table = {**self.table, **settings_of(choice, self.table), "max_queue_depth": _NO_LIMIT, "version": self.version}
        folder = self.folder / f"stack-{number}"
        with _up(folder, {self.name: table}, pinning=choice.engine.pinning) as (url, processes):
            yield TrialStack(self.name, url, processes, self.inputs)


@contextmanager
def _up(folder: Path, models: Mapping[str, Mapping[str, Any]], *, pinning: str) -> Iterator[tuple[str, Processes]]:
    """`penstock up` with these models and a state of its own."""
    folder.mkdir(parents=True)
    port = free_port()
    config = folder / "penstock.toml"
    config.write_text(f'[store]\nstate_dir = "{folder / "state"}"\n[gateway]\nport = {port}\n[worker]\npinning = "{pinning}"\n')
    variables = {"PENSTOCK_CONFIG": str(config), "PENSTOCK_MODELS": json.dumps(models)}
    with running(Processes(folder, variables), [["up", str(config)]]) as processes:
        await_ready(port, processes, path="/readyz")
        yield f"http://127.0.0.1:{port}", processes


def settings_of(choice: Choice, table: Mapping[str, Any]) -> dict[str, Any]:
    """The choice as keys of `[models.NAME]`, with the buckets of `table` cut to its batch size if they go beyond it.

    `pinning` is the worker's own and not among them.
    """
    engine = choice.engine
    on_cpu = engine.device == "cpu"
    written: dict[str, Any] = {
        "max_batch_size": choice.batch_size,
        "max_wait_s": choice.max_wait_s,
        "workers" if on_cpu else "workers_per_device": choice.workers,
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
    """One that runs."""

    model: str
    url: str
    processes: Processes
    inputs: Sequence[RequestBody]

    def offer(self, rate: float, goal: Goal, *, seconds: float, warm_up_s: float, seed: int) -> Met:
        """Poisson arrivals at `rate`; ends early when the queue only grows."""
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

    def saturate(self, goal: Goal, *, concurrency: int, seconds: float) -> Met:
        """A closed loop."""
        shape = Shape(duration_s=seconds, warm_up_s=min(0.5, seconds / 2), concurrency=concurrency, drain_s=_DRAIN_S)
        return self._run(shape, goal, most=math.inf)

    def _run(self, shape: Shape, goal: Goal, *, most: float) -> Met:
        with Client(self.url) as client:
            bench = LoadTest(
                door=open_door(Kind.PENSTOCK, self.url, self.model),
                shape=shape,
                bodies=self.inputs,
                told={},
                standing=standing(client, self.model, ""),
                client=client,
            )
            result, why = asyncio.run(_watched(bench, most))
        self.processes.check()
        self._await_empty()
        return Met(None, why) if result is None else met(result, goal)

    def _await_empty(self) -> None:
        """What a load left behind must not meet the next one. After a while that one is on its own."""
        give_up_at = time.monotonic() + _EMPTY_S
        while time.monotonic() < give_up_at:
            with urllib.request.urlopen(f"{self.url}/v1/queues/{self.model}", timeout=_ANSWER_S) as answer:
                told = json.loads(answer.read())
            if not told["depth"] and not told["in_flight"]:
                return
            time.sleep(_LOOK_S)


async def _watched(bench: LoadTest, most: float) -> tuple[LoadTestResult | None, str]:
    task = asyncio.current_task()
    assert task is not None
    why = ""

    def told(seconds: float, said: LoadProgress) -> None:
        nonlocal why
        waiting = said.offered - said.good - said.bad
        if waiting > most and not why:
            why = f"the queue only grew: {waiting:,} calls had no answer after {seconds:.1f} s"
            task.cancel()

    try:
        return await run_bench(bench, told), ""
    except asyncio.CancelledError:
        if not why:
            raise
        task.uncancel()
        return None, why


def met(result: LoadTestResult, goal: Goal) -> Met:
    """The result of a load in the words of a tuning."""
    outcome, latency = result.outcome, result.outcome.latency
    if latency is None or outcome.error_rate > 0.0:
        said = "; ".join(f"{count} x {status}" for status, count in outcome.errors.items()) or "no call was answered"
        return Met(None, f"calls failed: {said}")
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
    return Met(
        figures,
        stages_ms=dict(inside.stages_ms) if inside else {},
        batches=dict(inside.batch_sizes) if inside else {},
        closed_rps=outcome.throughput_rps,
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


def measure_overheads(folder: Path, *, seconds: float) -> Overheads:
    """What penstock itself costs on this machine: the store's part of a claim, and a model that returns its input, alone and in
    batches."""
    claim_s = _claim_s(folder / "claims")
    goal = Goal(limit_s=10.0)
    body = (RequestBody(b'{"x": 1}', "application/json"),)
    sizes = {"batched": 64, "single": 1}
    models = {name: {"source": _ECHO, "max_batch_size": size} for name, size in sizes.items()}
    with _up(folder / "noop", models, pinning="none") as (url, processes):
        lone = TrialStack("single", url, processes, body).offer(_LONE_RPS, goal, seconds=seconds, warm_up_s=0.5, seed=1)
        rates = {
            name: TrialStack(name, url, processes, body).saturate(goal, concurrency=_CONCURRENCY, seconds=seconds)
            for name in sizes
        }
    whole = {name: 1.0 / found.figures.throughput_rps for name, found in rates.items() if found.figures}
    if lone.figures is None or len(whole) < len(sizes):
        raise PenstockError(f"the cost of penstock itself could not be measured: {lone.why or rates}")
    inside_s = sum(lone.stages_ms.get(stage, 0.0) for stage in _STAGES) / 1e3
    feed_s = claim_s / 2
    request_s = max(0.0, lone.figures.p50_ms / 1e3 - inside_s - claim_s - feed_s)
    batch_s = max(0.0, whole["single"] - whole["batched"])
    return Overheads(claim_s, feed_s, request_s, per_item_s=whole["batched"], per_batch_s=batch_s)


def _claim_s(folder: Path) -> float:
    """The median of a question that finds nothing."""
    folder.mkdir(parents=True)
    request = ClaimRequest("noop", "1", "tune", "0", limit=1, enough=1, lease_s=10.0)
    with EmbeddedServer(folder) as server:
        store = RedisStore(server.url)
        try:
            return _median_s(store, request)
        finally:
            store.close()


def _median_s(store: RedisStore, request: ClaimRequest) -> float:
    took = []
    for number in range(_CLAIMS):
        began = time.perf_counter()
        store.claim(replace(request, nonce=str(number)))
        took.append(time.perf_counter() - began)
    return sorted(took)[len(took) // 2]

"""The cost of a queue of a million jobs: submit, status and cancel compared with an empty queue, and memory per job.

There are two stores with a gateway each, one empty and one filled, without workers. The calls go to both in turn, in short
blocks, so that a machine whose speed drifts slows both equally.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.main_path.http_figures import NOOP_BODY
from benchmarks.main_path.producer import fill
from benchmarks.session import MeasuringSession, check_answers
from benchmarks.stack import StackPlan, store_server, stores_environment
from penstock.broker.store.connection import connect
from penstock.broker.store.sync import RedisStore
from penstock.job import JobId
from penstock.loadtest.generator.connection import parse_target, request_bytes
from penstock.loadtest.generator.load import LoadSpec, run_load
from penstock.loadtest.generator.summary import percentile
from penstock.loadtest.stack import Processes, await_ready, running

_MODEL = "noop"
_BLOCK = 50
_OPERATIONS = ("submit", "status", "cancel")
_INPUT = b'{"x": 4, "pad": "' + b"p" * (1_024 - 19) + b'"}'  # 1 KiB


@dataclass(slots=True)
class QueueSide:
    """One store and its gateway, with the latencies of each operation."""

    plan: StackPlan
    store: RedisStore
    redis_url: str
    latencies_s: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in _OPERATIONS})

    def memory(self) -> dict[str, Any]:
        return dict(connect(self.redis_url).info("memory"))

    def rewriting(self) -> bool:
        state = dict(connect(self.redis_url).info("persistence"))
        return bool(state["aof_rewrite_in_progress"] or state.get("aof_rewrite_scheduled"))


def measure_deep_queue(session: MeasuringSession) -> None:
    with ExitStack() as stack:
        empty = stack.enter_context(_side(session.stack_plan("empty")))
        deep = stack.enter_context(_side(session.stack_plan("deep")))
        blocks = max(10, int(3 * session.seconds))
        ids = _fill_deep(session, deep, sample=(blocks + 1) * _BLOCK)
        for block in range(blocks + 1):
            turn = [(empty, _fresh_ids(empty)), (deep, ids[block * _BLOCK : (block + 1) * _BLOCK])]
            # The second side finds warmer caches, so the order changes with each block.
            for side, own in turn if block % 2 else reversed(turn):
                _run_block(side, own, keep=block > 0)
    _note(session, empty, deep)


@contextmanager
def _side(plan: StackPlan) -> Iterator[QueueSide]:
    with store_server(plan) as server:
        processes = Processes(plan.folder, stores_environment(plan, server.url))
        with running(processes, [["gateway"]]):
            await_ready(plan.port, processes, path="/livez")
            yield QueueSide(plan, RedisStore(server.url), server.url)


def _fill_deep(session: MeasuringSession, deep: QueueSide, *, sample: int) -> list[JobId]:
    """Fills the queue; `sample` job ids from all parts of it, in random order."""
    before, chosen, choice = deep.memory(), [], random.Random(1)
    chance = 2 * sample / session.deep_jobs
    for group in fill(deep.store, _MODEL, session.deep_jobs, data=_INPUT):
        chosen += [job for job in group if choice.random() < chance]
    while deep.rewriting():
        time.sleep(0.2)
    after = deep.memory()
    per_job = (after["used_memory"] - before["used_memory"]) / session.deep_jobs
    session.findings.figures["bytes_per_job"] = per_job
    session.findings.detail["deep_queue_memory"] = {"jobs": session.deep_jobs, "input_bytes": len(_INPUT), **_sizes(after)}
    session.say(f"deep queue: {session.deep_jobs:,} jobs, {per_job:,.0f} bytes each with 1 KiB of input")
    choice.shuffle(chosen)
    return chosen[:sample]


def _sizes(memory: dict[str, Any]) -> dict[str, Any]:
    return {name: memory[name] for name in ("used_memory", "used_memory_rss", "mem_fragmentation_ratio") if name in memory}


def _fresh_ids(empty: QueueSide) -> list[JobId]:
    return [job for group in fill(empty.store, _MODEL, _BLOCK, data=_INPUT) for job in group]


def _run_block(side: QueueSide, ids: Sequence[JobId], *, keep: bool) -> None:
    """Sends one block of each call to one side. `keep`: the block counts; the first one is a warm-up."""
    url = side.plan.url
    submit = request_bytes(
        parse_target(f"{url}/v1/models/{_MODEL}/jobs"),
        method="POST",
        body=_INPUT,
        headers={"Content-Type": NOOP_BODY.content_type},
    )
    calls = {
        "submit": [submit] * len(ids),
        "status": [request_bytes(parse_target(f"{url}/v1/jobs/{job}")) for job in ids],
        "cancel": [request_bytes(parse_target(f"{url}/v1/jobs/{job}"), method="DELETE") for job in ids],
    }
    for name, requests in calls.items():
        latencies_s = _one_by_one(f"{side.plan.folder.name} {name}", url, requests)
        if keep:
            side.latencies_s[name] += latencies_s


def _one_by_one(name: str, url: str, requests: Sequence[bytes]) -> list[float]:
    """The latencies without the first one, which includes the connection."""
    report = run_load(LoadSpec(parse_target(url), iter(requests), connections=1, duration_s=60.0))
    check_answers(name, report)
    return report.latencies_s[1:]


def _note(session: MeasuringSession, empty: QueueSide, deep: QueueSide) -> None:
    ratios = {name: {"p50": _ratio(empty, deep, name, 50.0), "p99": _ratio(empty, deep, name, 99.0)} for name in _OPERATIONS}
    session.findings.figures["deep_queue_ratio"] = max(ratio["p50"] for ratio in ratios.values())
    session.findings.figures["deep_queue_p99_ratio"] = max(ratio["p99"] for ratio in ratios.values())
    session.findings.detail["deep_queue"] = {
        "ratios": ratios,
        "empty_ms": {name: _quantiles_ms(empty.latencies_s[name]) for name in _OPERATIONS},
        "deep_ms": {name: _quantiles_ms(deep.latencies_s[name]) for name in _OPERATIONS},
    }
    session.say("deep queue: " + ", ".join(f"{name} x {ratio['p50']:.2f}" for name, ratio in ratios.items()))


def _ratio(empty: QueueSide, deep: QueueSide, name: str, percent: float) -> float:
    return percentile(sorted(deep.latencies_s[name]), percent) / percentile(sorted(empty.latencies_s[name]), percent)


def _quantiles_ms(latencies_s: Sequence[float]) -> dict[str, float]:
    ordered = sorted(latencies_s)
    return {"p50": percentile(ordered, 50.0) * 1e3, "p99": percentile(ordered, 99.0) * 1e3, "count": len(ordered)}

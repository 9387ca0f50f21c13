"""What online traffic and a run on the same slot cost each other: the run alone, the traffic alone, and both, in turns.

The traffic is Poisson at 30 % of the run's rate alone, with one row per request. `online_p99_ratio` is the traffic's p99 beside
the run divided by its p99 alone. The traffic alone takes a share of the slot's core (worker and child) and leaves the rest;
`bulk_share` is the run's rate beside the traffic divided by this rest of the run's rate alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.bulk.environment import BenchEnvironment, Model
from benchmarks.bulk.inputs import as_body, read_inputs
from benchmarks.session import check_answers
from penstock.loadtest.generator.connection import parse_target, request_bytes
from penstock.loadtest.generator.load import LoadSpec, run_load
from penstock.loadtest.generator.summary import percentile

ONLINE_LOAD = 0.30
_CONNECTIONS = 256
_SETTLED_S = 2.0
_BODIES = 512
# Rows count when their shard is settled; short shards are settled several times in each window of seconds.
_OPTIONS = ("--column", "text", "--shard-rows", "64")


@dataclass(slots=True)
class SharedSlot:
    """Rates of the run, latencies of the traffic, and the share of the core that the traffic takes alone."""

    bulk_alone: list[float] = field(default_factory=list)
    bulk_beside: list[float] = field(default_factory=list)
    alone_s: list[float] = field(default_factory=list)
    beside_s: list[float] = field(default_factory=list)
    online_core: list[float] = field(default_factory=list)

    @property
    def p99_ratio(self) -> float:
        return _p99_ms(self.beside_s) / _p99_ms(self.alone_s)

    @property
    def bulk_share(self) -> float:
        return mean(self.bulk_beside) / (mean(self.bulk_alone) * (1 - mean(self.online_core)))

    def figures(self) -> dict[str, Any]:
        return {
            "online_p99_alone_ms": round(_p99_ms(self.alone_s), 2),
            "online_p99_beside_ms": round(_p99_ms(self.beside_s), 2),
            "online_p99_ratio": round(self.p99_ratio, 3),
            "online_answers": len(self.beside_s),
            "online_core_share": round(mean(self.online_core), 3),
            "bulk_alone_rows_per_s": round(mean(self.bulk_alone), 1),
            "bulk_beside_rows_per_s": round(mean(self.bulk_beside), 1),
            "bulk_share": round(self.bulk_share, 3),
        }


def _p99_ms(latencies_s: list[float]) -> float:
    return percentile(sorted(latencies_s), 99.0) * 1e3


def measure_shared_slot(bench: BenchEnvironment, model: Model, file: Path, *, seconds: float, rounds: int) -> SharedSlot:
    """`file` must hold more rows than the run can do in the whole time."""
    found = SharedSlot()
    with _running(bench, model, file):
        found.bulk_alone.append(_rate(bench, seconds))
    requests = _requests(bench, model, file)
    rate = found.bulk_alone[0] * ONLINE_LOAD
    _send_traffic(bench, model, requests, rate, min(2.0, seconds))
    for _ in range(rounds):
        cpu, began_at = bench.processes.read_cpu(), time.monotonic()
        found.alone_s += _send_traffic(bench, model, requests, rate, seconds)
        spent = bench.processes.read_cpu().since(cpu)
        found.online_core.append((spent["worker"] + spent["child"]) / (time.monotonic() - began_at))
        with _running(bench, model, file):
            before, began_at = bench.bulk_rows(), time.monotonic()
            found.beside_s += _send_traffic(bench, model, requests, rate, seconds)
            found.bulk_beside.append((bench.bulk_rows() - before) / (time.monotonic() - began_at))
            found.bulk_alone.append(_rate(bench, seconds))
    return found


@contextmanager
def _running(bench: BenchEnvironment, model: Model, file: Path) -> Iterator[None]:
    # Each run needs an output file of its own, because a cancelled run keeps its output.
    output = file.with_name(f"beside-{len(bench.started)}.jsonl")
    process = bench.begin(model.name, file, output, *_OPTIONS)
    try:
        before = bench.bulk_rows()
        while bench.bulk_rows() == before:
            bench.check(process)
            time.sleep(0.1)
        time.sleep(_SETTLED_S)
        yield
    finally:
        bench.end(process)


def _rate(bench: BenchEnvironment, seconds: float) -> float:
    before, began_at = bench.bulk_rows(), time.monotonic()
    time.sleep(seconds)
    return (bench.bulk_rows() - before) / (time.monotonic() - began_at)


def _requests(bench: BenchEnvironment, model: Model, file: Path) -> list[bytes]:
    target = parse_target(f"http://127.0.0.1:{bench.port}/predictions/{model.name}")
    bodies = [as_body(value) for value in read_inputs(file)[:_BODIES]]
    return [request_bytes(target, method="POST", body=data, headers={"Content-Type": media}) for media, data in bodies]


def _send_traffic(bench: BenchEnvironment, model: Model, requests: list[bytes], rate: float, seconds: float) -> list[float]:
    target = parse_target(f"http://127.0.0.1:{bench.port}/predictions/{model.name}")
    report = run_load(LoadSpec(target, cycle(requests), connections=_CONNECTIONS, duration_s=seconds, rate=rate))
    bench.processes.check()
    check_answers(model.name, report)
    return report.latencies_s

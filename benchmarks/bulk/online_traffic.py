"""Online traffic and a run on one slot: what each loses. The run at full speed alone, the traffic alone, both together, in
turns.

The traffic is Poisson at 30 % of what the run does alone, one row per request. `online_p99_ratio` is the traffic's p99 beside
the run by that alone. What the traffic leaves is one less the share of the slot's core that worker and child take for it alone;
`bulk_share` is the run's rows per second beside the traffic by that share of what it reaches alone.
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
from penstock.loadtest.generator.load import LoadPlan, run_load
from penstock.loadtest.generator.summary import percentile

ONLINE_LOAD = 0.30
_CONNECTIONS = 256
_SETTLED_S = 2.0
_BODIES = 512
# Shards as short as this are counted often enough for windows of seconds.
_OPTIONS = ("--column", "text", "--shard-rows", "64")


@dataclass(slots=True)
class Shared:
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


def shared(ground: BenchEnvironment, model: Model, file: Path, *, seconds: float, rounds: int) -> Shared:
    """`file` must hold more rows than the run does in all that time."""
    found = Shared()
    with _running(ground, model, file):
        found.bulk_alone.append(_rate(ground, seconds))
    requests = _requests(ground, model, file)
    rate = found.bulk_alone[0] * ONLINE_LOAD
    _ask(ground, model, requests, rate, min(2.0, seconds))
    for _ in range(rounds):
        cpu, began_at = ground.processes.read_cpu(), time.monotonic()
        found.alone_s += _ask(ground, model, requests, rate, seconds)
        spent = ground.processes.read_cpu().since(cpu)
        found.online_core.append((spent["worker"] + spent["child"]) / (time.monotonic() - began_at))
        with _running(ground, model, file):
            before, began_at = ground.bulk_rows(), time.monotonic()
            found.beside_s += _ask(ground, model, requests, rate, seconds)
            found.bulk_beside.append((ground.bulk_rows() - before) / (time.monotonic() - began_at))
            found.bulk_alone.append(_rate(ground, seconds))
    return found


@contextmanager
def _running(ground: BenchEnvironment, model: Model, file: Path) -> Iterator[None]:
    # Each with an output of its own: a run that is stopped keeps what it has written, and its name.
    output = file.with_name(f"beside-{len(ground.started)}.jsonl")
    process = ground.begin(model.name, file, output, *_OPTIONS)
    try:
        before = ground.bulk_rows()
        while ground.bulk_rows() == before:
            ground.check(process)
            time.sleep(0.1)
        time.sleep(_SETTLED_S)
        yield
    finally:
        ground.end(process)


def _rate(ground: BenchEnvironment, seconds: float) -> float:
    before, began_at = ground.bulk_rows(), time.monotonic()
    time.sleep(seconds)
    return (ground.bulk_rows() - before) / (time.monotonic() - began_at)


def _requests(ground: BenchEnvironment, model: Model, file: Path) -> list[bytes]:
    target = parse_target(f"http://127.0.0.1:{ground.port}/predictions/{model.name}")
    bodies = [as_body(value) for value in read_inputs(file)[:_BODIES]]
    return [request_bytes(target, method="POST", body=data, headers={"Content-Type": media}) for media, data in bodies]


def _ask(ground: BenchEnvironment, model: Model, requests: list[bytes], rate: float, seconds: float) -> list[float]:
    target = parse_target(f"http://127.0.0.1:{ground.port}/predictions/{model.name}")
    report = run_load(LoadPlan(target, cycle(requests), connections=_CONNECTIONS, duration_s=seconds, rate=rate))
    ground.processes.check()
    check_answers(model.name, report)
    return report.latencies_s

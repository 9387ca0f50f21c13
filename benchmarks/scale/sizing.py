"""How many primaries, gateways and workers a rate of jobs needs, by committed figures. Pure, but for reading and writing.

`python -m benchmarks.scale.sizing` writes the tables of docs/production/sizing.md.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.torchserve.pages import write_between

_RESULTS = Path(__file__).resolve().parents[1] / "results"
PAGE = _RESULTS.parents[1] / "docs" / "production" / "sizing.md"
RATES = (10_000, 100_000, 1_000_000)
_MONTH_H = 730


@dataclass(frozen=True, slots=True)
class JobCost:
    """What one job takes: CPU in microseconds by part, bytes. `store_spread`: the capacity of two primaries in units of
    one server.
    """

    gateway_us: float
    store_us: float
    worker_us: float
    kept_bytes: float
    store_in_bytes: float
    store_out_bytes: float
    store_spread: float


@dataclass(frozen=True, slots=True)
class SizingPlan:
    """What an operator decides. `busy`: the share of a core that may be used, the rest is for bursts and for a lost machine.

    `kept_s`: how long a job stays in the store, waiting and as a result. `replicas` of each store. Prices are in dollars.
    """

    busy: float = 0.6
    kept_s: float = 60.0
    replicas: int = 1
    vcpu_hour: float = 0.04048
    gib_hour: float = 0.004445


@dataclass(frozen=True, slots=True)
class Sizing:
    """`primaries` without their replicas. `gateways` and `workers` are processes of one core each, without the models' own."""

    primaries: int
    gateways: int
    workers: int
    store_gib: float
    network_mb_s: float
    dollars_month: float


def sizing(rate: float, cost: JobCost, plan: SizingPlan) -> Sizing:
    """`rate` in jobs per second. One core of a store serves its functions, so primaries are counted in cores too."""
    primaries = _cores(rate, cost.store_us, plan)
    if primaries > 1:
        primaries = math.ceil(primaries / (cost.store_spread / 2))
    gateways, workers = _cores(rate, cost.gateway_us, plan), _cores(rate, cost.worker_us, plan)
    store_gib = rate * plan.kept_s * cost.kept_bytes / 2**30 * (1 + plan.replicas)
    # A replica receives what the store receives, about: the log of writes is what came in.
    per_job = cost.store_in_bytes * (1 + plan.replicas) + cost.store_out_bytes
    vcpus = primaries * (1 + plan.replicas) + gateways + workers
    hourly = vcpus * plan.vcpu_hour + store_gib * plan.gib_hour
    return Sizing(primaries, gateways, workers, store_gib, rate * per_job / 1e6, hourly * _MONTH_H)


def _cores(rate: float, job_us: float, plan: SizingPlan) -> int:
    return max(1, math.ceil(rate * job_us / 1e6 / plan.busy))


def read_cost() -> JobCost:
    """From the figures that `make bench` and `make scale` committed."""
    bench, detail, scale = (_read(name) for name in ("bench.json", "bench_detail.json", "scale.json"))
    cpu, capacity = detail["cost_us"]["submit"], scale["cluster_capacity"]
    servers = [turns["server"] for turns in capacity["detail"]["noop"]]
    return JobCost(
        gateway_us=cpu["gateway"],
        store_us=cpu["redis"],
        worker_us=cpu["worker"],
        kept_bytes=bench["bytes_per_job"],
        store_in_bytes=statistics.median(one["in_bytes_per_job"] for one in servers),
        store_out_bytes=statistics.median(one["out_bytes_per_job"] for one in servers),
        store_spread=capacity["figures"]["cluster_ratio"],
    )


def _read(name: str) -> dict[str, Any]:
    return msgspec.json.decode((_RESULTS / name).read_bytes(), type=dict[str, Any])


def cost_table(cost: JobCost) -> str:
    rows: Mapping[str, str] = {
        "gateway, CPU": f"{cost.gateway_us:.0f} us",
        "store, CPU": f"{cost.store_us:.0f} us",
        "worker without the model, CPU": f"{cost.worker_us:.0f} us",
        "store, memory while the job is kept": f"{cost.kept_bytes:,.0f} bytes",
        "into the store": f"{cost.store_in_bytes:,.0f} bytes",
        "out of the store": f"{cost.store_out_bytes:,.0f} bytes",
        "two primaries of a cluster carry, in units of one server": f"{cost.store_spread:.2f}",
    }
    return "\n".join(["| one job | takes |", "|---|---|", *(f"| {what} | {value} |" for what, value in rows.items())])


def sizing_table(cost: JobCost, plan: SizingPlan, rates: Sequence[int] = RATES) -> str:
    head = "| jobs/s | primaries (with replicas) | gateway processes | worker processes | store memory | network | a month |"
    rows = [_row(rate, sizing(rate, cost, plan), plan) for rate in rates]
    return "\n".join([head, "|---|---|---|---|---|---|---|", *rows])


def _row(rate: int, found: Sizing, plan: SizingPlan) -> str:
    return (
        f"| {rate:,} | {found.primaries} ({found.primaries * (1 + plan.replicas)}) | {found.gateways} | {found.workers} | "
        f"{found.store_gib:,.1f} GiB | {found.network_mb_s:,.0f} MB/s | ${found.dollars_month:,.0f} |"
    )


def main() -> int:
    cost = read_cost()
    write_between(PAGE, "cost: python -m benchmarks.scale.sizing", cost_table(cost))
    write_between(PAGE, "sizing: python -m benchmarks.scale.sizing", sizing_table(cost, SizingPlan()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The figures of the main path with their targets, and how they are printed and stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.measured_figure import MeasuredFigure
from benchmarks.peers.table import RESULTS, beside, load_result
from benchmarks.peers.workloads import ACCELERATOR, NOOP
from penstock.loadtest.observed.costs import STAGES
from penstock.loadtest.observed.machine import describe_machine, now
from penstock.words import number

_PEERS_SOURCE = f"peers: {RESULTS}, with 64 requests under way; none of them stores a request before it runs"
ACCEL_BATCH = 32
ACCEL_BATCH_S = 0.021  # 5 ms + 0.5 ms per item
ACCEL_LIMIT_RPS = ACCEL_BATCH / ACCEL_BATCH_S


FIGURES = (
    MeasuredFigure("noop_sync_c64_rps", "no-op, synchronous, 64 at once: requests/s", 5_000, peers=NOOP),
    MeasuredFigure("cpu_us_per_noop", "the same, CPU per request of all but the client: us", None, at_least=False),
    MeasuredFigure("noop_sync_c1_p50_ms", "no-op, a lone request: p50 ms", 3.0, at_least=False),
    MeasuredFigure("noop_sync_c1_p50_everysec_ms", "the same with fsync everysec: p50 ms", 2.0, at_least=False),
    MeasuredFigure("lone_vs_floor", "a lone no-op against an empty request and one synced write: p50", 2.0, at_least=False),
    MeasuredFigure(
        "gateway_calls_per_request",
        "no-op, 64 at once: calls of functions in the gateway per request",
        None,
        at_least=False,
    ),
    MeasuredFigure(
        "accel_saturated_ratio",
        "accelerator, saturated, 4 KiB: share of 1,524/s",
        0.95,
        peers=ACCELERATOR,
        peers_unit=ACCEL_LIMIT_RPS,
    ),
    MeasuredFigure("accel_saturated_100k_ratio", "accelerator, saturated, 100 KiB: share of 1,524/s", 0.90),
    MeasuredFigure("accel_100k_ratio", "accelerator, 64 at once, 100 KiB: share of 1,524/s", 0.95),
    MeasuredFigure("accel_lone_p50_ms", "accelerator, a lone request: p50 ms", 7.5, at_least=False),
    MeasuredFigure("accel_80_p99_batches", "accelerator, 80 % load: p99 in batch times of 21 ms", 3.0, at_least=False),
    MeasuredFigure("accel_120_goodput_ratio", "accelerator, 120 % load: on time in 200 ms, share of 1,524/s", 0.85),
    MeasuredFigure("submit_rps", "asynchronous submit only: durable 202s per second", 3_000),
    MeasuredFigure("engine_jobs_per_s", "broker and worker alone, no-op: jobs/s", 15_000),
    MeasuredFigure("engine_drain_jobs_per_s", "the same from a full queue: jobs/s", None),
    MeasuredFigure("deep_queue_ratio", "deep queue against empty: worst p50 of submit, status, cancel", 1.5, at_least=False),
    MeasuredFigure("deep_queue_p99_ratio", "deep queue against empty: worst p99 of the three", None, at_least=False),
    MeasuredFigure("bytes_per_job", "memory per queued job with 1 KiB of input: bytes", None),
)


@dataclass(slots=True)
class Findings:
    """The results of the runs: `figures` for bench.json, everything else for bench_detail.json."""

    figures: dict[str, float] = field(default_factory=dict)
    detail: dict[str, Any] = field(default_factory=dict)
    costs_us: dict[str, dict[str, float]] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)

    def cost(self, run: str, costs_us: Mapping[str, float]) -> None:
        self.costs_us[run] = dict(costs_us)


def print_report(findings: Findings, console: Console) -> None:
    console.print(_figure_table(findings.figures))
    if load_result(RESULTS):
        console.print(_PEERS_SOURCE)
    console.print(_cost_table(findings.costs_us))
    for doubt in findings.doubts:
        console.print(f"doubtful: {doubt}", markup=False)


def _figure_table(values: Mapping[str, float]) -> Table:
    table = Table("figure", "what", "value", "target", "", "peers", title="penstock, main path")
    for figure in FIGURES:
        if figure.name in values:
            value = values[figure.name]
            row = (figure.name, figure.text, number(value), figure.target_text(), figure.verdict(value), _peers(figure))
            table.add_row(*row)
    return table


def _peers(figure: MeasuredFigure) -> str:
    return beside(figure.peers, unit=figure.peers_unit) if figure.peers else ""


def _cost_table(costs_us: Mapping[str, Mapping[str, float]]) -> Table:
    columns = [*STAGES, "total"]
    table = Table("run", *columns, title="cost per request by stage, us of CPU")
    for run, costs in costs_us.items():
        table.add_row(run, *(f"{costs[column]:,.1f}" if column in costs else "" for column in columns))
    return table


def write_report(findings: Findings, out: Path, *, keep_others: bool) -> None:
    """Writes the figures to `out` and the rest to `<stem>_detail.json`. `keep_others`: figures not measured now stay."""
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.with_name(f"{out.stem}_detail.json")
    old, old_detail = (_load(out), _load(beside)) if keep_others else ({}, {})
    rounded = {name: round(value, 4) for name, value in findings.figures.items()}
    _store(out, {**old, **rounded})
    detail = {
        "machine": describe_machine(),
        "measured_at": {**old_detail.get("measured_at", {}), **dict.fromkeys(rounded, now())},
        "runs": {**old_detail.get("runs", {}), **findings.detail},
        "cost_us": {**old_detail.get("cost_us", {}), **findings.costs_us},
        "doubts": findings.doubts,
    }
    _store(beside, detail)


def _load(path: Path) -> dict[str, Any]:
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Any]) if path.exists() else {}


def _store(path: Path, content: Mapping[str, Any]) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")

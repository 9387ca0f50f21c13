"""From answers and counters to one row of the table. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from benchmarks.models.rows import Row
from penstock.loadtest.generator.summary import Samples, percentile

TARGET = 0.90
# A faster batch costs less than its way through the queue, and the ratio would be about the queue only.
JUDGED_MS = 5.0
# Other programs with more than a tenth of the machine shift a ratio by more than the target allows.
FOREIGN_SHARE = 0.10
_BATCHES_IN_RAMP = 3
# The processes that need a core while the model runs.
_WAY = ("client", "gateway", "redis", "worker")


@dataclass(frozen=True, slots=True)
class RowTurn:
    """One turn of each way. Rates are items per second. `cpu_s`: CPU seconds per item over HTTP, by stage of the way;
    `loop_cpu_s`: the model's CPU seconds per item in the loop of all stages. `beside`: figures watched during the load.
    `parallel_per_s`: the rate of a loop with parallel calls; None: the worker makes none.
    """

    items_per_s: float
    stages_per_s: float
    inference_per_s: float
    cpu_s: Mapping[str, float]
    loop_cpu_s: float
    latencies_s: tuple[float, ...]
    foreign_share: float = 0.0
    beside: Mapping[str, float | None] = field(default_factory=dict)
    parallel_per_s: float | None = None


def ramp_s(batch_s: float) -> float:
    """The seconds at the beginning in which the queue fills and batches are small."""
    return max(0.3, _BATCHES_IN_RAMP * batch_s)


def steady(samples: Samples, *, begin: float, end: float) -> tuple[float, tuple[float, ...]]:
    """The rate and the latencies of the answers that came from `begin` to `end`.

    Answers come in bursts of one batch, so their number depends on where the window cuts a burst. The slope of a line fitted
    through (time, number of the answer) does not.
    """
    pairs = zip(samples.answered_at, samples.latencies_s, strict=True)
    inside = [(at, latency) for at, latency in pairs if begin <= at <= end]
    return _slope([at for at, _ in inside]), tuple(latency for _, latency in inside)


def _slope(times: Sequence[float]) -> float:
    """The slope of the least-squares line through (time, rank); 0: too few points."""
    if len(times) < 2 or times[0] == times[-1]:
        return 0.0
    middle, middle_rank = mean(times), (len(times) - 1) / 2
    above = sum((at - middle) * (rank - middle_rank) for rank, at in enumerate(times))
    return above / sum((at - middle) ** 2 for at in times)


def record(row: Row, blocks: Sequence[RowTurn]) -> dict[str, Any]:
    """The row's entry in models.json: rates are means over the blocks, percentiles are of all answers together. A figure
    watched beside is None if no block knows it."""
    items, stages, inference = (
        mean(values) for values in zip(*((b.items_per_s, b.stages_per_s, b.inference_per_s) for b in blocks), strict=True)
    )
    latencies = sorted(latency for block in blocks for latency in block.latencies_s)
    foreign = max(block.foreign_share for block in blocks)
    batch_ms = row.batch * row.slots / inference * 1e3
    return {
        "name": row.name,
        "model": row.model,
        "runtime": row.runtime,
        "batch": row.batch,
        "precision": row.precision,
        "threads": row.threads,
        "slots": row.slots,
        "items_per_s": round(items, 2),
        "p50_ms": round(percentile(latencies, 50.0) * 1e3, 2),
        "p99_ms": round(percentile(latencies, 99.0) * 1e3, 2),
        "in_process_items_per_s": round(stages, 2),
        "ratio": round(items / stages, 3),
        **_parallel(blocks, items),
        "inference_only_items_per_s": round(inference, 2),
        "inference_ratio": round(items / inference, 3),
        "model_ms_per_batch": round(batch_ms, 2),
        "judged": batch_ms > JUDGED_MS,
        "met": batch_ms <= JUDGED_MS or items / stages >= TARGET,
        "cpu_ms_per_item": _cpu_ms(blocks, "child"),
        "in_process_cpu_ms_per_item": round(mean(block.loop_cpu_s for block in blocks) * 1e3, 3),
        "way_cpu_ms_per_item": {stage: _cpu_ms(blocks, stage) for stage in _WAY},
        "block_ratios": [round(block.items_per_s / block.stages_per_s, 3) for block in blocks],
        "foreign_cpu_share": round(foreign, 3),
        "doubtful": foreign > FOREIGN_SHARE,
        **{name: _mean_of_known(block.beside[name] for block in blocks) for name in blocks[0].beside},
    }


def _parallel(blocks: Sequence[RowTurn], items: float) -> dict[str, float | None]:
    rates = [block.parallel_per_s for block in blocks if block.parallel_per_s is not None]
    rate, ratio = (round(mean(rates), 2), round(items / mean(rates), 3)) if rates else (None, None)
    return {"in_process_parallel_items_per_s": rate, "parallel_ratio": ratio}


def _mean_of_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(mean(known), 3) if known else None


def _cpu_ms(blocks: Sequence[RowTurn], stage: str) -> float:
    return round(mean(block.cpu_s.get(stage, 0.0) for block in blocks) * 1e3, 3)

"""The server's inside from answers and job records: queue wait, run time, batches, the split of the latency. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from penstock.client.views import JobView
from penstock.loadtest.assignment import MergedTally
from penstock.loadtest.figures import spread
from penstock.loadtest.result import Inside

K = TypeVar("K", int, str)
_STAGES = ("preprocess", "inference", "postprocess")


def inside_view(
    load: MergedTally,
    records: Sequence[JobView],
    *,
    seconds: float,
    slots: int | None,
    mean_latency_ms: float | None,
    counters: Mapping[str, float],
) -> Inside | None:
    """From the `Server-Timing` of all answers; without these from the records of sampled jobs. None if there is neither."""
    ended = [job for job in records if job.batch is not None and job.batch.size]
    if not load.sizes and not ended and not counters:
        return None
    pairs = list(zip(load.sizes, load.reasons, strict=True)) or [(_size(job), _reason(job)) for job in ended]
    return Inside(
        source=_source(len(load.sizes), len(ended)),
        answers=len(load.sizes),
        queue=spread(_waits_s(ended)) or spread(load.queue_s),
        run=spread(load.run_s or [job.batch.run_s for job in ended if job.batch]),
        batch_sizes=_shares((size, size) for size, _ in pairs),
        reasons=_shares((reason, size) for size, reason in pairs),
        stages_ms=_stages_ms(ended, load, mean_latency_ms),
        busy_share=_busy_share(load, seconds, slots),
        counted=dict(counters),
    )


def _source(answers: int, records: int) -> str:
    parts = [f"Server-Timing of {answers:,} answers"] if answers else []
    return " and ".join([*parts, f"the records of {records:,} jobs"] if records else parts)


def _size(job: JobView) -> int:
    return job.batch.size if job.batch else 0


def _reason(job: JobView) -> str:
    return job.batch.reason if job.batch else ""


def _shares(pairs: Iterable[tuple[K, int]]) -> dict[K, float]:
    """Batches by key: an item of a batch of n counts as 1/n."""
    shares: defaultdict[K, float] = defaultdict(float)
    for key, size in pairs:
        shares[key] += 1.0 / size if size else 0.0
    return {key: round(shares[key], 3) for key in sorted(shares)}


def _waits_s(records: Sequence[JobView]) -> list[float]:
    """From accepted to started, by the store's clock, in whole milliseconds."""
    return [max(0.0, (job.started_at - job.created_at).total_seconds()) for job in records if job.started_at and job.created_at]


def _stages_ms(records: Sequence[JobView], load: MergedTally, mean_latency_ms: float | None) -> dict[str, float]:
    """Means per call; `rest` is the remaining latency: network, gateway, store, claim and settling."""
    if not records and not load.run_s:
        return {}
    stages = _of_records(records) if records else _of_answers(load)
    if mean_latency_ms is not None:
        stages["rest"] = max(0.0, mean_latency_ms - sum(stages.values()))
    return stages


def _of_records(records: Sequence[JobView]) -> dict[str, float]:
    waits_s = _waits_s(records)
    stages = {"queue": _mean(waits_s) * 1e3}
    for stage in _STAGES:
        stages[stage] = _mean([getattr(job.batch, f"{stage}_s") for job in records]) * 1e3
    return stages


def _of_answers(load: MergedTally) -> dict[str, float]:
    return {"run": _mean(load.run_s) * 1e3}


def _busy_share(load: MergedTally, seconds: float, slots: int | None) -> float | None:
    """The share of the slots' time: each item's run time divided by its batch size adds up to the run time of all batches."""
    if not load.sizes or not slots:
        return None
    return math.fsum(run_s / size for run_s, size in zip(load.run_s, load.sizes, strict=True) if size) / seconds / slots


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def counter_increases(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """The increase of each counter of the gateway that rose."""
    return {name: after[name] - before.get(name, 0.0) for name in sorted(after) if after[name] != before.get(name, 0.0)}

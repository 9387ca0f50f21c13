"""The steps of a history as series: rates, percentiles and levels, each a list with one value per step. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.extensions.history.gateway.window import HistoryWindow
from penstock.extensions.history.store import (
    ACCEPTED,
    BUSY,
    CANCELLED,
    COVERED,
    DEVICE_BUSY,
    DEVICE_TIME,
    EXPIRED,
    FAILED,
    ITEMS,
    MEMORY,
    OLDEST,
    REASONS,
    RUNNING,
    SLOT_TIME,
    SLOTS,
    SUCCEEDED,
    WAITING,
    WORKERS,
    HistoryStep,
    percentile_error,
    percentile_s,
)

SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_RATES = {
    "accepted_per_s": ACCEPTED,
    "succeeded_per_s": SUCCEEDED,
    "failed_per_s": FAILED,
    "cancelled_per_s": CANCELLED,
    "expired_per_s": EXPIRED,
}
_MIB = 2**20
Series = list[float | None]
_SHARD = REASONS["bulk"]


@dataclass(frozen=True, slots=True)
class ModelHistory:
    """What happened to a model, or to all of them if `model` is empty. One entry of `steps` per step, oldest first; None where
    nothing was recorded. Moments are Unix seconds of the store's clock. `away`: models whose store does not answer.
    """

    model: str
    length_s: int
    at: Sequence[int]
    steps: Sequence[HistoryStep | None]
    away: Sequence[str] = ()


def history_of(
    steps: Mapping[int, HistoryStep], *, model: str, window: HistoryWindow, away: Sequence[str] = ()
) -> ModelHistory:
    return ModelHistory(model, window.length_s, window.at, [steps.get(start) for start in window.at], away)


def view(history: ModelHistory) -> dict[str, Any]:
    """The body of `GET /v1/history`. Every series is there; a value is null where nothing is known."""
    return {
        "model": history.model or None,
        "step_s": history.length_s,
        "percentile_error": _rounded(percentile_error(max((step.grain for step in history.steps if step), default=0))),
        "at": list(history.at),
        **series(history),
        **({"away": list(history.away)} if history.away else {}),
    }


def series(history: ModelHistory) -> dict[str, Any]:
    steps = history.steps
    shown: dict[str, Any] = {name: _each(steps, _rate(number)) for name, number in _RATES.items()}
    shown["total_s"] = _percentiles(steps, lambda step: step.totals)
    shown["queue_s"] = _percentiles(steps, lambda step: step.waits)
    shown["waiting"] = _each(steps, _top(WAITING))
    shown["oldest_s"] = _each(steps, _top(OLDEST, 0.001))
    shown["running"] = _each(steps, _top(RUNNING))
    shown["batch_size"] = _each(steps, _batch_size)
    reasons = [name for name, number in REASONS.items() if any(step and number in step.sums for step in steps)]
    shown["releases"] = {name: _each(steps, _share_of_batches(REASONS[name])) for name in reasons}
    shown["busy_share"] = _each(steps, _share_of_time(BUSY, SLOT_TIME))
    shown["device_busy_share"] = _each(steps, _share_of_time(DEVICE_BUSY, DEVICE_TIME))
    shown["slots"] = _each(steps, _top(SLOTS))
    if history.model:
        # One worker may serve several models, and several models may share a device, so these do not add up.
        shown["memory_bytes"] = _each(steps, _top(MEMORY, _MIB))
        shown["workers"] = _each(steps, _top(WORKERS))
    return shown


def _percentiles(
    steps: Sequence[HistoryStep | None], buckets_of: Callable[[HistoryStep], Mapping[int, int]]
) -> dict[str, Series]:
    def percentile(share: float) -> Callable[[HistoryStep], float | None]:
        return lambda step: percentile_s(buckets_of(step), step.grain, share)

    return {name: _each(steps, percentile(share)) for name, share in SHARES.items()}


def _each(steps: Sequence[HistoryStep | None], value: Callable[[HistoryStep], float | None]) -> Series:
    return [None if step is None or (number := value(step)) is None else _rounded(number) for step in steps]


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _rate(number: int) -> Callable[[HistoryStep], float | None]:
    """Per second of the time over which the step was counted, which is not exactly its length."""
    return lambda step: 1000 * step.sums.get(number, 0) / step.sums[COVERED] if step.sums.get(COVERED) else None


def _top(number: int, unit: float = 1) -> Callable[[HistoryStep], float | None]:
    return lambda step: unit * step.tops.get(number, 0)


def _share_of_batches(number: int) -> Callable[[HistoryStep], float | None]:
    def share(step: HistoryStep) -> float | None:
        batches = sum(step.sums.get(reason, 0) for reason in REASONS.values())
        return step.sums.get(number, 0) / batches if batches else None

    return share


def _batch_size(step: HistoryStep) -> float | None:
    batches = sum(step.sums.get(number, 0) for number in REASONS.values() if number != _SHARD)
    return step.sums.get(ITEMS, 0) / batches if batches else None


def _share_of_time(busy: int, all_of_it: int) -> Callable[[HistoryStep], float | None]:
    def share(step: HistoryStep) -> float | None:
        time_ms = step.sums.get(all_of_it, 0)
        return min(1.0, step.sums.get(busy, 0) / time_ms) if time_ms else None

    return share

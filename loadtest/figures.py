"""From calls to figures: percentiles, second by second, step by step, the distribution of latency. Pure."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.loadtest.assignment import MergedTally
from penstock.loadtest.generator.summary import LOST, is_good, percentile
from penstock.loadtest.result import LoadOutcome, RateStep, Second, Spread
from penstock.loadtest.workload import Step

_CDF_POINTS = 240
_ERROR_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class CompletedCall:
    """One call that ended. `due_at`: when it was meant to leave, in seconds from the beginning of the measured time."""

    due_at: float
    latency_s: float
    status: int

    @property
    def ended_at(self) -> float:
        return self.due_at + self.latency_s

    @property
    def good(self) -> bool:
        return is_good(self.status)


def calls_of(load: MergedTally) -> list[CompletedCall]:
    return [CompletedCall(*of) for of in zip(load.sent_at, load.latencies_s, load.statuses, strict=True)]


def spread(seconds: Iterable[float]) -> Spread | None:
    """None for no values."""
    ordered = sorted(seconds)
    if not ordered:
        return None
    p50, p90, p95, p99, p999 = (percentile(ordered, percent) * 1e3 for percent in (50.0, 90.0, 95.0, 99.0, 99.9))
    return Spread(math.fsum(ordered) / len(ordered) * 1e3, p50, p90, p95, p99, p999, ordered[-1] * 1e3)


def outcome(load: MergedTally, calls: Sequence[CompletedCall], seconds: float, *, deadline_s: float) -> LoadOutcome:
    """`seconds` is the measured time; calls that were due before or after it do not count."""
    mine = [call for call in calls if 0.0 <= call.due_at < seconds]
    offered = sum(1 for at in load.due_at if 0.0 <= at < seconds)
    good = [call for call in mine if call.good]
    errors = _errors(mine, offered)
    return LoadOutcome(
        seconds=seconds,
        offered=offered,
        offered_rps=offered / seconds,
        answered=len(good),
        throughput_rps=sum(1 for call in calls if call.good and 0.0 <= call.ended_at < seconds) / seconds,
        goodput_rps=sum(1 for call in good if call.latency_s <= deadline_s) / seconds,
        error_rate=sum(errors.values()) / offered if offered else 0.0,
        errors=errors,
        said={str(status): _error_text(text) for status, text in load.bodies.items() if not is_good(status)},
        latency=spread(call.latency_s for call in good),
    )


def _error_text(body: str) -> str:
    """The code and detail of a problem body; the beginning of any other body."""
    try:
        problem = json.loads(body)
    except ValueError:
        return body[:_ERROR_CHARACTERS]
    if isinstance(problem, dict) and isinstance(problem.get("detail"), str):
        return f"{problem.get('code', '')}: {problem['detail']}".removeprefix(": ")[:_ERROR_CHARACTERS]
    return body[:_ERROR_CHARACTERS]


def _errors(calls: Sequence[CompletedCall], offered: int) -> dict[str, int]:
    bad = Counter(call.status for call in calls if not call.good)
    named = {"lost" if status == LOST else str(status): count for status, count in sorted(bad.items())}
    unfinished = offered - len(calls)
    return {**named, "unfinished": unfinished} if unfinished > 0 else named


def series(load: MergedTally, calls: Sequence[CompletedCall], seconds: float) -> list[Second]:
    """One entry per started second."""
    count = math.ceil(seconds)
    due: defaultdict[int, list[float]] = defaultdict(list)
    for call in calls:
        if call.good:
            due[math.floor(call.due_at)].append(call.latency_s)
    offered = Counter(math.floor(at) for at in load.due_at)
    answered = Counter(math.floor(call.ended_at) for call in calls if call.good)
    errors = Counter(math.floor(call.ended_at) for call in calls if not call.good)
    return [_second(at, offered[at], answered[at], errors[at], sorted(due[at])) for at in range(count)]


def _second(at: int, offered: int, answered: int, errors: int, latencies_s: Sequence[float]) -> Second:
    if not latencies_s:
        return Second(float(at), offered, answered, errors, None, None, None)
    p50, p99 = (percentile(latencies_s, percent) * 1e3 for percent in (50.0, 99.0))
    return Second(float(at), offered, answered, errors, p50, p99, latencies_s[-1] * 1e3)


def parts(load: MergedTally, calls: Sequence[CompletedCall], steps: Sequence[Step], *, deadline_s: float) -> list[RateStep]:
    """One entry per step. A call that an overloaded step leaves behind counts as answered in the step that answers it."""
    return [_part(load, calls, step, deadline_s) for step in steps]


def _part(load: MergedTally, calls: Sequence[CompletedCall], step: Step, deadline_s: float) -> RateStep:
    mine = [call for call in calls if step.begins_s <= call.due_at < step.ends_s]
    good = sorted(call.latency_s for call in mine if call.good)
    offered = sum(1 for at in load.due_at if step.begins_s <= at < step.ends_s)
    answered = sum(1 for call in calls if call.good and step.begins_s <= call.ended_at < step.ends_s)
    return RateStep(
        rate=step.rate or None,
        seconds=step.seconds,
        offered_rps=offered / step.seconds,
        throughput_rps=answered / step.seconds,
        goodput_rps=sum(1 for latency_s in good if latency_s <= deadline_s) / step.seconds,
        errors=offered - len(good),
        p50_ms=percentile(good, 50.0) * 1e3 if good else None,
        p99_ms=percentile(good, 99.0) * 1e3 if good else None,
    )


def within(steps: Sequence[Step], seconds: float) -> list[Step]:
    """The steps that had begun if the run was stopped after `seconds`."""
    return [Step(step.begins_s, min(step.ends_s, seconds), step.rate) for step in steps if step.begins_s < seconds]


def cdf(calls: Sequence[CompletedCall], seconds: float) -> list[tuple[float, float]]:
    """Pairs of milliseconds and the share of good answers within them; points are denser towards the slow end."""
    ordered = sorted(call.latency_s for call in calls if call.good and 0.0 <= call.due_at < seconds)
    if not ordered:
        return []
    # Half of the points are evenly spaced, half approach 1 by powers of ten, so that the tail keeps its shape.
    half = _CDF_POINTS // 2
    shares = {number / half for number in range(1, half)} | {1.0 - 10.0 ** (-4.0 * number / half) for number in range(half)}
    ranks = sorted({bisect_left(range(1, len(ordered) + 1), share * len(ordered)) for share in shares} | {len(ordered) - 1})
    return [(ordered[rank] * 1e3, (rank + 1) / len(ordered)) for rank in ranks if rank < len(ordered)]

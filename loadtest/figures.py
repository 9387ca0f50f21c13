"""From calls to figures: percentiles, seconds, steps, the distribution. Pure."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.loadtest.assignment import Merged
from penstock.loadtest.generator.summary import LOST, is_good, percentile
from penstock.loadtest.plan import Step
from penstock.loadtest.result import LoadOutcome, RateStep, Second, Spread

_CDF_POINTS = 240
_SAID_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class CompletedCall:
    """One call that ended. Seconds; `due_at` from the beginning of the measured time."""

    due_at: float
    latency_s: float
    status: int

    @property
    def ended_at(self) -> float:
        return self.due_at + self.latency_s

    @property
    def good(self) -> bool:
        return is_good(self.status)


def calls_of(load: Merged) -> list[CompletedCall]:
    return [CompletedCall(*of) for of in zip(load.sent_at, load.latencies_s, load.statuses, strict=True)]


def spread(seconds: Iterable[float]) -> Spread | None:
    """None of nothing."""
    ordered = sorted(seconds)
    if not ordered:
        return None
    p50, p90, p95, p99, p999 = (percentile(ordered, percent) * 1e3 for percent in (50.0, 90.0, 95.0, 99.0, 99.9))
    return Spread(math.fsum(ordered) / len(ordered) * 1e3, p50, p90, p95, p99, p999, ordered[-1] * 1e3)


def outcome(load: Merged, calls: Sequence[CompletedCall], seconds: float, *, deadline_s: float) -> LoadOutcome:
    """`seconds` is the measured time; what was due before or after it does not count."""
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
        said={str(status): _said(text) for status, text in load.bodies.items() if not is_good(status)},
        latency=spread(call.latency_s for call in good),
    )


def _said(body: str) -> str:
    """A problem body in its own words: code and detail; anything else as it came, cut."""
    try:
        found = json.loads(body)
    except ValueError:
        return body[:_SAID_CHARACTERS]
    if isinstance(found, dict) and isinstance(found.get("detail"), str):
        return f"{found.get('code', '')}: {found['detail']}".removeprefix(": ")[:_SAID_CHARACTERS]
    return body[:_SAID_CHARACTERS]


def _errors(calls: Sequence[CompletedCall], offered: int) -> dict[str, int]:
    bad = Counter(call.status for call in calls if not call.good)
    named = {"lost" if status == LOST else str(status): count for status, count in sorted(bad.items())}
    unfinished = offered - len(calls)
    return {**named, "unfinished": unfinished} if unfinished > 0 else named


def series(load: Merged, calls: Sequence[CompletedCall], seconds: float) -> list[Second]:
    """One entry per begun second."""
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


def parts(load: Merged, calls: Sequence[CompletedCall], steps: Sequence[Step], *, deadline_s: float) -> list[RateStep]:
    """One entry per step. What a step's overload leaves behind is answered, and counted, in the next one."""
    return [_part(load, calls, step, deadline_s) for step in steps]


def _part(load: Merged, calls: Sequence[CompletedCall], step: Step, deadline_s: float) -> RateStep:
    mine = [call for call in calls if step.begins_s <= call.due_at < step.ends_s]
    good = sorted(call.latency_s for call in mine if call.good)
    offered = sum(1 for at in load.due_at if step.begins_s <= at < step.ends_s)
    came = sum(1 for call in calls if call.good and step.begins_s <= call.ended_at < step.ends_s)
    return RateStep(
        rate=step.rate or None,
        seconds=step.seconds,
        offered_rps=offered / step.seconds,
        throughput_rps=came / step.seconds,
        goodput_rps=sum(1 for latency_s in good if latency_s <= deadline_s) / step.seconds,
        errors=offered - len(good),
        p50_ms=percentile(good, 50.0) * 1e3 if good else None,
        p99_ms=percentile(good, 99.0) * 1e3 if good else None,
    )


def within(steps: Sequence[Step], seconds: float) -> list[Step]:
    """Those steps of which something was measured, when the run was stopped after `seconds`."""
    return [Step(step.begins_s, min(step.ends_s, seconds), step.rate) for step in steps if step.begins_s < seconds]


def cdf(calls: Sequence[CompletedCall], seconds: float) -> list[tuple[float, float]]:
    """(ms, share of the good answers that took no longer), dense towards the slow end where the interest is."""
    ordered = sorted(call.latency_s for call in calls if call.good and 0.0 <= call.due_at < seconds)
    if not ordered:
        return []
    # Half the points evenly, half closing in on 1 by powers, so that the tail keeps its shape.
    half = _CDF_POINTS // 2
    shares = {number / half for number in range(1, half)} | {1.0 - 10.0 ** (-4.0 * number / half) for number in range(half)}
    ranks = sorted({bisect_left(range(1, len(ordered) + 1), share * len(ordered)) for share in shares} | {len(ordered) - 1})
    return [(ordered[rank] * 1e3, (rank + 1) / len(ordered)) for rank in ranks if rank < len(ordered)]

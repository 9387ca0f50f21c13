"""Summarizes answers: rates, percentiles, goodput. Pure."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

PERCENTILES = (50.0, 90.0, 99.0, 99.9)
LOST = 0  # instead of a status, if the connection broke before the answer


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of an ascending list do not exceed (nearest rank); NaN for an empty list."""
    if not ordered:
        return math.nan
    rank = math.ceil(percent / 100.0 * len(ordered))
    return ordered[max(rank, 1) - 1]


@dataclass(slots=True)
class Samples:
    """Per request: latency in seconds, status (or `LOST`) and the monotonic moment of the answer, in the order of answers."""

    latencies_s: array[float] = field(default_factory=lambda: array("d"))
    statuses: array[int] = field(default_factory=lambda: array("H"))
    answered_at: array[float] = field(default_factory=lambda: array("d"))

    def add(self, latency_s: float, status: int, *, at: float) -> None:
        self.latencies_s.append(latency_s)
        self.statuses.append(status)
        self.answered_at.append(at)

    def good(self) -> list[float]:
        """The latencies of answers with a 2xx status, ascending."""
        return sorted(latency for latency, status in zip(self.latencies_s, self.statuses, strict=True) if is_good(status))

    def errors(self) -> dict[str, int]:
        """The number of answers by status other than 2xx; `lost` counts broken connections."""
        bad = Counter(status for status in self.statuses if not is_good(status))
        return {"lost" if status == LOST else str(status): count for status, count in sorted(bad.items())}


def is_good(status: int) -> bool:
    return 200 <= status < 300


@dataclass(frozen=True, slots=True)
class Summary:
    """Latencies in milliseconds over answers with a 2xx status; rates per second. `goodput_rps`: 2xx within the deadline."""

    count: int
    rps: float
    goodput_rps: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    errors: dict[str, int]


def summarize(samples: Samples, seconds: float, *, deadline_s: float = math.inf) -> Summary:
    """`seconds` is the measured time; latencies are NaN if no request succeeded."""
    good = samples.good()
    in_time = sum(1 for latency in good if latency <= deadline_s)
    p50, p90, p99, p999 = (percentile(good, percent) * 1e3 for percent in PERCENTILES)
    return Summary(
        count=len(good),
        rps=len(good) / seconds,
        goodput_rps=in_time / seconds,
        p50_ms=p50,
        p90_ms=p90,
        p99_ms=p99,
        p999_ms=p999,
        max_ms=good[-1] * 1e3 if good else math.nan,
        errors=samples.errors(),
    )

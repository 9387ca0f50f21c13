"""The last minutes of each queue, and the rates and small charts computed from them. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

KEPT_S = 300.0
# Rates are averaged over this time: a shorter time makes them jump, a longer one makes them lag.
RATE_S = 5.0
SHORTEST_CHART_S = 60.0
_WIDTH, _HEIGHT, _POINTS = 120.0, 28.0, 60


@dataclass(frozen=True, slots=True)
class Sample:
    """A queue at one moment. `at` is in seconds of the store's clock. `accepted` and `ended` count since the store's start."""

    at: float
    depth: int
    accepted: int
    ended: int


@dataclass(slots=True)
class QueueSamples:
    """The samples of one queue over the last `KEPT_S` seconds."""

    samples: deque[Sample] = field(default_factory=deque)

    def add(self, sample: Sample) -> None:
        """Smaller counts or an older clock mean another or a restored store: drop the earlier samples."""
        last = self.samples[-1] if self.samples else None
        if last and (sample.at <= last.at or sample.accepted < last.accepted or sample.ended < last.ended):
            self.samples.clear()
        self.samples.append(sample)
        while self.samples[0].at < sample.at - KEPT_S:
            self.samples.popleft()

    def rates(self) -> tuple[float, float] | None:
        """Jobs accepted and jobs ended per second over the last `RATE_S`; None before the second sample."""
        if len(self.samples) < 2:
            return None
        last = self.samples[-1]
        first = next(sample for sample in self.samples if sample.at >= last.at - RATE_S or sample is self.samples[-2])
        span = last.at - first.at
        return (last.accepted - first.accepted) / span, (last.ended - first.ended) / span

    def line(self) -> list[int]:
        """The depths for a small chart: the highest of each interval, so that no peak is lost."""
        if len(self.samples) < 2:
            return []
        end = self.samples[-1].at
        step = max(SHORTEST_CHART_S, end - self.samples[0].at) / _POINTS
        tops: dict[int, int] = {}
        for sample in self.samples:
            place = _POINTS - 1 - min(_POINTS - 1, int((end - sample.at) / step))
            tops[place] = max(tops.get(place, 0), sample.depth)
        return [tops.get(place, -1) for place in range(_POINTS)]


@dataclass(frozen=True, slots=True)
class Spark:
    """A line and the area below it, as SVG points in a box of 120 x 28. `top` is the highest value."""

    line: str
    area: str
    top: int


def spark(values: list[int]) -> Spark | None:
    """None if there are fewer than two points. -1 is an interval without a sample; the line joins its neighbours."""
    known = [(place, value) for place, value in enumerate(values) if value >= 0]
    if len(known) < 2:
        return None
    top = max(value for _, value in known)
    points = [f"{place * _WIDTH / (_POINTS - 1):.1f},{_y(value, top):.1f}" for place, value in known]
    first, last = points[0].partition(",")[0], points[-1].partition(",")[0]
    line = " ".join(points)
    return Spark(line, f"{first},{_HEIGHT:g} {line} {last},{_HEIGHT:g}", top)


def _y(value: int, top: int) -> float:
    return _HEIGHT - 1.5 - (_HEIGHT - 4.0) * value / max(1, top)

"""How long a call of the model takes, learned from the calls that ran, and by which measure of its size. Pure; seconds.

A model that pads takes as long as its items times the longest of them; one that works item by item, as long as the costs
together; and one whose items are all alike, in proportion to their number. Nothing is declared: the measure that explains the
run times best is used (D64).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from math import log, log2
from typing import NamedTuple

# D64: docs/design/batching.md
# Runs of a size that count, and runs over which measures are compared.
_WINDOW = 15
_COMPARED = 48
_COMPARED_LEAST = 12
_COMPARE_EVERY = 4
# Another measure is used only if it is clearly better: its error is at most this share of the present one's.
_BETTER = 0.7
_NOISE = 0.05
# Two steps for each doubling of the size: finer ones would be learned too slowly.
_STEPS = 2


class Measure(StrEnum):
    """The size of a call: its number of items, the sum of their costs, or their number times the largest cost."""

    ITEMS = "items"
    SUM = "cost"
    PADDED = "padded cost"


class CallSize(NamedTuple):
    """The size of one call by each measure."""

    items: int
    total: float
    padded: float

    def by(self, measure: Measure) -> float:
        return self.items if measure is Measure.ITEMS else self.total if measure is Measure.SUM else self.padded


def call_size(costs: Sequence[float]) -> CallSize:
    return CallSize(len(costs), sum(costs), len(costs) * max(costs))


class Curve:
    """Seconds by size: medians of similar sizes, and lines between them."""

    def __init__(self) -> None:
        self._runs: dict[int, deque[tuple[float, float]]] = {}
        self._points: dict[int, tuple[float, float]] = {}
        self._sizes: list[float] = []
        self._seconds: list[float] = []

    def add(self, size: float, seconds: float) -> None:
        step = step_of(size)
        runs = self._runs.setdefault(step, deque(maxlen=_WINDOW))
        runs.append((size, seconds))
        middle = len(runs) // 2
        self._points[step] = sorted([known for known, _ in runs])[middle], sorted([took for _, took in runs])[middle]
        ordered = sorted(self._points.values())
        self._sizes, self._seconds = [known for known, _ in ordered], [took for _, took in ordered]

    def expect(self, size: float) -> float:
        """The typical seconds of a call; 0 before the first.

        Below the smallest known size it is the time of that size, and above the largest it grows in proportion: both say that
        nothing is gained by what was never tried.
        """
        sizes, seconds = self._sizes, self._seconds
        at = bisect_left(sizes, size)
        if at == len(sizes):
            return seconds[-1] * size / sizes[-1] if sizes and sizes[-1] else 0.0
        if at == 0 or sizes[at] == size:
            return seconds[at]
        share = (size - sizes[at - 1]) / (sizes[at] - sizes[at - 1])
        return seconds[at - 1] + share * (seconds[at] - seconds[at - 1])

    def runs(self, size: float) -> int:
        """How many calls of about this size ran, of those that count."""
        return len(self._runs.get(step_of(size), ()))

    def table(self) -> list[tuple[float, float]]:
        """The known sizes and their seconds, ascending."""
        return list(zip(self._sizes, self._seconds, strict=True))


def step_of(size: float) -> int:
    """The step of sizes that are alike: within a factor of 1.4."""
    return round(_STEPS * log2(size)) if size > 0 else -_STEPS


class CallTimes:
    """What calls take by each measure, and which measure is used. `declared`: whether the handler says what an item costs."""

    def __init__(self, *, declared: bool) -> None:
        self.measure = Measure.PADDED if declared else Measure.ITEMS
        self.curves = {measure: Curve() for measure in Measure}
        self._observed = 0
        self._errors: dict[Measure, deque[float]] = {measure: deque(maxlen=_COMPARED) for measure in Measure}

    @property
    def curve(self) -> Curve:
        return self.curves[self.measure]

    def observe_items(self, items: int, seconds: float) -> None:
        """A call of items whose costs are unknown took `seconds`, which are above 0."""
        self.curves[Measure.ITEMS].add(items, seconds)

    def observe(self, size: CallSize, seconds: float) -> None:
        """A call took `seconds`, which are above 0."""
        for measure, curve in self.curves.items():
            expected = curve.expect(size.by(measure))
            if expected:
                self._errors[measure].append(abs(log(seconds / expected)))
            curve.add(size.by(measure), seconds)
        self._observed += 1
        if self._observed % _COMPARE_EVERY == 0 and len(self._errors[self.measure]) >= _COMPARED_LEAST:
            self._choose()

    def _choose(self) -> None:
        errors = {measure: sum(recent) / len(recent) for measure, recent in self._errors.items()}
        present = errors[self.measure]
        # Among equally good measures the padded cost wins: it loses nothing where the costs are alike.
        best = min(errors, key=lambda measure: (round(errors[measure], 2), measure is not Measure.PADDED))
        if present > _NOISE and errors[best] < present * _BETTER:
            self.measure = best

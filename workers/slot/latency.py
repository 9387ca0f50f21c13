"""How long a batch of a given size takes on this slot, learned from the batches that ran. Pure; all durations in seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from math import ceil
from statistics import median

# Enough runs for a steady median, and few enough to follow a change of load within seconds.
_WINDOW = 32
_RATIOS = 128
_QUANTILE = 0.95
# This many runs in a row, each this factor off the median, are no noise: the CPU throttles, say, or has another neighbour.
_DRIFT_RUNS = 5
_DRIFT_FACTOR = 2.0
_TRUSTED_RUNS = 8
# A bound is at least this many times the usual time while too few runs have shown how much they differ.
_UNKNOWN_SPREAD = 1.5
_SMOOTHING = 0.2


class Smoothed:
    """A running mean that forgets: the latest value counts a fifth."""

    def __init__(self) -> None:
        self.value = 0.0
        self._seen = False

    def add(self, value: float) -> None:
        self.value = self.value + _SMOOTHING * (value - self.value) if self._seen else value
        self._seen = True


class Latency:
    """Expected seconds by size: the median of a measured size, a line between two of them, and beyond them the fitted line."""

    def __init__(self) -> None:
        self._runs: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}
        self._ratios: deque[float] = deque(maxlen=_RATIOS)
        self._seconds: deque[float] = deque(maxlen=_RATIOS)
        self._spread, self._slowest = _UNKNOWN_SPREAD, 0.0
        self._line: tuple[float, float] | None = None
        # Sizes whose times were learned by an earlier process only.
        self._remembered: set[int] = set()

    def remember(self, table: Mapping[int, float]) -> None:
        """Expect these medians, which an earlier process learned, until runs say otherwise. Sizes that ran here stay."""
        for size, seconds in table.items():
            if size not in self._runs:
                self._runs[size] = deque([seconds] * _TRUSTED_RUNS, maxlen=_WINDOW)
                self._medians[size] = seconds
                self._remembered.add(size)
        if self._medians:
            self._line = _fit(self._medians)

    def observe(self, size: int, seconds: float) -> None:
        expected = self.expect(size)
        if expected:
            self._ratios.append(seconds / expected)
        self._seconds.append(seconds)
        runs = self._runs.setdefault(size, deque(maxlen=_WINDOW))
        runs.append(seconds)
        self._remembered.discard(size)
        self._forget_drifted(size, runs)
        self._medians[size] = median(runs)
        self._line = _fit(self._medians)
        self._spread, self._slowest = _spread(self._ratios), max(self._seconds)

    def _forget_drifted(self, size: int, runs: deque[float]) -> None:
        if len(runs) <= _DRIFT_RUNS or size not in self._medians:
            return
        recent, usual = list(runs)[-_DRIFT_RUNS:], self._medians[size]
        if min(recent) > usual * _DRIFT_FACTOR or max(recent) < usual / _DRIFT_FACTOR:
            runs.clear()
            runs.extend(recent)
            self._ratios.clear()
            self._seconds.clear()
            self._seconds.extend(recent)
            self._forget_remembered()

    def _forget_remembered(self) -> None:
        """Times have changed, so the times that an earlier process learned of other sizes no longer hold."""
        for size in self._remembered:
            del self._runs[size], self._medians[size]
        self._remembered.clear()

    @property
    def largest(self) -> int:
        """The largest batch that ran, 0 before the first."""
        return max(self._medians, default=0)

    def expect(self, size: int) -> float | None:
        """The typical time of a batch of `size`, or None before the first run."""
        if size in self._medians:
            return self._medians[size]
        if self._line is None:
            return None
        below = max((s for s in self._medians if s < size), default=None)
        above = min((s for s in self._medians if s > size), default=None)
        if below is None or above is None:
            base, slope = self._line
            return base + slope * size
        share = (size - below) / (above - below)
        return self._medians[below] * (1 - share) + self._medians[above] * share

    def bound(self, size: int) -> float | None:
        """The time that 19 of 20 batches of `size` stay within, or None before the first run.

        A job that takes a thousand times as long as the jobs whose size it shares says so little of other sizes that no bound
        is far beyond the usual time and beyond all that ran lately.
        """
        expected = self.expect(size)
        if expected is None:
            return None
        return min(expected * self._spread, max(expected * _UNKNOWN_SPREAD, self._slowest))

    def efficient(self, limit: int, *, share: float = 0.8) -> int:
        """The smallest batch with at least `share` of the best throughput up to `limit`; 1 before the first run."""
        rates = {size: size / run for size in _sizes(limit) if (run := self.expect(size))}
        if not rates:
            return 1
        wanted = max(rates.values()) * share
        return min(size for size, rate in rates.items() if rate >= wanted)

    def nearly_full(self, limit: int, *, share: float = 0.95) -> int:
        """The smallest batch with `share` of the throughput of `limit`, by the fitted line; `limit` while that is unknown."""
        base, slope = self._line or (0.0, 0.0)
        if base <= 0.0:
            return limit
        wanted = share * limit / (base + slope * limit)
        return min(limit, ceil(wanted * base / (1.0 - wanted * slope)))

    def _is_trusted(self, size: int) -> bool:
        return len(self._runs.get(size, ())) >= _TRUSTED_RUNS

    def table(self) -> dict[int, float]:
        return dict(sorted(self._medians.items()))

    def trusted(self) -> dict[int, float]:
        """The medians of sizes that ran often enough to be remembered by a later process."""
        return {size: seconds for size, seconds in self.table().items() if self._is_trusted(size)}


def _spread(ratios: Sequence[float]) -> float:
    """How many times as long as expected 19 of 20 runs took at most."""
    if len(ratios) < _TRUSTED_RUNS:
        return _UNKNOWN_SPREAD
    return max(1.05, sorted(ratios)[int(len(ratios) * _QUANTILE)])


def _sizes(limit: int) -> list[int]:
    """1, 2, 4 ... and the limit: finer steps change the answer by less than the noise."""
    return [size for size in (1 << power for power in range(limit.bit_length())) if size < limit] + [limit]


def _fit(points: dict[int, float]) -> tuple[float, float]:
    """Base and slope by least squares through the medians; neither is below 0, as larger batches never take less time."""
    mean_x = sum(points) / len(points)
    mean_y = sum(points.values()) / len(points)
    spread = sum((x - mean_x) ** 2 for x in points)
    if not spread:
        # Only one size is known: assume the worst, that time grows in proportion to the size.
        return (0.0, mean_y / mean_x)
    slope = max(0.0, sum((x - mean_x) * (y - mean_y) for x, y in points.items()) / spread)
    return (max(0.0, mean_y - slope * mean_x), slope)

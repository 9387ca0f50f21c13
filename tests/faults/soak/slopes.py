"""How much a quantity grows per hour, and how much of that may be noise. Pure.

A quantity is sampled in groups, one per process: a process that is killed begins a new group with a level of its own, and all
groups share one slope. Neighbouring samples resemble each other, so means over blocks of samples stand for them; their scatter
around the line is the noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

Point = tuple[float, float]
BLOCK = 6
# Two standard errors: a slope within them is found in 19 of 20 series that do not grow at all.
_ERRORS = 2.0
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Slope:
    """`level` is the mean; `per_hour` and `noise` have the unit of the quantity. Flat: what growth there is may be noise."""

    level: float
    per_hour: float
    noise: float
    samples: int

    @property
    def flat(self) -> bool:
        return self.per_hour <= self.noise


def slope_of(groups: Sequence[Sequence[Point]], *, step: float = 0.0) -> Slope | None:
    """Return the common slope of the groups; None if there is too little to see one.

    `step` is the smallest change that means something: with less than that over the longest group's time nothing has grown.
    """
    blocks = [_blocks(group) for group in groups if len(group) >= 2 * BLOCK]
    free = sum(len(group) - 1 for group in blocks) - 1
    if free < 2:
        return None
    spread = sum((at - _mean_at(group)) ** 2 for group in blocks for at, _ in group)
    slope = sum((at - _mean_at(group)) * value for group in blocks for at, value in group) / spread
    off = [value - _line(group, slope, at) for group in blocks for at, value in group]
    error = math.sqrt(sum(one * one for one in off) / free / spread)
    points = [point for group in groups for point in group]
    # Not from the first point to the last: what one process gained, it gained within its own life.
    lasted_s = max(group[-1][0] - group[0][0] for group in groups if group)
    noise = max(_ERRORS * error, step / lasted_s)
    return Slope(fmean(value for _, value in points), slope * _HOUR_S, noise * _HOUR_S, len(points))


def _blocks(group: Sequence[Point]) -> list[Point]:
    cut = [group[begin : begin + BLOCK] for begin in range(0, len(group) - BLOCK + 1, BLOCK)]
    return [(fmean(at for at, _ in block), fmean(value for _, value in block)) for block in cut]


def _mean_at(group: Sequence[Point]) -> float:
    return fmean(at for at, _ in group)


def _line(group: Sequence[Point], slope: float, at: float) -> float:
    return fmean(value for _, value in group) + slope * (at - _mean_at(group))

"""How the jobs of each version ended under a split: counts by end, and how long they took, as the store counts them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

Key = TypeVar("Key", str, int)

# Durations are counted in buckets, this many for each doubling: a quantile is at most 4.5 % too high. In `split.lua` too.
PER_DOUBLING = 16
SUCCEEDED = "succeeded"
# The ends that count as errors. A cancelled job is not counted: its caller no longer wanted it.
ERRORS = ("failed", "dead", "expired")
_SLOW_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class VersionFigures:
    """The jobs of one version: how many ended in which state, and those that succeeded by the bucket of their duration.

    A duration is what the caller waited: from the submit, or from the start that the submit asked for, to the end.
    """

    ended: Mapping[str, int] = field(default_factory=dict)
    durations: Mapping[int, int] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        return sum(self.ended.get(state, 0) for state in (SUCCEEDED, *ERRORS))

    @property
    def errors(self) -> int:
        return sum(self.ended.get(state, 0) for state in ERRORS)

    @property
    def error_rate(self) -> float:
        return self.errors / self.samples if self.samples else 0.0

    @property
    def p99_s(self) -> float | None:
        """Seconds within which 99 of 100 successful jobs ended; None without any."""
        return self.quantile_s(1.0 - _SLOW_SHARE)

    def quantile_s(self, share: float) -> float | None:
        """Seconds within which this share of the successful jobs ended: the upper bound of the bucket."""
        wanted = share * sum(self.durations.values())
        seen = 0
        for bucket in sorted(self.durations):
            seen += self.durations[bucket]
            if seen >= wanted:
                return upper_s(bucket)
        return None

    def slower_than(self, seconds: float) -> int:
        """How many successful jobs surely took longer: those whose whole bucket lies above."""
        return sum(count for bucket, count in self.durations.items() if lower_s(bucket) >= seconds)

    def plus(self, other: VersionFigures) -> VersionFigures:
        return VersionFigures(_added(self.ended, other.ended), _added(self.durations, other.durations))


def _added(one: Mapping[Key, int], other: Mapping[Key, int]) -> dict[Key, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in one.keys() | other.keys()}


def lower_s(bucket: int) -> float:
    """The shortest duration of a bucket. The store counts whole milliseconds, and less than one in the first bucket."""
    return 2 ** (bucket / PER_DOUBLING) / 1e3 if bucket else 0.0


def upper_s(bucket: int) -> float:
    return 2 ** ((bucket + 1) / PER_DOUBLING) / 1e3


def bucket_of(milliseconds: int) -> int:
    """The bucket of a duration, as `ending.lua` finds it."""
    return math.floor(math.log2(max(1, milliseconds)) * PER_DOUBLING)


def total(figures: Iterable[VersionFigures]) -> VersionFigures:
    sums = VersionFigures()
    for one in figures:
        sums = sums.plus(one)
    return sums


def figures_of(counts: Mapping[str, int]) -> dict[str, VersionFigures]:
    """The figures by version. `counts` are keyed `VERSION,STATE` and `VERSION,~BUCKET`, as the store keeps them."""
    ended: dict[str, dict[str, int]] = {}
    durations: dict[str, dict[int, int]] = {}
    for key, count in counts.items():
        version, _, what = key.partition(",")
        ended.setdefault(version, {})
        if what.startswith("~"):
            durations.setdefault(version, {})[int(what[1:])] = count
        else:
            ended[version][what] = count
    return {version: VersionFigures(ended[version], durations.get(version, {})) for version in ended}

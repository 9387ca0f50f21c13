"""A version that gets more requests step by step for as long as it does well: the plan, where it stands, and what comes next.
Pure; figures and time are passed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from penstock.extensions.splits.figures import VersionFigures

WHOLE = 100.0
# The store's clock counts milliseconds, and batches wait for company: smaller differences of a p99 say nothing.
LEAST_DIFFERENCE_S = 0.005
_SLOW_SHARE = 0.01
# A version without a ready worker is given this long: a child that crashed is started again within seconds.
UNREADY_S = 10.0


class CanaryState(StrEnum):
    RUNNING = "running"
    PROMOTED = "promoted"  # all steps are done, the last was 100: the version is the default now
    KEPT = "kept"  # all steps are done: the version keeps the weight of the last
    STEPPED_BACK = "stepped_back"


class Move(StrEnum):
    STAY = "stay"
    UP = "up"
    BACK = "back"


@dataclass(frozen=True, slots=True)
class Baseline:
    """How the other versions did when they last had enough samples. `p99_s` None: none of their jobs succeeded."""

    samples: int
    error_rate: float
    p99_s: float | None


@dataclass(frozen=True, slots=True)
class Canary:
    """The plan: `steps` are percent of the requests, each kept for `step_s` seconds at least and until `min_samples` jobs of it
    have ended. `max_errors`: by how much its error rate may exceed that of the other versions; `max_p99`: how many times their
    p99 its own may be. Where it stands: `step` is the place in `steps`, which began at `since` (Unix s by the store's clock).
    `baseline` holds for a step in which the other versions get too few requests to be compared with.
    """

    version: str
    steps: tuple[float, ...] = (1.0, 5.0, 25.0, 100.0)
    step_s: float = 300.0
    max_errors: float = 0.01
    max_p99: float = 1.2
    min_samples: int = 200
    state: CanaryState = CanaryState.RUNNING
    step: int = 0
    since: float = 0.0
    baseline: Baseline | None = None

    @property
    def share(self) -> float:
        """Percent of the requests that the version gets now."""
        return 0.0 if self.state is CanaryState.STEPPED_BACK else self.steps[self.step]

    @property
    def is_last(self) -> bool:
        return self.step == len(self.steps) - 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do with a canary now, and why."""

    move: Move
    reason: str
    baseline: Baseline | None = None


def verdict(canary: Canary, own: VersionFigures, others: VersionFigures, *, unready_s: float, now: float) -> Verdict:
    """What the figures of this step say. `unready_s`: for how long no worker has been ready to run the version.

    A step back needs no more samples than it takes: it is due as soon as the bound would be broken even if all jobs that
    `min_samples` still lacks were good.
    """
    if unready_s > UNREADY_S:
        return Verdict(Move.BACK, f"no worker has been ready to run version {canary.version} for {unready_s:.0f} s")
    baseline = _baseline(canary, others)
    if baseline is not None and (fault := _fault(canary, own, baseline)):
        return Verdict(Move.BACK, fault, baseline)
    if lack := _lack(canary, own, baseline, others):
        return Verdict(Move.STAY, lack, baseline)
    left_s = canary.since + canary.step_s - now
    if left_s > 0.0:
        return Verdict(Move.STAY, f"good so far; this step lasts {left_s:.0f} s more", baseline)
    return Verdict(Move.UP, _praise(canary, own, baseline), baseline)


def _baseline(canary: Canary, others: VersionFigures) -> Baseline | None:
    if others.samples >= canary.min_samples:
        return Baseline(others.samples, others.error_rate, others.p99_s)
    return canary.baseline


def _fault(canary: Canary, own: VersionFigures, baseline: Baseline) -> str:
    """The bound that the version breaks, in a sentence; empty if it breaks none."""
    counted = max(own.samples, canary.min_samples)
    if own.errors > counted * (baseline.error_rate + canary.max_errors):
        return (
            f"{own.errors} of {own.samples} jobs ended in an error; the other versions have "
            f"{_percent(baseline.error_rate)} errors, and at most {_percent(canary.max_errors)} more are allowed"
        )
    if baseline.p99_s is None:
        return ""
    limit_s = max(baseline.p99_s * canary.max_p99, baseline.p99_s + LEAST_DIFFERENCE_S)
    slow = own.slower_than(limit_s)
    if slow > counted * _SLOW_SHARE:
        return (
            f"{slow} of {own.samples} jobs took longer than {limit_s:.3f} s, so the p99 is above it; that of the other "
            f"versions is {baseline.p99_s:.3f} s, and {canary.max_p99:g} times that is allowed"
        )
    return ""


def _lack(canary: Canary, own: VersionFigures, baseline: Baseline | None, others: VersionFigures) -> str:
    least = canary.min_samples
    if own.samples < least:
        return f"{own.samples} of {least} jobs that this step needs have ended"
    return f"{others.samples} of {least} jobs of the other versions have ended" if baseline is None else ""


def _praise(canary: Canary, own: VersionFigures, baseline: Baseline | None) -> str:
    p99_s = own.p99_s
    took = "none succeeded" if p99_s is None else f"p99 {p99_s:.3f} s"
    if baseline is None or baseline.p99_s is None:
        return f"{own.samples} jobs, {_percent(own.error_rate)} errors, {took}"
    compared = f"the other versions: {_percent(baseline.error_rate)}, {baseline.p99_s:.3f} s"
    return f"{own.samples} jobs, {_percent(own.error_rate)} errors, {took} ({compared})"


def _percent(share: float) -> str:
    return f"{share * 100:.3g} %"

"""The counts of a simulation, and the figures from them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from penstock.broker.records import Claim
from penstock.loadtest.generator.summary import percentile
from penstock.tune.simulation.scenario import Scenario


@dataclass(frozen=True, slots=True)
class SimulationOutcome:
    """`on_time` is a share of the arrivals, `goodput` a share of the peak."""

    on_time: float
    goodput: float
    device_ms_per_item: float
    p50_ms: float
    p99_ms: float
    mean_batch: float
    reasons: dict[str, int]


class SimulationListener(Protocol):
    """Is called for every arrival, and for every batch when its answers leave."""

    def on_arrival(self, now: float) -> None: ...

    def on_batch(self, claim: Claim, run_s: float, *, now: float) -> None: ...


class SimulationTally:
    """Counts arrivals and batches within the measured part of a simulation."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        # Jobs that arrive within the last deadline may still be under way at the end, so they do not count.
        self._window = (scenario.warm_up_s, scenario.seconds - 2 * scenario.deadline_s)
        self._arrived = 0
        self._latencies_s: list[float] = []
        self._device_s = 0.0
        self._sizes: list[int] = []
        self._reasons: dict[str, int] = {}

    def _counts(self, moment: float) -> bool:
        return self._window[0] <= moment <= self._window[1]

    def on_arrival(self, now: float) -> None:
        self._arrived += self._counts(now)

    def on_batch(self, claim: Claim, run_s: float, *, now: float) -> None:
        self._latencies_s += [now - job.created_at for job in claim.jobs if self._counts(job.created_at)]
        if self._counts(now):
            self._device_s += run_s
            self._sizes.append(len(claim.jobs))
            self._reasons[claim.reason] = self._reasons.get(claim.reason, 0) + 1

    def outcome(self) -> SimulationOutcome:
        ordered = sorted(self._latencies_s)
        on_time = sum(1 for latency in ordered if latency <= self._scenario.deadline_s)
        peak = self._scenario.peak_rps * (self._window[1] - self._window[0])
        items = max(1, sum(self._sizes))
        return SimulationOutcome(
            on_time=on_time / max(1, self._arrived),
            goodput=on_time / peak,
            device_ms_per_item=self._device_s / items * 1e3,
            p50_ms=percentile(ordered, 50.0) * 1e3,
            p99_ms=percentile(ordered, 99.0) * 1e3,
            mean_batch=items / max(1, len(self._sizes)),
            reasons=self._reasons,
        )

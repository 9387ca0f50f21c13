"""Predicts the figures of a configuration under Poisson arrivals: the workers' batching policy on a virtual clock, with
measured batch times. Pure: equal seeds give equal answers.

The predicted rate of a configuration is the highest rate at which the goal would hold even if every batch took longer by the
factor `MARGIN`. Without that margin, a device that is slower by one per cent would miss the goal, and no measurement is so
exact. The predicted figures at that rate are without the margin.
"""

from __future__ import annotations

import math
import random
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import Protocol, Self

from penstock.broker.records import Claim
from penstock.loadtest.generator.summary import percentile
from penstock.model_spec import BatchPolicy
from penstock.tune.result import BatchTime, Figures, Goal, Overheads
from penstock.tune.simulation.scenario import BatchSeconds, Costs, Scenario
from penstock.tune.simulation.simulator import Simulation
from penstock.workers.slot.batcher import BATCHES_AHEAD

# A factor on all batch times.
MARGIN = 1.05
# Gateway, store and client share the machine with the model, so only this share of their throughput is predicted.
PATH_SHARE = 0.8
# An answer that is missing after this many times the goal's limit counts as never given.
_OVERDUE_GOALS = 4.0
_WARM_UP_SHARE = 0.15
_NO_DEADLINE_S = 1e6
_TRIALS = 7
_ALL_BUT = 0.999
_NEARLY = 0.9


class LearnedTimes:
    """Batch times as measured, with each quantile interpolated linearly between measured sizes, and extrapolated above them.

    All times are multiplied by `stretch`.
    """

    def __init__(self, times: Sequence[BatchTime], *, stretch: float = 1.0) -> None:
        self._times = sorted(times, key=lambda time: time.size)
        self._stretch = stretch
        self._known: dict[int, tuple[tuple[float, ...], BatchSeconds]] = {}

    def expected_s(self, size: int) -> float:
        return self._at(size)[1].inference_s

    def draw(self, size: int, chance: random.Random) -> BatchSeconds:
        quantiles, typical = self._at(size)
        position = chance.random() * (len(quantiles) - 1)
        low = min(int(position), len(quantiles) - 2)
        inference_s = quantiles[low] + (position - low) * (quantiles[low + 1] - quantiles[low])
        return BatchSeconds(inference_s, typical.preprocess_s, typical.postprocess_s)

    def batch_s(self, size: int) -> float:
        """The time from one batch to the next under load. The slowest of the child's three threads sets it, or the limit of
        `BATCHES_AHEAD` batches per child, which includes batches whose answers are being written."""
        run = self._at(size)[1]
        return max(run.inference_s, run.preprocess_s, run.postprocess_s, self.alone_s(size) / BATCHES_AHEAD)

    def alone_s(self, size: int) -> float:
        run = self._at(size)[1]
        return run.preprocess_s + run.inference_s + run.postprocess_s

    def _at(self, size: int) -> tuple[tuple[float, ...], BatchSeconds]:
        if size not in self._known:
            self._known[size] = self._between(size)
        return self._known[size]

    def _between(self, size: int) -> tuple[tuple[float, ...], BatchSeconds]:
        sizes = [time.size for time in self._times]
        position = min(max(1, bisect_right(sizes, size)), len(sizes) - 1) if len(sizes) > 1 else 0
        first, last = self._times[max(0, position - 1)], self._times[position]
        share = (size - first.size) / (last.size - first.size) if last.size != first.size else 0.0

        def line(low: float, high: float) -> float:
            return max(0.0, low + share * (high - low)) * self._stretch

        quantiles = tuple(line(low, high) for low, high in zip(_quantiles(first), _quantiles(last), strict=True))
        typical = BatchSeconds(
            line(first.inference_s, last.inference_s),
            line(first.preprocess_s, last.preprocess_s),
            line(first.postprocess_s, last.postprocess_s),
        )
        return quantiles, typical


def _quantiles(time: BatchTime) -> tuple[float, ...]:
    return time.quantiles_s if len(time.quantiles_s) > 1 else (time.inference_s, time.inference_s)


class RateModel(Protocol):
    """The subject of a prediction: a configuration of a model or of a whole pipeline."""

    def ceiling_rps(self) -> float: ...

    def stretched(self, factor: float) -> Self:
        """The same with all batches longer by this factor."""
        ...

    def simulated(self, goal: Goal, rate: float, *, jobs: int, seed: int = 1) -> Figures:
        """The figures of `jobs` arrivals at `rate` per second, after a warm-up."""
        ...


@dataclass(frozen=True, slots=True)
class StackModel:
    """The facts of a configuration for a prediction. `slots`: the children that serve the queue."""

    times: tuple[BatchTime, ...]
    policy: BatchPolicy
    slots: int = 1
    overheads: Overheads = field(default_factory=Overheads)
    stretch: float = 1.0

    @property
    def learned(self) -> LearnedTimes:
        return LearnedTimes(self.times, stretch=self.stretch)

    def ceiling_rps(self) -> float:
        """An upper bound for any batching: all slots run the most efficient batch size, or the path to the slots is full."""
        learned = self.learned
        sizes = range(1, self.policy.max_batch_size + 1)
        device = self.slots * max(size / max(1e-9, learned.batch_s(size)) for size in sizes)
        each_s = self.overheads.per_item_s + self.overheads.per_batch_s / self.policy.max_batch_size
        return min(device, PATH_SHARE / each_s if each_s else math.inf)

    def stretched(self, factor: float) -> StackModel:
        return replace(self, stretch=self.stretch * factor)

    def simulated(self, goal: Goal, rate: float, *, jobs: int, seed: int = 1) -> Figures:
        return simulate_rate(self, goal, rate, jobs=jobs, seed=seed)


class PredictionWatch:
    """Counts the requests that arrive in the measured part of a simulation, and their latencies."""

    def __init__(self, begins_s: float, ends_s: float) -> None:
        self._begins_s = begins_s
        self._ends_s = ends_s
        self._arrived = 0
        self._items = 0
        self._batches = 0
        self._latencies_s = array("d")

    def on_arrival(self, now: float) -> None:
        self._arrived += self._begins_s <= now <= self._ends_s

    def on_batch(self, claim: Claim, run_s: float, *, now: float) -> None:
        counted = [now - job.created_at for job in claim.jobs if self._begins_s <= job.created_at <= self._ends_s]
        self._latencies_s.extend(counted)
        if counted:
            self._items += len(claim.jobs)
            self._batches += 1

    def figures(self, goal: Goal, *, request_s: float) -> Figures:
        """`request_s`: the time that every request spends outside the simulation, which is added to each latency."""
        seconds = self._ends_s - self._begins_s
        missing = max(0, self._arrived - len(self._latencies_s))
        ordered = [latency + request_s for latency in sorted(self._latencies_s)] + [_OVERDUE_GOALS * goal.limit_s] * missing
        if not ordered:
            return Figures(0.0, 0.0, 0.0, 0.0, 0.0)
        return Figures(
            offered_rps=self._arrived / seconds,
            throughput_rps=len(self._latencies_s) / seconds,
            p50_ms=percentile(ordered, 50.0) * 1e3,
            p99_ms=percentile(ordered, 99.0) * 1e3,
            tail_ms=percentile(ordered, goal.percentile) * 1e3,
            mean_batch=self._items / max(1, self._batches),
            seconds=seconds,
        )


def simulate_rate(stack: StackModel, goal: Goal, rate: float, *, jobs: int, seed: int = 1) -> Figures:
    """Simulates `jobs` arrivals at `rate` per second, after a warm-up."""
    measured_s = jobs / rate
    warm_up_s = measured_s * _WARM_UP_SHARE + 2 * goal.limit_s
    whole_s = warm_up_s + measured_s + _OVERDUE_GOALS * goal.limit_s
    costs = Costs(stack.overheads.claim_s, stack.overheads.feed_s)
    scenario = Scenario(
        load=1.0,
        device=stack.learned,
        policy=stack.policy,
        slots=stack.slots,
        deadline_s=_NO_DEADLINE_S,
        seconds=whole_s,
        seed=seed,
        costs=costs,
    )
    watch = PredictionWatch(warm_up_s, warm_up_s + measured_s)
    Simulation(replace(scenario, load=rate / scenario.peak_rps), watch).run()
    return watch.figures(goal, request_s=stack.overheads.request_s)


def keeps_goal(figures: Figures, goal: Goal) -> bool:
    """Decides by the tail. In a short load, requests under way at both ends blur the throughput, so it only has to be close."""
    return figures.tail_ms <= goal.limit_s * 1e3 and figures.throughput_rps >= _NEARLY * figures.offered_rps


def goal_holds(stack: RateModel, goal: Goal, rate: float, *, jobs: int, seed: int = 1) -> bool:
    """Whether the goal holds at `rate`, with the margin."""
    slower = stack.stretched(MARGIN)
    return rate < slower.ceiling_rps() and keeps_goal(slower.simulated(goal, rate, jobs=jobs, seed=seed), goal)


def highest_rate(stack: RateModel, goal: Goal, *, jobs: int, seed: int = 1, trials: int = _TRIALS) -> float:
    """Requests per second, exact to 2^-trials of the ceiling; 0: the goal is missed even at the lowest rate."""
    low, high = 0.0, stack.ceiling_rps() / MARGIN
    if goal_holds(stack, goal, high * _ALL_BUT, jobs=jobs, seed=seed):
        # Gateway and store are the limit, not the device.
        return high * _ALL_BUT
    for _ in range(trials):
        middle = (low + high) / 2
        low, high = (middle, high) if goal_holds(stack, goal, middle, jobs=jobs, seed=seed) else (low, middle)
    return low


def best_figures(
    stack: RateModel, goal: Goal, *, jobs: int, seeds: Sequence[int] = (1,), trials: int = _TRIALS
) -> Figures | None:
    """The figures at the highest rate that keeps the goal, with bounds from the seeds; None: no rate keeps it."""
    rates = [highest_rate(stack, goal, jobs=jobs, seed=seed, trials=trials) for seed in seeds]
    if min(rates) <= 0.0:
        return None
    return replace(predicted_figures(stack, goal, mean(rates), jobs=jobs, seeds=seeds), low_rps=min(rates), high_rps=max(rates))


def predicted_figures(stack: RateModel, goal: Goal, rate: float, *, jobs: int, seeds: Sequence[int] = (1,)) -> Figures:
    """The figures at `rate`, as means over the seeds."""
    runs = [stack.simulated(goal, rate, jobs=jobs, seed=seed) for seed in seeds]
    return Figures(
        offered_rps=rate,
        throughput_rps=min(rate, mean(run.throughput_rps / max(1e-9, run.offered_rps) for run in runs) * rate),
        p50_ms=mean(run.p50_ms for run in runs),
        p99_ms=mean(run.p99_ms for run in runs),
        tail_ms=mean(run.tail_ms for run in runs),
        mean_batch=mean(run.mean_batch for run in runs),
        seconds=sum(run.seconds for run in runs),
    )


def slots_needed(stack: StackModel, goal: Goal, rate: float, *, most: int, jobs: int, seed: int = 1) -> int | None:
    """The fewest slots that keep the goal at `rate`; None: not even `most` slots do."""
    least = max(1, math.ceil(rate / max(1e-9, replace(stack, slots=1, overheads=Overheads()).ceiling_rps())))
    return next(
        (
            slots
            for slots in range(least, most + 1)
            if goal_holds(replace(stack, slots=slots), goal, rate, jobs=jobs, seed=seed)
        ),
        None,
    )

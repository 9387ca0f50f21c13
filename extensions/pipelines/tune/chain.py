"""Predicts what a pipeline will do: its stages are simulated one after the other, each with the requests that the stages before
it have answered by then. Pure: equal seeds give equal answers.

Models that have cores of their own do not disturb each other. Where their children have more threads than there are cores (or
share a GPU), a batch takes longer by the share of the time that the others need at this rate.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from penstock.broker.records import Claim
from penstock.extensions.pipelines.spec import PipelineSpec
from penstock.loadtest.generator.summary import percentile
from penstock.tune.result import Figures, Goal
from penstock.tune.simulation.predict import LearnedTimes, StackModel
from penstock.tune.simulation.scenario import Costs, Scenario
from penstock.tune.simulation.simulator import Simulation

_WARM_UP_SHARE = 0.15
# A request without an answer after this many times the goal's limit counts as never answered.
_OVERDUE_GOALS = 4.0
# The others never take more than this share of a device from a model in the prediction: beyond it nothing keeps a goal.
_MOST_TAKEN = 0.9
_NEVER = math.inf


@dataclass(frozen=True, slots=True)
class SimulatedStage:
    """A stage as it is simulated. `device` is where it runs, `capacity` how many cores (of a GPU: 1) that has, and `width` how
    many of them the children of its model may keep busy.
    """

    stack: StackModel
    device: str
    capacity: float
    width: float

    @property
    def seconds(self) -> float:
        """Core-seconds per request, or seconds of the GPU, in full batches."""
        size = self.stack.policy.max_batch_size
        learned = self.stack.learned
        if self.device != "cpu":
            return learned.expected_s(size) / size
        beside_s = learned.alone_s(size) - learned.expected_s(size)
        return (learned.expected_s(size) * self.width / self.stack.slots + beside_s) / size


@dataclass(frozen=True, slots=True)
class ChainModel:
    """A whole configuration of a pipeline. `hop_s`: from the end of a stage until the next one waits in its queue."""

    spec: PipelineSpec
    stages: Mapping[str, SimulatedStage]
    hop_s: float
    request_s: float

    def ceiling_rps(self) -> float:
        """An upper bound: the slowest stage alone, or a device that all its stages keep busy."""
        alone = [stage.stack.ceiling_rps() for stage in self.stages.values()]
        shared = [
            one.capacity / sum(other.seconds for other in self._sharing(one)) for one in self.stages.values() if one.seconds > 0
        ]
        return min(*alone, *shared) if shared else min(alone)

    def stretched(self, factor: float) -> ChainModel:
        stages = {
            name: replace(stage, stack=replace(stage.stack, stretch=stage.stack.stretch * factor))
            for name, stage in self.stages.items()
        }
        return replace(self, stages=stages)

    def simulated(self, goal: Goal, rate: float, *, jobs: int, seed: int = 1) -> Figures:
        chance = random.Random(seed)
        begins_s = jobs / rate * _WARM_UP_SHARE + goal.limit_s
        number = jobs + math.ceil(begins_s * rate)
        arrived = list(accumulate(chance.expovariate(rate) for _ in range(number)))
        ended = self._ends(arrived, goal, rate, seed)
        counted = [(came, end) for came, end in zip(arrived, ended, strict=True) if came >= begins_s]
        return _figures(counted, rate, goal, beside_s=self.request_s)

    def _ends(self, arrived: Sequence[float], goal: Goal, rate: float, seed: int) -> list[float]:
        """When each request is answered."""
        done: dict[str, list[float]] = {}
        for stage in self.spec.in_order():
            parents = [done[name] for name in self.spec.parents(stage)] or [list(arrived)]
            ready = [max(moments) + self.hop_s for moments in zip(*parents, strict=True)]
            model = self.stages[stage.name]
            slower = replace(model.stack, stretch=model.stack.stretch * self._crowding(model, rate))
            done[stage.name] = _departures(slower, ready, until=arrived[-1] + _OVERDUE_GOALS * goal.limit_s, seed=seed)
        return [max(moments) for moments in zip(*(done[name] for name in self.spec.leaves()), strict=True)]

    def _sharing(self, stage: SimulatedStage) -> list[SimulatedStage]:
        return [other for other in self.stages.values() if other.device == stage.device]

    def _crowding(self, stage: SimulatedStage, rate: float) -> float:
        """The factor by which the other stages lengthen a batch of this one."""
        sharing = self._sharing(stage)
        if sum(other.width for other in sharing) <= stage.capacity:
            return 1.0
        taken = rate * sum(other.seconds for other in sharing if other is not stage) / stage.capacity
        return 1.0 / (1.0 - min(_MOST_TAKEN, taken))


class _Departures:
    """Notes when each request leaves a stage. `order`: the requests in the order in which they arrive there."""

    def __init__(self, order: Sequence[int], count: int) -> None:
        self._order = order
        self.moments = [_NEVER] * count

    def on_arrival(self, now: float) -> None:
        """A request's arrival is known already."""

    def on_batch(self, claim: Claim, run_s: float, *, now: float) -> None:
        for job in claim.jobs:
            self.moments[self._order[int(job.id.serial)]] = now


def _departures(stack: StackModel, ready: Sequence[float], *, until: float, seed: int) -> list[float]:
    order = sorted((number for number, moment in enumerate(ready) if moment < _NEVER), key=ready.__getitem__)
    departures = _Departures(order, len(ready))
    if order:
        scenario = Scenario(
            load=1.0,
            device=LearnedTimes(stack.times, stretch=stack.stretch),
            policy=stack.policy,
            slots=stack.slots,
            deadline_s=1e6,
            seconds=until,
            seed=seed,
            costs=Costs(stack.overheads.claim_s, stack.overheads.feed_s),
            arrivals=tuple(ready[number] for number in order),
        )
        Simulation(scenario, departures).run()
    return departures.moments


def _figures(counted: Sequence[tuple[float, float]], rate: float, goal: Goal, *, beside_s: float) -> Figures:
    overdue_s = _OVERDUE_GOALS * goal.limit_s
    ordered = sorted(min(end - came + beside_s, overdue_s) for came, end in counted)
    answered = sum(latency < overdue_s for latency in ordered)
    return Figures(
        offered_rps=rate,
        throughput_rps=rate * answered / max(1, len(ordered)),
        p50_ms=percentile(ordered, 50.0) * 1e3,
        p99_ms=percentile(ordered, 99.0) * 1e3,
        tail_ms=percentile(ordered, goal.percentile) * 1e3,
        seconds=len(ordered) / rate,
    )

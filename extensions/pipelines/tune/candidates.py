"""From what is known of each model to configurations of the whole pipeline, the most promising first. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.extensions.pipelines.spec import PipelineSpec
from penstock.extensions.pipelines.tune.chain import ChainModel, SimulatedStage
from penstock.extensions.pipelines.tune.result import PipelineChoice
from penstock.model_spec import BatchPolicy
from penstock.tune.candidates import Knowledge
from penstock.tune.prune import MeasuredEngines
from penstock.tune.result import BatchTime, Choice, EngineSettings, Figures, Goal, Overheads
from penstock.tune.simulation.predict import (
    MARGIN,
    LearnedTimes,
    StackModel,
    goal_holds,
    highest_rate,
    predicted_figures,
)

_JOBS, _TRIALS = 400, 5
# Of each model: configurations with other engines or numbers of slots, and batch sizes of each of these.
_ENGINES, _SIZES = 4, 2
_MOST_TOGETHER = 400
_STRETCH = (0.7, 2.5)
# A queue that only grew: batches take that much longer, until another load says more.
_GREW = 1.15
_STEPS = 6


@dataclass(frozen=True, slots=True)
class PipelineKnowledge:
    """What predictions rest on. `stretch` and `hop_s` are corrected by what real load shows."""

    spec: PipelineSpec
    engines: Mapping[str, MeasuredEngines]
    overheads: Overheads
    cores: int
    stretch: float = 1.0
    devices: int = 1

    def chain(self, choice: PipelineChoice) -> ChainModel:
        stages = {stage.name: self._stage(stage.model, choice.choices[stage.model]) for stage in self.spec.stages}
        # A stage is submitted by a worker, which costs what a request costs but for the way between client and gateway.
        return ChainModel(self.spec, stages, hop_s=self.overheads.request_s / 2, request_s=self.overheads.request_s)

    def _times(self, model: str, choice: Choice) -> tuple[BatchTime, ...]:
        """As measured; of a configuration that is not in the space, those of the model as it is declared."""
        known = self.engines[model]
        return (known.get((choice.engine, choice.slots)) or next(iter(known.values()))).times

    def _stage(self, model: str, choice: Choice) -> SimulatedStage:
        on_cpu = choice.engine.device == "cpu"
        slots = choice.slots * (1 if on_cpu else self.devices)
        stack = StackModel(
            times=self._times(model, choice),
            policy=BatchPolicy(choice.batch_size, choice.max_wait_s),
            slots=slots,
            overheads=self.overheads,
            stretch=self.stretch,
        )
        if not on_cpu:
            return SimulatedStage(stack, choice.engine.device, float(self.devices), float(self.devices))
        threads = min(self.cores, slots * (choice.engine.threads or 1))
        return SimulatedStage(stack, "cpu", float(self.cores), float(threads))


@dataclass(frozen=True, slots=True)
class PipelineRanking:
    """`order`: the best first. `predicted` by `PipelineChoice.key`."""

    order: tuple[PipelineChoice, ...] = ()
    predicted: Mapping[tuple[Choice, ...], Figures] = field(default_factory=dict)
    unseen: int = 0


def own_best(fit: Sequence[Choice], engines: MeasuredEngines, overheads: Overheads, limit_s: float) -> list[Choice]:
    """Few configurations of one model that are worth a place in a pipeline, if the model has `limit_s` of the bound to itself:
    of each of the fastest engines (with its number of slots) the batch sizes with the highest throughput, of those that
    leave time for a batch to wait behind another one.
    """
    known = Knowledge(engines, overheads)

    def rank(choice: Choice) -> tuple[float, ...]:
        stack = known.stack_model(choice)
        too_long = 2 * stack.learned.alone_s(choice.batch_size) > limit_s
        return (too_long, choice.batch_size if too_long else -stack.ceiling_rps(), choice.max_wait_s)

    kept: dict[tuple[EngineSettings, int], list[Choice]] = {}
    for choice in sorted(fit, key=rank):
        own = kept.setdefault((choice.engine, choice.slots), [])
        if len(own) < _SIZES and choice.batch_size not in {other.batch_size for other in own}:
            own.append(choice)
    return [choice for own in list(kept.values())[:_ENGINES] for choice in own]


def shares(engines: Mapping[str, MeasuredEngines]) -> dict[str, float]:
    """The share of the bound that each model gets to begin with: its part of what one item takes in all of them."""
    alone = {model: LearnedTimes(next(iter(known.values())).times).alone_s(1) for model, known in engines.items()}
    whole = sum(alone.values()) or 1.0
    # A model that takes next to nothing still needs time to form a batch.
    floor = 0.1 / len(alone)
    return {model: max(floor, seconds / whole) for model, seconds in alone.items()}


def together(by_model: Mapping[str, Sequence[Choice]], knowledge: PipelineKnowledge) -> list[PipelineChoice]:
    """Configurations of the whole, those with the highest ceiling first."""
    every = itertools.islice(itertools.product(*by_model.values()), 20_000)
    made = [PipelineChoice(dict(zip(by_model, one, strict=True))) for one in every]
    return sorted(made, key=lambda one: -knowledge.chain(one).ceiling_rps())[:_MOST_TOGETHER]


def rank_pipelines(
    choices: Sequence[PipelineChoice], knowledge: PipelineKnowledge, goal: Goal, *, is_over: Callable[[int], bool]
) -> PipelineRanking:
    """Simulates until `is_over`, but at least one. Those whose ceiling is below the best rate so far are left out."""
    predicted: dict[tuple[Choice, ...], Figures] = {}
    best = 0.0
    seen = len(choices)
    for number, choice in enumerate(choices):
        chain = knowledge.chain(choice)
        if (number and is_over(number)) or (chain.ceiling_rps() / MARGIN <= best and goal.min_rate is None):
            seen = number
            break
        figures = figures_of_chain(chain, goal, at_least=best)
        if figures is not None:
            predicted[choice.key] = figures
            best = max(best, figures.offered_rps)
    simulated = [choice for choice in choices if choice.key in predicted]
    order = sorted(simulated, key=lambda choice: pipeline_preference(choice, predicted[choice.key], goal))
    return PipelineRanking(tuple(order), predicted, unseen=len(choices) - seen)


def figures_of_chain(chain: ChainModel, goal: Goal, *, at_least: float = 0.0) -> Figures | None:
    """The figures at the highest rate that keeps the goal, or at the rate that is enough; None if no rate keeps it, or none
    that comes near `at_least`.
    """
    if goal.min_rate is not None:
        holds = goal_holds(chain, goal, goal.min_rate, jobs=_JOBS)
        return predicted_figures(chain, goal, goal.min_rate, jobs=_JOBS) if holds else None
    if at_least and not goal_holds(chain, goal, at_least * 0.8, jobs=_JOBS):
        return None
    rate = highest_rate(chain, goal, jobs=_JOBS, trials=_TRIALS)
    return predicted_figures(chain, goal, rate, jobs=_JOBS) if rate > 0.0 else None


def pipeline_preference(choice: PipelineChoice, figures: Figures, goal: Goal) -> tuple[float, ...]:
    """A sort key, the best first: the highest rate, then the fewest cores and the shortest tail."""
    if goal.min_rate is not None:
        return (choice.cores, figures.tail_ms)
    return (-round(figures.offered_rps, 1), choice.cores, figures.tail_ms)


def corrected(knowledge: PipelineKnowledge, choice: PipelineChoice, goal: Goal, seen: Figures | None) -> PipelineKnowledge:
    """What a load says of the predictions: the stretch of batch times at which the simulation has the median that was seen.

    `seen` None: the queue only grew, so batches take longer than the simulation knows.
    """
    if seen is None:
        return replace(knowledge, stretch=min(_STRETCH[1], knowledge.stretch * _GREW))
    low, high = _STRETCH
    for _ in range(_STEPS):
        middle = (low + high) / 2
        shown = replace(knowledge, stretch=middle).chain(choice).simulated(goal, seen.offered_rps, jobs=_JOBS // 2)
        low, high = (middle, high) if shown.p50_ms < seen.p50_ms else (low, middle)
    return replace(knowledge, stretch=(low + high) / 2)

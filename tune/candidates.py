"""From measurements to candidates: the configurations that are worth real load, in order, and the reasons of the rest. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.model_spec import BatchPolicy
from penstock.tune.prune import MeasuredEngines
from penstock.tune.result import Choice, EngineSettings, Figures, Goal, Overheads
from penstock.tune.simulation.predict import MARGIN, StackModel, goal_holds, highest_rate, predicted_figures

_JOBS = 1_200
_TRIALS = 5
_LEAST_CONFIRMED, _MOST_CONFIRMED = 2, 5


@dataclass(frozen=True, slots=True)
class Knowledge:
    """The basis of predictions. `stretch`: the factor by which batches took longer under real load than alone."""

    engines: MeasuredEngines
    overheads: Overheads
    devices: int = 1
    stretch: Mapping[tuple[EngineSettings, int], float] = field(default_factory=dict)

    def stack_model(self, choice: Choice) -> StackModel:
        key = (choice.engine, choice.slots)
        known = list(self.stretch.values())
        usual = sum(known) / len(known) if known else 1.0
        return StackModel(
            times=self.engines[key].times,
            policy=BatchPolicy(choice.batch_size, choice.max_wait_s),
            slots=choice.slots * (1 if choice.engine.device == "cpu" else self.devices),
            overheads=self.overheads,
            stretch=self.stretch.get(key, usual),
        )


@dataclass(frozen=True, slots=True)
class Ranking:
    """`order`: the best first. `lost`: why a configuration is worse or too slow."""

    order: tuple[Choice, ...]
    predicted: Mapping[Choice, Figures]
    lost: Mapping[Choice, str]


def rank(
    choices: Sequence[Choice],
    knowledge: Knowledge,
    goal: Goal,
    *,
    on_number: Callable[[int], None],
    is_over: Callable[[], bool],
) -> Ranking:
    """Simulates the configurations, those with the highest ceiling first, until `is_over`, but always the first one, so that a
    slow machine has a candidate too. The rest is lost: for a ceiling below the best rate so far, or because the time
    was over."""
    ceilings = {choice: knowledge.stack_model(choice).ceiling_rps() for choice in choices}
    predicted: dict[Choice, Figures] = {}
    lost: dict[Choice, str] = {}
    best = 0.0
    for number, choice in enumerate(sorted(choices, key=lambda choice: -ceilings[choice])):
        on_number(number)
        if number and is_over():
            lost[choice] = _unseen(ceilings[choice] / MARGIN, best)
            continue
        figures = _figures(knowledge.stack_model(choice), goal)
        if figures is None:
            lost[choice] = _missed(goal)
            continue
        predicted[choice] = figures
        best = max(best, figures.offered_rps)
    return Ranking(tuple(sorted(predicted, key=lambda choice: preference(choice, predicted[choice], goal))), predicted, lost)


def _figures(stack: StackModel, goal: Goal) -> Figures | None:
    if goal.min_rate is not None:
        enough = goal_holds(stack, goal, goal.min_rate, jobs=_JOBS)
        return predicted_figures(stack, goal, goal.min_rate, jobs=_JOBS) if enough else None
    rate = highest_rate(stack, goal, jobs=_JOBS, trials=_TRIALS)
    return predicted_figures(stack, goal, rate, jobs=_JOBS) if rate > 0.0 else None


def preference(choice: Choice, figures: Figures, goal: Goal) -> tuple[float, ...]:
    """A sort key, the best first: the highest rate; if the goal gives a rate, the fewest cores and then the shortest tail."""
    cores = choice.slots * (choice.engine.threads or 1)
    if goal.min_rate is not None:
        return (cores, figures.tail_ms, choice.batch_size)
    return (-round(figures.offered_rps, 1), cores, figures.tail_ms, choice.batch_size)


def _missed(goal: Goal) -> str:
    if goal.min_rate is not None:
        return f"simulated: at {goal.min_rate:g}/s it does not keep {goal.text}"
    return f"simulated: it keeps {goal.text} at no rate"


def _unseen(ceiling: float, best: float) -> str:
    if ceiling <= best:
        return f"even without a pause it gives at most {ceiling:.4g}/s, the best so far {best:.4g}/s"
    return "not simulated: the time was over"


def shortlist(ranking: Ranking) -> list[Choice]:
    """The candidates in the order of their predictions, without those that differ from a better one only in their wait."""
    return [choice for choice in ranking.order if choice not in stand_ins(ranking)]


def stand_ins(ranking: Ranking) -> dict[Choice, str]:
    """Configurations that a better one with another wait represents, each with the reason."""
    first: dict[Choice, Choice] = {}
    skipped = {}
    for choice in ranking.order:
        rival = first.setdefault(replace(choice, max_wait_s=0.0), choice)
        if rival != choice:
            waits = f"a wait of {rival.max_wait_s * 1e3:g} ms"
            skipped[choice] = f"simulated at {ranking.predicted[choice].offered_rps:.4g}/s, no better than with {waits}"
    return skipped


def most_confirmed(configurations: int) -> int:
    """How many configurations may get real load: at most a tenth of the space, but at least two."""
    return max(_LEAST_CONFIRMED, min(_MOST_CONFIRMED, (configurations - 1) // 10))

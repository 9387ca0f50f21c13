"""The number of slots that a rate needs, from the simulation, with the observed error of its predictions. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from penstock.tune.candidates import Knowledge
from penstock.tune.result import Configuration, ConfigurationVerdict, Goal, RateCapacity
from penstock.tune.simulation.predict import StackModel, highest_rate, predicted_figures, slots_needed

_JOBS = 1_500
_SEEDS = (1, 2, 3)
# A larger answer means several machines, whose number the user can calculate.
_MOST_SLOTS = 256


def capacity_of(
    configurations: Sequence[Configuration], knowledge: Knowledge, goal: Goal, *, observed: Sequence[float]
) -> RateCapacity | None:
    """None if no rate was asked for, or no configuration keeps the goal at any rate.

    `observed`: for each real load, batch times under load divided by those measured without.
    """
    if goal.rate is None:
        return None
    chosen = next((one for one in configurations if one.verdict is not ConfigurationVerdict.PRUNED and one.predicted), None)
    if chosen is None:
        return None
    choice = chosen.choice
    # The number of gateways is a separate question, so requests reach the workers without a limit here.
    overheads = replace(knowledge.overheads, per_item_s=0.0, per_batch_s=0.0)
    stack = replace(knowledge.stack_model(choice), overheads=overheads)
    error, basis = _error(stack, goal, chosen, observed)
    needed = _slots(stack, goal, goal.rate)
    if needed is None:
        return None
    return RateCapacity(
        rate=goal.rate,
        slots=needed,
        devices=0 if choice.engine.device == "cpu" else math.ceil(needed / choice.slots),
        choice=choice,
        predicted=predicted_figures(replace(stack, slots=needed), goal, goal.rate, jobs=_JOBS, seeds=_SEEDS[:2]),
        error=error,
        basis=basis,
        slots_low=_slots(stack, goal, goal.rate / (1.0 + error)) or needed,
        slots_high=_slots(stack, goal, goal.rate * (1.0 + error)) or needed,
    )


def _slots(stack: StackModel, goal: Goal, rate: float) -> int | None:
    return slots_needed(stack, goal, rate, most=_MOST_SLOTS, jobs=_JOBS)


def _error(stack: StackModel, goal: Goal, chosen: Configuration, observed: Sequence[float]) -> tuple[float, str]:
    """The error as a share, and its basis: the larger of the spread between seeds and the difference seen under real load."""
    rates = [highest_rate(stack, goal, jobs=_JOBS, seed=seed) for seed in _SEEDS]
    middle = sum(rates) / len(rates)
    spread = (max(rates) - min(rates)) / 2 / middle if middle else 1.0
    seen = max((abs(factor / stack.stretch - 1.0) for factor in observed), default=0.0)
    if chosen.confirmed is not None and observed:
        return max(spread, seen), (
            f"batches under real load against the prediction differ by {seen:.1%} at most over {len(observed)} loads, "
            f"{len(rates)} simulations among themselves by {spread:.1%}"
        )
    return spread, f"{len(rates)} simulations differ by {spread:.1%}; none was confirmed by real load"

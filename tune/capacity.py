"""How many workers a rate needs, from the simulation, with the error that its predictions were seen to have. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from penstock.tune.candidates import Knowledge
from penstock.tune.result import CapacityPlan, Configuration, ConfigurationVerdict, Goal
from penstock.tune.simulation.predict import Plant, highest_rate, slots_needed, told

_JOBS = 1_500
_SEEDS = (1, 2, 3)
# Beyond this the answer is a number of machines, and each more costs as much as the last.
_MOST_SLOTS = 256


def capacity_of(
    configurations: Sequence[Configuration], knowledge: Knowledge, goal: Goal, *, observed: Sequence[float]
) -> CapacityPlan | None:
    """None when no rate was asked for, or no configuration keeps the goal at any.

    `observed`: batch times under real load over those measured without, of the loads that were run.
    """
    if goal.rate is None:
        return None
    chosen = next((one for one in configurations if one.verdict is not ConfigurationVerdict.PRUNED and one.predicted), None)
    if chosen is None:
        return None
    choice = chosen.choice
    # How many gateways the rate needs is another question: here every worker finds its jobs.
    overheads = replace(knowledge.overheads, per_item_s=0.0, per_batch_s=0.0)
    plant = replace(knowledge.plant(choice), overheads=overheads)
    error, basis = _error(plant, goal, chosen, observed)
    needed = _slots(plant, goal, goal.rate)
    if needed is None:
        return None
    return CapacityPlan(
        rate=goal.rate,
        workers=needed,
        devices=0 if choice.engine.device == "cpu" else math.ceil(needed / choice.workers),
        choice=choice,
        predicted=told(replace(plant, slots=needed), goal, goal.rate, jobs=_JOBS, seeds=_SEEDS[:2]),
        error=error,
        basis=basis,
        workers_low=_slots(plant, goal, goal.rate / (1.0 + error)) or needed,
        workers_high=_slots(plant, goal, goal.rate * (1.0 + error)) or needed,
    )


def _slots(plant: Plant, goal: Goal, rate: float) -> int | None:
    return slots_needed(plant, goal, rate, most=_MOST_SLOTS, jobs=_JOBS)


def _error(plant: Plant, goal: Goal, chosen: Configuration, observed: Sequence[float]) -> tuple[float, str]:
    """A share, and where it comes from: the larger of what the seeds differ by and what real load was seen to differ by."""
    rates = [highest_rate(plant, goal, jobs=_JOBS, seed=seed) for seed in _SEEDS]
    middle = sum(rates) / len(rates)
    spread = (max(rates) - min(rates)) / 2 / middle if middle else 1.0
    seen = max((abs(factor / plant.stretch - 1.0) for factor in observed), default=0.0)
    if chosen.confirmed is not None and observed:
        return max(spread, seen), (
            f"batches under real load against the prediction differ by {seen:.1%} at most over {len(observed)} loads, "
            f"{len(rates)} simulations among themselves by {spread:.1%}"
        )
    return spread, f"{len(rates)} simulations differ by {spread:.1%}; none was confirmed by real load"

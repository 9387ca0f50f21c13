"""Runs the values of a batch in the calls that a planner chooses, and puts every output back in its place. Checks each call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from time import perf_counter
from typing import Any, NamedTuple

from penstock.errors import HandlerContractError
from penstock.handlers.calls import parallel_by_cost
from penstock.handlers.contract import Failure, OfNoJob
from penstock.handlers.decorator import ItemFunction
from penstock.handlers.loaded import Loaded, Stage
from penstock.model_spec import LearnedCalls
from penstock.workers.child.calls.costs import CostReader, complete, natural_costs
from penstock.workers.child.calls.cuts import Bounds
from penstock.workers.child.calls.halving import Halving, OnPart, Refusal, raise_if_fatal, refusal_of
from penstock.workers.child.calls.planner import CallPlan, Planner

Clock = Callable[[], float]

# Shorter batches are run as they come: deciding costs about a tenth of a millisecond.
_QUICK_S = 0.004


class Pace:
    """Whether batches take long enough for the size of their calls to matter. Pure; true until the first has run."""

    def __init__(self) -> None:
        self._longest_s = inf

    @property
    def is_slow(self) -> bool:
        return self._longest_s >= _QUICK_S

    def on_batch(self, seconds: float) -> None:
        # The longest of late, so that one quick batch does not end the learning, and one slow one does not keep it for ever.
        self._longest_s = seconds if self._longest_s == inf else max(seconds, 0.9 * self._longest_s)


class CallsOutcome(NamedTuple):
    """One output or `Failure` per value. `largest_ok`: if memory ran out, the largest part of a call that passed.

    `padding`: the share of the calls that was padding, if the handler says. `calls`: how many ran.
    """

    outputs: list[Any]
    largest_ok: int | None
    padding: float | None
    calls: int


class Calls:
    """The calls of one loaded model. `run` is used by the thread that has the device, the others by those that prepare."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._reader = CostReader(loaded)
        self._pace = Pace()
        self._plan_within(loaded.call_bounds)

    def _plan_within(self, given: tuple[int, float]) -> None:
        """`given`: the bounds of the handler, which may find narrower ones while it runs."""
        loaded, self._given = self._loaded, given
        self._bounds = Bounds(min(given[0], loaded.context.max_batch_size), given[1])
        self.planner = Planner(
            self._bounds,
            declared=loaded.cost is not None,
            sizes=loaded.context.runtime.batch_buckets,
            one_by_one=isinstance(loaded.handler, ItemFunction) or given[0] == 1,
            batch_items=loaded.context.max_batch_size,
        )

    def costs_before(self, inputs: Sequence[Any], live: Sequence[int]) -> dict[int, float | None]:
        """The cost of items by their inputs, by place; empty if it is unknown, or will never matter."""
        if self._loaded.cost is None:
            return dict(zip(live, natural_costs(inputs), strict=True)) if self._is_wanted else {}
        stage = self._loaded.handler.cost_stage
        return dict(zip(live, self._reader.declared(inputs), strict=True)) if stage == "input" else {}

    def costs_after(self, values: Sequence[Any], live: Sequence[int], before: dict[int, float | None]) -> list[float]:
        """The final cost of the items, one per value; empty if the items count as alike."""
        if self._loaded.cost is not None:
            given = self._reader.declared(values) if self._loaded.handler.cost_stage == "item" else [before[at] for at in live]
            return complete(given)
        if not before or not values:
            return []
        # A preprocessed value says more about the call than its input does; but it may have no size.
        sizes = natural_costs(values) if self._loaded.preprocess else []
        known = sizes if sizes and None not in sizes else [before[place] for place in live]
        return [] if None in known else complete(known)

    @property
    def _is_wanted(self) -> bool:
        return self._pace.is_slow and self._loaded.context.max_batch_size > 1

    def run(
        self, values: list[Any], costs: Sequence[float], clock: Clock, *, may_try: bool = True, learn: bool = True
    ) -> CallsOutcome:
        """All values, in calls of items with like costs. `costs` empty: the items are taken to be alike."""
        began = clock()
        if self._loaded.call_bounds != self._given:
            self._plan_within(self._loaded.call_bounds)
        if outcome := self._in_parallel(values, costs):
            return outcome
        # Coroutines wait side by side, so that smaller calls gain nothing.
        if (self._loaded.at_once or not self._pace.is_slow) and self._fits(len(values)):
            done = self._quick_call(values)
        else:
            done = self._planned(values, costs, clock, may_try=may_try, learn=learn)
        if learn and done.largest_ok is None:
            self._pace.on_batch(clock() - began)
        return done

    def wish(self) -> int:
        """How many items the next batch should have at most; 0: as many as one call may have."""
        return self.planner.wish() if self._pace.is_slow else 0

    def news(self) -> LearnedCalls | None:
        """What is known of calls; None if it was reported recently, or does not matter."""
        return self.planner.news() if self._pace.is_slow else None

    def _fits(self, count: int) -> bool:
        """Whether this number of items may share a call, at any cost."""
        return count <= self._bounds.items and self._bounds.cost == inf

    def _quick_call(self, values: list[Any]) -> CallsOutcome:
        outputs, largest_ok = call_stage(self._loaded.inference, "inference", values, on_part=self._on_part)
        return CallsOutcome(outputs, largest_ok, self.padding(), 1)

    def _on_part(self, first: int, count: int) -> None:
        """The call is repeated with `count` of its items, from the one at `first` on."""
        running = self._loaded.context.running
        running.places = running.call[first : first + count]

    def _planned(self, values: list[Any], costs: Sequence[float], clock: Clock, *, may_try: bool, learn: bool) -> CallsOutcome:
        began = clock()
        plan = self.planner.plan(len(values), costs, may_try=may_try and learn)
        run = self._one_call if len(plan.calls) == 1 else partial(self._each_call, plan)
        done = run(values, costs, clock, learn=learn)
        if learn and done.largest_ok is None:
            self.planner.on_batch(plan, clock() - began)
        return done

    def _one_call(self, values: list[Any], costs: Sequence[float], clock: Clock, *, learn: bool) -> CallsOutcome:
        began = clock()
        outputs, largest_ok = call_stage(self._loaded.inference, "inference", values, on_part=self._on_part)
        if learn and largest_ok is None:
            self.planner.on_ran(len(values), costs, clock() - began)
        return CallsOutcome(outputs, largest_ok, self.padding(), 1)

    def _each_call(
        self, plan: CallPlan, values: list[Any], costs: Sequence[float], clock: Clock, *, learn: bool
    ) -> CallsOutcome:
        outputs: list[Any] = [None] * len(values)
        outcomes: list[CallsOutcome] = []
        running = self._loaded.context.running
        # A loop without a worker has no batch, so the places of its values are those of its list.
        of_batch = running.all or range(len(values))
        for places in plan.calls:
            running.call = running.places = [of_batch[place] for place in places]
            done = self._one_call([values[place] for place in places], _of(costs, places), clock, learn=learn)
            if done.largest_ok is not None and costs:
                # Calls of less cost fit; fewer items at a time would not make them smaller.
                self.planner.on_memory_short(_of(costs, places), done.largest_ok)
                done = done._replace(largest_ok=None)
            for place, output in zip(places, done.outputs, strict=True):
                outputs[place] = output
            outcomes.append(done)
        capped = [done.largest_ok for done in outcomes if done.largest_ok is not None]
        padding = _together(
            [(sum(_of(costs, places)) or len(places), done.padding) for places, done in zip(plan.calls, outcomes, strict=True)]
        )
        return CallsOutcome(outputs, min(capped) if capped else None, padding, len(outcomes))

    def outputs(self, values: list[Any]) -> list[Any]:
        """The outputs of preprocessed values, in the calls in which a worker would run them; for loops without a worker."""
        return self.run(values, self._warm_costs(values), perf_counter).outputs

    def warm(self, values: list[Any]) -> list[Any]:
        """Run preprocessed values in as few calls as may be; the outputs. Raises what the handler raises."""
        calls = self.planner.within_bounds(len(values), self._warm_costs(values))
        running = self._loaded.context.running
        running.told = OfNoJob(values)
        parts: list[Any] = []
        for places in calls:
            running.places = places
            parts.append(self._loaded.inference([values[place] for place in places]))
        running.told, running.places = None, ()
        return list(parts[0]) if len(parts) == 1 else [output for part in parts for output in part]

    def on_warmed(self, values: list[Any], seconds: float) -> None:
        """`warm` took `seconds`, not for the first time."""
        costs = self._warm_costs(values)
        if len(self.planner.within_bounds(len(values), costs)) == 1:
            self.planner.on_ran(len(values), costs, seconds)

    def _warm_costs(self, values: list[Any]) -> list[float]:
        # If the sample has no size, all its copies cost the same.
        return self.costs_after(values, range(len(values)), dict.fromkeys(range(len(values)), 1.0))

    def _in_parallel(self, values: list[Any], costs: Sequence[float]) -> CallsOutcome | None:
        """The outcome of calls that ran side by side (D45); None if the model makes none, they would not pay, or one raised."""
        run = self._loaded.inference_calls
        if run is None or self._loaded.calls_at_once < 2 or not costs:
            return None
        bounds, threads = self._bounds, self._loaded.calls_at_once
        calls = parallel_by_cost(costs, most_items=bounds.items, most_cost=bounds.cost, threads=threads)
        if not calls:
            return None
        outputs: list[Any] = [None] * len(values)
        try:
            for places, answers in zip(calls, run([[values[place] for place in places] for places in calls]), strict=True):
                for place, answer in zip(places, answers, strict=True):
                    outputs[place] = answer
        except Exception as error:  # noqa: BLE001 - the items at fault are found by calls one after another
            raise_if_fatal(error)
            return None
        padded = sum(len(places) * max(costs[place] for place in places) for places in calls)
        return CallsOutcome(outputs, None, 1 - sum(costs) / padded if padded else 0.0, len(calls))

    def padding(self) -> float | None:
        """The share of the call just run that was padding, 0 to 1; None if the handler does not say.

        A handler says it by an attribute, a property or a method. A fault of that costs the figure and not the batch.
        """
        try:
            ratio: Any = getattr(self._loaded.handler, "padding_ratio", None)
            ratio = ratio() if callable(ratio) else ratio
            return None if ratio is None else min(1.0, max(0.0, float(ratio)))
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            sys.stderr.write(f"padding_ratio raised {type(error).__name__}: {error}\n")
            return None


def call_stage(stage: Stage, name: str, values: list[Any], *, on_part: OnPart | None = None) -> tuple[list[Any], int | None]:
    """One output or `Failure` per value and, if memory ran out, the size of the largest part that passed (0: no item did).

    `on_part` is called for each part with which the call is repeated.
    """
    result = _attempt(stage, name, values)
    if not isinstance(result, Refusal):
        return result, None
    halving = Halving(partial(_attempt, stage, name), on_part)
    return halving.halve(values, result), halving.largest_ok


def _attempt(stage: Stage, name: str, values: list[Any]) -> list[Any] | Refusal:
    try:
        return _checked(stage(values), len(values), name)
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything
        return refusal_of(error)


def _checked(outputs: Any, count: int, name: str) -> list[Any]:
    """The stage's outputs as a list of `count`; raises `HandlerContractError` for anything else."""
    listed = outputs if type(outputs) is list else _listed(outputs, name)
    if len(listed) != count:
        raise HandlerContractError(
            f"{name} got {count} inputs and returned {len(listed)} outputs; return one per input, a Failure in a bad place"
        )
    return listed


def _listed(outputs: Any, name: str) -> list[Any]:
    if isinstance(outputs, (str, bytes, dict, Failure)) or not hasattr(outputs, "__iter__"):
        raise HandlerContractError(f"{name} returned {type(outputs).__name__}; return a list with one output per input")
    return list(outputs)


def _of(costs: Sequence[float], places: Sequence[int]) -> Sequence[float]:
    return [costs[place] for place in places] if costs else ()


def _together(parts: Sequence[tuple[float, float | None]]) -> float | None:
    """The share of padding over several calls; each comes with the cost of its items and its own share."""
    known = [(cost, share) for cost, share in parts if share is not None]
    padded = sum(cost / (1 - share) for cost, share in known if share < 1)
    return None if not known else 1 - sum(cost for cost, share in known if share < 1) / padded if padded else 0.0

"""Candidates under real load, one after the other. Each load corrects the predictions for the next candidates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from penstock.errors import PenstockError
from penstock.tune.candidates import Knowledge
from penstock.tune.measuring.notebook import Notebook, key_of
from penstock.tune.result import Choice, Figures, Goal
from penstock.tune.simulation.predict import (
    PATH_SHARE,
    LearnedTimes,
    StackModel,
    best_figures,
    goal_holds,
    keeps_goal,
    predicted_figures,
)
from penstock.tune.trial_stack import TrialResult, TrialStack, TuneEnvironment

_TRIES = 3
_JOBS = 4_000
_SEEDS = (1, 2, 3)
# A rate this much higher is worth another load; after a load that missed the goal, the next rate is this much lower.
_HIGHER, _LOWER = 1.05, 0.85
# Rates that differ by less count as equal.
_CLEARLY = 1.02
_STRETCHES = (0.8, 2.0)
_CALLS = 1_500
_LEAST_S, _MOST_S = 1.5, 30.0
# A queue near the ceiling fills for seconds, so a shorter load would show a better tail than the predicted one.
_FILLS_S = 12.0
_CONFIRMED = "confirmed"


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The figures at the highest rate that kept the goal under real load; None: no rate did, and `why` says what happened."""

    predicted: Figures | None
    figures: Figures | None
    why: str = ""
    stages_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rerun:
    """The winner's second run. `why`: the first run did not repeat; `instead` is then confirmed, at a lower rate.

    `figures` None: no second run kept the goal.
    """

    instead: Confirmation | None
    figures: Figures | None
    why: str = ""


@dataclass(slots=True)
class Trials:
    """`left_s`: the time that trials may still take. `knowledge` grows with every load."""

    environment: TuneEnvironment
    goal: Goal
    knowledge: Knowledge
    notebook: Notebook
    left_s: Callable[[], float]
    on_load: Callable[[str], None]
    observed: list[float] = field(default_factory=list)
    stacks: int = 0

    def confirm(self, choice: Choice) -> Confirmation:
        """At most three loads on one stack: the predicted rate first, then rates corrected by what the loads showed."""
        first = self._predicted(choice)
        if first is None:
            return Confirmation(None, None, f"corrected by what other loads showed, it keeps {self.goal.text} at no rate")
        known = self._known(choice)
        if known is not None:
            return known
        self.stacks += 1
        try:
            with self.environment.stack(choice, number=self.stacks) as stack:
                confirmation = self._tries(choice, stack, first)
        except PenstockError as fault:
            return Confirmation(first, None, f"its stack failed: {fault.message[:300]}")
        self.notebook.put(_CONFIRMED, key_of((choice, self.goal)), (confirmation, self.knowledge_of(choice)))
        return confirmation

    def _known(self, choice: Choice) -> Confirmation | None:
        entry = self.notebook.get(_CONFIRMED, key_of((choice, self.goal)), tuple[Confirmation, tuple[float, float]])
        if entry is None:
            return None
        confirmation, (stretch, request_s) = entry
        self._learn(choice, stretch, request_s)
        return confirmation

    def knowledge_of(self, choice: Choice) -> tuple[float, float]:
        return self.knowledge.stack_model(choice).stretch, self.knowledge.overheads.request_s

    def _tries(self, choice: Choice, stack: TrialStack, first: Figures) -> Confirmation:
        rate, confirmed, why = first.offered_rps, None, ""
        kept: TrialResult | None = None
        for number in range(_TRIES):
            if confirmed and self.left_s() < self._seconds(rate) * 2:
                break
            result = self._offer(stack, choice, rate, seed=number + 1)
            if result.figures is not None:
                self._correct(choice, result, result.figures)
            if result.figures is not None and keeps_goal(result.figures, self.goal):
                kept, confirmed = result, replace(result.figures, offered_rps=rate)
            else:
                why = self._missed(result, rate)
                self._blame_path(choice, rate)
            higher = self._next(choice, rate, kept is result)
            if higher is None or (confirmed is not None and higher <= confirmed.offered_rps * _HIGHER):
                break
            rate = higher
        predicted = predicted_figures(
            self.knowledge.stack_model(choice), self.goal, (confirmed or first).offered_rps, jobs=_JOBS, seeds=_SEEDS
        )
        return Confirmation(predicted, confirmed, "" if confirmed else why, dict(kept.stages_ms) if kept else {})

    def _next(self, choice: Choice, rate: float, kept: bool) -> float | None:
        """The rate to try next; None: no better rate is expected."""
        if self.goal.min_rate is not None:
            return None
        corrected = self._predicted(choice)
        if kept:
            return corrected.offered_rps if corrected and corrected.offered_rps > rate * _HIGHER else None
        return min(corrected.offered_rps if corrected else rate, rate * _LOWER)

    def _missed(self, result: TrialResult, rate: float) -> str:
        if result.figures is None:
            return f"at {rate:.4g}/s {result.why}"
        return f"at {rate:.4g}/s its p{self.goal.percentile:g} was {result.figures.tail_ms:.3g} ms under real load"

    def rerun(self, choice: Choice, rate: float) -> Rerun:
        """The same load again, with other arrivals, on a new stack. A rate that does not repeat is taken back, and a lower rate
        has to keep the goal twice."""
        self.stacks += 1
        with self.environment.stack(choice, number=self.stacks) as stack:
            first = self._offer(stack, choice, rate, seed=101)
            if first.figures and keeps_goal(first.figures, self.goal):
                return Rerun(None, replace(first.figures, offered_rps=rate))
            why = self._missed(first, rate)
            if self.goal.min_rate is not None:
                return Rerun(None, None, why)
            lower = rate * _LOWER
            twice = [self._offer(stack, choice, lower, seed=seed).figures for seed in (102, 103)]
        kept = [replace(figures, offered_rps=lower) for figures in twice if figures and keeps_goal(figures, self.goal)]
        if len(kept) < len(twice):
            return Rerun(None, None, f"{why}, and it did not keep the goal at {lower:.4g}/s twice in a row")
        predicted = predicted_figures(self.knowledge.stack_model(choice), self.goal, lower, jobs=_JOBS, seeds=_SEEDS)
        return Rerun(Confirmation(predicted, kept[0]), kept[1], why)

    def _offer(self, stack: TrialStack, choice: Choice, rate: float, *, seed: int) -> TrialResult:
        seconds = self._seconds(rate)
        self.on_load(f"{choice.label}: {rate:.4g}/s for {seconds:.0f} s")
        return stack.offer(rate, self.goal, seconds=seconds, warm_up_s=min(2.0, seconds / 3), seed=seed)

    def _seconds(self, rate: float) -> float:
        wanted = min(_MOST_S, max(_FILLS_S, _CALLS / rate))
        return max(_LEAST_S, min(wanted, self.left_s() / 6))

    def _predicted(self, choice: Choice) -> Figures | None:
        stack = self.knowledge.stack_model(choice)
        if self.goal.min_rate is not None:
            return predicted_figures(stack, self.goal, self.goal.min_rate, jobs=_JOBS)
        return best_figures(stack, self.goal, jobs=_JOBS // 2, seeds=_SEEDS[:2])

    def _correct(self, choice: Choice, result: TrialResult, figures: Figures) -> None:
        """Corrects two values: the stretch of batches under load, and the time of a request outside of its batch."""
        stack = self.knowledge.stack_model(choice)
        stretch = self._stretch(stack, result)
        self._learn(choice, stretch, stack.overheads.request_s)
        if keeps_goal(figures, self.goal):
            simulated = predicted_figures(
                replace(stack, stretch=stretch), self.goal, figures.offered_rps, jobs=_JOBS, seeds=_SEEDS[:1]
            )
            request_s = stack.overheads.request_s + (figures.p50_ms - simulated.p50_ms) / 1e3
            self._learn(choice, stretch, max(0.0, request_s))

    def _stretch(self, stack: StackModel, result: TrialResult) -> float:
        seen_s = result.stages_ms.get("inference", 0.0) / 1e3
        learned = LearnedTimes(stack.times)
        items = sum(size * count for size, count in result.batches.items())
        expected_s = sum(size * count * learned.expected_s(size) for size, count in result.batches.items()) / max(1e-9, items)
        if not seen_s or not expected_s:
            return stack.stretch
        self.observed.append(seen_s / expected_s)
        return min(_STRETCHES[1], max(_STRETCHES[0], seen_s / expected_s))

    def _blame_path(self, choice: Choice, rate: float) -> None:
        """If a missed rate is near the ceiling of gateway and store, their ceiling is lowered."""
        overheads = self.knowledge.overheads
        each_s = overheads.per_item_s + overheads.per_batch_s / choice.batch_size
        if rate * each_s > PATH_SHARE / 2:
            more = max(1.0, PATH_SHARE / (rate * _LOWER) / each_s)
            costlier = replace(overheads, per_item_s=overheads.per_item_s * more, per_batch_s=overheads.per_batch_s * more)
            self.knowledge = replace(self.knowledge, overheads=costlier)

    def is_expected_to_beat(self, choice: Choice, rate: float) -> bool:
        """Whether the choice is still expected, with all corrections, to carry clearly more than `rate`."""
        return goal_holds(self.knowledge.stack_model(choice), self.goal, rate * _CLEARLY, jobs=_JOBS // 2)

    def _learn(self, choice: Choice, stretch: float, request_s: float) -> None:
        known = {**self.knowledge.stretch, (choice.engine, choice.slots): stretch}
        overheads = replace(self.knowledge.overheads, request_s=request_s)
        self.knowledge = replace(self.knowledge, stretch=known, overheads=overheads)

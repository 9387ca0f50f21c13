"""The candidates under real load, one after the other; what is learned from one corrects the predictions for the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from penstock.errors import PenstockError
from penstock.tune.candidates import Knowledge
from penstock.tune.confirm import Met, TrialStack, TuneEnvironment
from penstock.tune.measuring.notebook import Notebook, key_of
from penstock.tune.result import Choice, Figures, Goal
from penstock.tune.simulation.predict import PATH_SHARE, Learned, Plant, best, holds, keeps, told

_TRIES = 3
_JOBS = 4_000
_SEEDS = (1, 2, 3)
# A rate this much higher is worth another try; and this much lower follows a load that could not be carried.
_HIGHER, _LOWER = 1.05, 0.85
# By less than this two rates are the same.
_CLEARLY = 1.02
_STRETCHES = (0.8, 2.0)
_CALLS = 1_500
_LEAST_S, _MOST_S = 1.5, 30.0
# A queue near the ceiling fills for seconds: a load that ends before shows a better tail than the one that is predicted.
_FILLS_S = 12.0
_CONFIRMED = "confirmed"


@dataclass(frozen=True, slots=True)
class Tried:
    """The highest rate at which the goal was kept; without `figures` there was none, and `why` says what happened."""

    predicted: Figures | None
    figures: Figures | None
    why: str = ""
    stages_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Again:
    """The winner's second run. `instead`: what is confirmed after all, at a lower rate; `why` the first did not repeat.

    Without `figures` it did not keep the goal again at all.
    """

    instead: Tried | None
    figures: Figures | None
    why: str = ""


@dataclass(slots=True)
class Trials:
    """`budget_s`: what may be spent from now on. Knowledge grows with every load."""

    site: TuneEnvironment
    goal: Goal
    knowledge: Knowledge
    notebook: Notebook
    left_s: Callable[[], float]
    say: Callable[[str], None]
    observed: list[float] = field(default_factory=list)
    stacks: int = 0

    def confirm(self, choice: Choice) -> Tried:
        """On one stack: the predicted rate first, then what was learned from it, three loads at most."""
        first = self._predicted(choice)
        if first is None:
            return Tried(None, None, f"corrected by what other loads showed, it keeps {self.goal.text} at no rate")
        known = self._known(choice)
        if known is not None:
            return known
        self.stacks += 1
        try:
            with self.site.stack(choice, number=self.stacks) as stack:
                tried = self._tries(choice, stack, first)
        except PenstockError as fault:
            return Tried(first, None, f"its stack failed: {fault.message[:300]}")
        self.notebook.put(_CONFIRMED, key_of((choice, self.goal)), (tried, self.knowledge_of(choice)))
        return tried

    def _known(self, choice: Choice) -> Tried | None:
        entry = self.notebook.get(_CONFIRMED, key_of((choice, self.goal)), tuple[Tried, tuple[float, float]])
        if entry is None:
            return None
        tried, (stretch, request_s) = entry
        self._learn(choice, stretch, request_s)
        return tried

    def knowledge_of(self, choice: Choice) -> tuple[float, float]:
        return self.knowledge.plant(choice).stretch, self.knowledge.overheads.request_s

    def _tries(self, choice: Choice, stack: TrialStack, first: Figures) -> Tried:
        rate, found, why = first.offered_rps, None, ""
        kept: Met | None = None
        for number in range(_TRIES):
            if found and self.left_s() < self._seconds(rate) * 2:
                break
            met = self._offer(stack, choice, rate, seed=number + 1)
            if met.figures is not None:
                self._correct(choice, met, met.figures)
            if met.figures is not None and keeps(met.figures, self.goal):
                kept, found = met, replace(met.figures, offered_rps=rate)
            else:
                why = self._missed(met, rate)
                self._blame_path(choice, rate)
            higher = self._next(choice, rate, kept is met)
            if higher is None or (found is not None and higher <= found.offered_rps * _HIGHER):
                break
            rate = higher
        predicted = told(self.knowledge.plant(choice), self.goal, (found or first).offered_rps, jobs=_JOBS, seeds=_SEEDS)
        return Tried(predicted, found, "" if found else why, dict(kept.stages_ms) if kept else {})

    def _next(self, choice: Choice, rate: float, kept: bool) -> float | None:
        """The rate to try after this one; None: there is no better."""
        if self.goal.min_rate is not None:
            return None
        corrected = self._predicted(choice)
        if kept:
            return corrected.offered_rps if corrected and corrected.offered_rps > rate * _HIGHER else None
        return min(corrected.offered_rps if corrected else rate, rate * _LOWER)

    def _missed(self, met: Met, rate: float) -> str:
        if met.figures is None:
            return f"at {rate:.4g}/s {met.why}"
        return f"at {rate:.4g}/s its p{self.goal.percentile:g} was {met.figures.tail_ms:.3g} ms under real load"

    def rerun(self, choice: Choice, rate: float) -> Again:
        """The same load once more, with other arrivals, on a stack set up anew. What does not repeat is taken back: then a
        lower rate is run twice."""
        self.stacks += 1
        with self.site.stack(choice, number=self.stacks) as stack:
            first = self._offer(stack, choice, rate, seed=101)
            if first.figures and keeps(first.figures, self.goal):
                return Again(None, replace(first.figures, offered_rps=rate))
            why = self._missed(first, rate)
            if self.goal.min_rate is not None:
                return Again(None, None, why)
            lower = rate * _LOWER
            twice = [self._offer(stack, choice, lower, seed=seed).figures for seed in (102, 103)]
        kept = [replace(figures, offered_rps=lower) for figures in twice if figures and keeps(figures, self.goal)]
        if len(kept) < len(twice):
            return Again(None, None, f"{why}, and it did not keep the goal at {lower:.4g}/s twice in a row")
        predicted = told(self.knowledge.plant(choice), self.goal, lower, jobs=_JOBS, seeds=_SEEDS)
        return Again(Tried(predicted, kept[0]), kept[1], why)

    def _offer(self, stack: TrialStack, choice: Choice, rate: float, *, seed: int) -> Met:
        seconds = self._seconds(rate)
        self.say(f"{choice.label}: {rate:.4g}/s for {seconds:.0f} s")
        return stack.offer(rate, self.goal, seconds=seconds, warm_up_s=min(2.0, seconds / 3), seed=seed)

    def _seconds(self, rate: float) -> float:
        wanted = min(_MOST_S, max(_FILLS_S, _CALLS / rate))
        return max(_LEAST_S, min(wanted, self.left_s() / 6))

    def _predicted(self, choice: Choice) -> Figures | None:
        plant = self.knowledge.plant(choice)
        if self.goal.min_rate is not None:
            return told(plant, self.goal, self.goal.min_rate, jobs=_JOBS)
        return best(plant, self.goal, jobs=_JOBS // 2, seeds=_SEEDS[:2])

    def _correct(self, choice: Choice, met: Met, figures: Figures) -> None:
        """Two corrections: how much longer the stages took than when measured, and what the median latency had beside them."""
        plant = self.knowledge.plant(choice)
        stretch = self._stretch(plant, met)
        self._learn(choice, stretch, plant.overheads.request_s)
        if keeps(figures, self.goal):
            simulated = told(replace(plant, stretch=stretch), self.goal, figures.offered_rps, jobs=_JOBS, seeds=_SEEDS[:1])
            request_s = plant.overheads.request_s + (figures.p50_ms - simulated.p50_ms) / 1e3
            self._learn(choice, stretch, max(0.0, request_s))

    def _stretch(self, plant: Plant, met: Met) -> float:
        seen_s = met.stages_ms.get("inference", 0.0) / 1e3
        learned = Learned(plant.times)
        items = sum(size * count for size, count in met.batches.items())
        expected_s = sum(size * count * learned.expected_s(size) for size, count in met.batches.items()) / max(1e-9, items)
        if not seen_s or not expected_s:
            return plant.stretch
        self.observed.append(seen_s / expected_s)
        return min(_STRETCHES[1], max(_STRETCHES[0], seen_s / expected_s))

    def _blame_path(self, choice: Choice, rate: float) -> None:
        """A rate near what the store and the gateway carried, and missed: from now on they are believed to carry less."""
        overheads = self.knowledge.overheads
        each_s = overheads.per_item_s + overheads.per_batch_s / choice.batch_size
        if rate * each_s > PATH_SHARE / 2:
            more = max(1.0, PATH_SHARE / (rate * _LOWER) / each_s)
            dearer = replace(overheads, per_item_s=overheads.per_item_s * more, per_batch_s=overheads.per_batch_s * more)
            self.knowledge = replace(self.knowledge, overheads=dearer)

    def beats(self, choice: Choice, rate: float) -> bool:
        """Whether, with all that was learned, it is still expected to carry clearly more than `rate`."""
        return holds(self.knowledge.plant(choice), self.goal, rate * _CLEARLY, jobs=_JOBS // 2)

    def _learn(self, choice: Choice, stretch: float, request_s: float) -> None:
        known = {**self.knowledge.stretch, (choice.engine, choice.workers): stretch}
        overheads = replace(self.knowledge.overheads, request_s=request_s)
        self.knowledge = replace(self.knowledge, stretch=known, overheads=overheads)

"""The steps of a search: measure, rule out, simulate, confirm, run the winner again."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from penstock.errors import HandlerLoadError, PenstockError
from penstock.loadtest.generator.connection import RequestBody
from penstock.loadtest.observed.machine import describe_machine
from penstock.model_spec import ModelSpec
from penstock.tune.candidates import Knowledge, Ranking, most_confirmed, ranked, shortlist, stand_ins
from penstock.tune.capacity import capacity_of
from penstock.tune.confirm import TuneEnvironment, measure_overheads
from penstock.tune.confirming import Again, Trials, Tried
from penstock.tune.measuring.measure import BatchTimer, Found, compared
from penstock.tune.measuring.notebook import About, Notebook, key_of
from penstock.tune.prune import MemoryBudget, pruned, refused, too_many
from penstock.tune.report.verdicts import SearchOutcome, configurations
from penstock.tune.result import (
    Choice,
    Configuration,
    EngineSettings,
    Figures,
    Goal,
    Measured,
    Overheads,
    SearchTime,
    TuneResult,
)
from penstock.tune.space import TuneMachine, choices, default_space
from penstock.workers.devices.machine import Machine

# Shares of the budget until which a step may begin something new.
_MEASURED_BY, _SIMULATED_BY, _CONFIRMED_BY = 0.45, 0.6, 0.85
_SLICE_LEAST_S, _SLICE_MOST_S = 0.1, 0.6
_MEASURED, _OVERHEADS = "measured", "overheads"
_OVERHEADS_LEAST_S, _OVERHEADS_MOST_S = 1.0, 3.0

Told = Callable[[str, float, str], None]


@dataclass(frozen=True, slots=True)
class Question:
    """`table` is the model's declared settings as of [models.NAME]; `named` the dimensions that the user gave, checked.

    `budget_s` bounds the search, but what was begun is finished. `folder`: on a real disk, for the stacks; None: a new one.
    """

    spec: ModelSpec
    table: Mapping[str, Any]
    goal: Goal
    machine: Machine
    named: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    inputs: tuple[RequestBody, ...] = ()
    budget_s: float = 600.0
    resume: Path | None = None
    folder: Path | None = None


@dataclass(slots=True)
class Clock:
    """The budget and how it is spent."""

    budget_s: float
    began_at: float
    steps_s: dict[str, float] = field(default_factory=dict)

    @property
    def left_s(self) -> float:
        return self.budget_s - (time.monotonic() - self.began_at)

    def past(self, share: float) -> bool:
        return self.left_s < (1.0 - share) * self.budget_s

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.steps_s[name] = round(time.monotonic() - began, 3)


class Search:
    """One question answered. `told` hears the step's name, how far it is (0 to 1), and what it does now."""

    def __init__(self, question: Question, told: Told) -> None:
        self._question = question
        self._told = told
        self._clock = Clock(question.budget_s, time.monotonic())
        self._notebook = Notebook(question.resume)
        self._bank: dict[tuple[EngineSettings, int], Measured] = {}
        self._notes: list[str] = []
        self._space: dict[str, tuple[Any, ...]] = {}

    def run(self) -> TuneResult:
        """Raises `BadRequest` for an input that the model refuses, `HandlerLoadError` for a model that does not load."""
        question = self._question
        known = self._notebook.open(About(question.spec.name, question.table, question.inputs).digest())
        if known:
            self._notes.append(f"used again from an earlier search: {known} entries")
        with self._folder() as folder:
            return self._answer(folder)

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        """Not in the temporary folder: that may be memory, where fsync costs nothing."""
        parent = self._question.folder or Path.cwd()
        folder = Path(tempfile.mkdtemp(prefix=".penstock-tune-", dir=parent))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _answer(self, folder: Path) -> TuneResult:
        with self._clock.step("measure"):
            reference = self._reference()
            points = choices(self._space, self._around())
            self._measure(points, reference)
        with self._clock.step("overheads"):
            overheads = self._overheads(folder)
        with self._clock.step("simulate"):
            out = pruned(points, self._bank, self._question.goal, self._room())
            knowledge = Knowledge(self._bank, overheads, devices=self._devices())
            ranking = self._simulate([point for point in points if point not in out], knowledge)
        trials = self._trials(folder, knowledge, reference.inputs)
        with self._clock.step("confirm"):
            tried, behind = self._confirm(trials, ranking, most_confirmed(len(points)), {})
        outcome = SearchOutcome(out, ranking, tried, behind)
        with self._clock.step("rerun"):
            outcome = self._rerun(trials, outcome)
        return self._result(points, trials, outcome)

    # Measuring.

    def _reference(self) -> Found:
        """The engine as declared, whose answers are the right ones; it also tells what the handler takes."""
        spec, named = self._question.spec, self._question.named
        around = self._around()
        self._space = {**default_space(spec, around), **named}
        engine = EngineSettings(
            spec.device,
            spec.runtime.runtime,
            spec.runtime.precision,
            spec.runtime.compile,
            self._space["threads"][0],
            self._space["pinning"][0],
        )
        self._told("measure", 0.0, engine.label)
        found = self._found(engine, 1, slice_s=_SLICE_LEAST_S * 2)
        if found.measured.error:
            raise HandlerLoadError(f"{spec.name} does not run as it is declared: {found.measured.error}")
        if found.largest is not None:
            self._space = {**default_space(spec, around, largest_batch=found.largest), **named}
            fitting = tuple(size for size in self._space["batch_size"] if size <= found.largest)
            self._space["batch_size"] = fitting or (found.largest,)
        if not self._question.inputs:
            self._notes.append("the input was made from what the model declares: give real ones with --input")
        return found

    def _measure(self, points: Sequence[Choice], reference: Found) -> None:
        engines: dict[EngineSettings, set[int]] = {}
        for point in points:
            engines.setdefault(point.engine, set()).add(point.workers)
        wanted = [(engine, workers) for engine, many in engines.items() for workers in sorted({1, *many})]
        slice_s = self._slice_s(len(wanted), reference.measured.load_s)
        for number, (engine, workers) in enumerate(wanted):
            self._told("measure", number / len(wanted), f"{workers} x {engine.label}")
            if self._clock.past(_MEASURED_BY) and self._bank:
                break
            alone = self._bank.get((engine, 1))
            if alone is not None and workers > 1 and self._pointless(engine, workers, alone):
                continue
            found = self._found(engine, workers, slice_s=slice_s)
            self._bank[engine, workers] = compared(found, reference)

    def _pointless(self, engine: EngineSettings, workers: int, alone: Measured) -> bool:
        """One child alone is out already, or so many cannot be started."""
        return bool(refused(alone, self._question.goal) or too_many(engine, workers, alone, self._room()))

    def _slice_s(self, measurements: int, load_s: float) -> float:
        sizes = len(self._space["batch_size"]) + 1
        each_s = self._question.budget_s * _MEASURED_BY / max(1, measurements) - load_s - 1.0
        return min(_SLICE_MOST_S, max(_SLICE_LEAST_S, each_s / sizes))

    def _found(self, engine: EngineSettings, workers: int, *, slice_s: float) -> Found:
        sizes = sorted({1, *self._space["batch_size"]})
        key = key_of((engine, workers, sizes))
        known = self._notebook.get(_MEASURED, key, Found)
        if known is not None:
            return known
        question = self._question
        found = BatchTimer(question.spec, question.machine, question.inputs, slice_s).measure(engine, workers, sizes)
        self._notebook.put(_MEASURED, key, found)
        return found

    def _overheads(self, folder: Path) -> Overheads:
        known = self._notebook.get(_OVERHEADS, "", Overheads)
        if known is not None:
            return known
        self._told("overheads", 0.0, "a model that does nothing, on a stack of its own")
        seconds = min(_OVERHEADS_MOST_S, max(_OVERHEADS_LEAST_S, self._question.budget_s / 100))
        found = measure_overheads(folder, seconds=seconds)
        self._notebook.put(_OVERHEADS, "", found)
        return found

    # Choosing.

    def _simulate(self, points: Sequence[Choice], knowledge: Knowledge) -> Ranking:
        def told_of(number: int) -> None:
            self._told("simulate", number / max(1, len(points)), f"{number} of {len(points)}")

        return ranked(points, knowledge, self._question.goal, told_of=told_of, over=lambda: self._clock.past(_SIMULATED_BY))

    def _trials(self, folder: Path, knowledge: Knowledge, inputs: tuple[RequestBody, ...]) -> Trials:
        question = self._question
        site = TuneEnvironment(folder, question.spec.name, question.spec.version, question.table, inputs)
        return Trials(
            site,
            question.goal,
            knowledge,
            self._notebook,
            left_s=lambda: self._clock.left_s - (1.0 - _CONFIRMED_BY) * question.budget_s,
            say=lambda text: self._told("confirm", self._confirmed_share, text),
        )

    @property
    def _confirmed_share(self) -> float:
        return min(1.0, max(0.0, 1.0 - self._clock.left_s / (self._question.budget_s * (1.0 - _SIMULATED_BY))))

    def _confirm(
        self, trials: Trials, ranking: Ranking, most: int, before: Mapping[Choice, Tried]
    ) -> tuple[dict[Choice, Tried], dict[Choice, str]]:
        """The best few under real load, and those that what was learned there put behind the best of them."""
        tried = dict(before)
        behind: dict[Choice, str] = {}
        alike = stand_ins(ranking)
        best = max((one.figures.offered_rps for one in tried.values() if one.figures), default=0.0)
        for choice in (choice for choice in shortlist(ranking) if choice not in before):
            if (
                len(tried) >= most
                or (len(tried) > len(before) and self._clock.past(_CONFIRMED_BY))
                or (best and self._question.goal.min_rate)
            ):
                break
            if best and not trials.beats(choice, best):
                behind[choice] = f"corrected by what real load showed, it is not expected to reach more than {best:.4g}/s"
                continue
            tried[choice] = trials.confirm(choice)
            best = max(best, *(one.figures.offered_rps for one in tried.values() if one.figures), 0.0)
        return tried, {**{twin: why for twin, why in alike.items() if twin not in tried}, **behind}

    def _rerun(self, trials: Trials, outcome: SearchOutcome) -> SearchOutcome:
        """With the winner's second run, and what it takes back; then the next best has its turn, while there is time."""
        while outcome.champion is None:
            winner = outcome.winner(self._question.goal)
            if winner is not None:
                outcome = self._again(trials, outcome, *winner)
                continue
            tried, behind = outcome.tried, outcome.behind
            if tried and self._clock.left_s > 0.0:
                tried, behind = self._confirm(trials, outcome.ranking, len(tried) + 1, tried)
            if len(tried) == len(outcome.tried):
                break
            outcome = replace(outcome, tried=tried, behind=behind)
        return outcome

    def _again(self, trials: Trials, outcome: SearchOutcome, choice: Choice, figures: Figures) -> SearchOutcome:
        try:
            again = trials.rerun(choice, figures.offered_rps)
        except PenstockError as fault:
            again = Again(None, None, f"its stack failed: {fault.message[:200]}")
        first = outcome.tried[choice]
        if again.why:
            self._notes.append(f"{choice.label}, run a second time: {again.why}")
        if again.figures is None:
            return replace(
                outcome, tried={**outcome.tried, choice: replace(first, figures=None, why=f"run twice: {again.why}")}
            )
        kept = replace(again.instead, stages_ms=first.stages_ms) if again.instead else first
        return replace(outcome, rerun=again.figures, tried={**outcome.tried, choice: kept}, champion=choice)

    # Telling.

    def _result(self, points: Sequence[Choice], trials: Trials, outcome: SearchOutcome) -> TuneResult:
        question = self._question
        told = configurations(points, outcome, trials.knowledge, question.goal)
        return TuneResult(
            model=question.spec.name,
            version=question.spec.version,
            goal=question.goal,
            space={name: list(values) for name, values in self._space.items()},
            configurations=told,
            measured=tuple(self._bank.values()),
            overheads=trials.knowledge.overheads,
            capacity=self._capacity(trials, told),
            machine=dict(describe_machine()),
            spent=SearchTime(
                total_s=round(question.budget_s - self._clock.left_s, 3),
                budget_s=question.budget_s,
                steps_s=self._clock.steps_s,
                confirmed=len(outcome.tried),
                configurations=len(points),
            ),
            notes=tuple(self._notes),
            sample="made from the model's schema" if not question.inputs else f"{len(question.inputs)} given",
        )

    def _capacity(self, trials: Trials, told: Sequence[Configuration]) -> Any:
        return capacity_of(told, trials.knowledge, self._question.goal, observed=trials.observed)

    def _around(self) -> TuneMachine:
        machine = self._question.machine
        return TuneMachine(machine.topology.budget, len(machine.gpus.units))

    def _devices(self) -> int:
        return self._question.spec.workers if self._question.spec.device != "cpu" else 1

    def _room(self) -> MemoryBudget:
        units = self._question.machine.gpus.units
        free = min((unit.free_bytes for unit in units), default=0)
        return MemoryBudget(int(psutil.virtual_memory().available), free or None)


def search(question: Question, told: Told) -> TuneResult:
    return Search(question, told).run()

"""The steps of a search: measure, rule out, simulate, confirm, run the winner again."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from penstock.errors import PenstockError
from penstock.loadtest.generator.connection import RequestBody
from penstock.loadtest.observed.machine import describe_machine
from penstock.tune.candidates import Knowledge, Ranking, most_confirmed, rank, shortlist, stand_ins
from penstock.tune.capacity import capacity_of
from penstock.tune.measuring.measurements import Measurements
from penstock.tune.measuring.notebook import Notebook, SearchSubject
from penstock.tune.prune import ruled_out
from penstock.tune.question import OnProgress, SearchClock, TuneQuestion
from penstock.tune.report.verdicts import SearchOutcome, configurations
from penstock.tune.result import Choice, Configuration, Figures, RateCapacity, SearchTime, TuneResult
from penstock.tune.space import choices
from penstock.tune.trial_stack import TuneEnvironment
from penstock.tune.trials import Confirmation, Rerun, Trials

# The shares of the budget after which a step starts nothing new.
_SIMULATED_BY, _CONFIRMED_BY = 0.6, 0.85


class Search:
    """Answers one question."""

    def __init__(self, question: TuneQuestion, on_progress: OnProgress) -> None:
        self._question = question
        self._on_progress = on_progress
        self._clock = SearchClock(question.budget_s, time.monotonic())
        self._notebook = Notebook(question.resume)
        self._measurements = Measurements(question, self._clock, self._notebook, on_progress)
        self._notes: list[str] = []

    def run(self) -> TuneResult:
        """Raises `BadRequest` for an input that the model refuses, `HandlerLoadError` for a model that does not load."""
        question = self._question
        known = self._notebook.open(SearchSubject(question.spec.name, question.table, question.inputs).digest())
        if known:
            self._notes.append(f"{known} measurements are those of an earlier search")
        with self._folder() as folder:
            return self._answer(folder)

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        """A folder for trial stacks. The temporary folder may lie in memory, where fsync costs nothing."""
        parent = self._question.folder or Path.cwd()
        folder = Path(tempfile.mkdtemp(prefix=".penstock-tune-", dir=parent))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _answer(self, folder: Path) -> TuneResult:
        with self._clock.step("measure"):
            reference = self._measurements.measure_reference()
            points = choices(self._measurements.space, self._measurements.machine)
            self._measurements.measure_engines(points, reference)
        with self._clock.step("overheads"):
            overheads = self._measurements.measure_overheads(folder)
        with self._clock.step("simulate"):
            engines = self._measurements.engines
            out = ruled_out(points, engines, self._question.goal, self._measurements.memory)
            knowledge = Knowledge(engines, overheads, devices=self._devices())
            ranking = self._simulate([point for point in points if point not in out], knowledge)
        trials = self._trials(folder, knowledge, reference.inputs)
        with self._clock.step("confirm"):
            tried, behind = self._confirm(trials, ranking, most_confirmed(len(points)), {})
        outcome = SearchOutcome(out, ranking, tried, behind)
        with self._clock.step("rerun"):
            outcome = self._rerun(trials, outcome)
        return self._result(points, trials, outcome)

    def _simulate(self, points: Sequence[Choice], knowledge: Knowledge) -> Ranking:
        def on_number(number: int) -> None:
            self._on_progress("simulate", number / max(1, len(points)), f"{number} of {len(points)}")

        return rank(
            points, knowledge, self._question.goal, on_number=on_number, is_over=lambda: self._clock.past(_SIMULATED_BY)
        )

    def _trials(self, folder: Path, knowledge: Knowledge, inputs: tuple[RequestBody, ...]) -> Trials:
        question = self._question
        environment = TuneEnvironment(folder, question.spec.name, question.spec.version, question.table, inputs)
        return Trials(
            environment,
            question.goal,
            knowledge,
            self._notebook,
            left_s=lambda: self._clock.left_s - (1.0 - _CONFIRMED_BY) * question.budget_s,
            on_load=lambda text: self._on_progress("confirm", self._confirmed_share, text),
        )

    @property
    def _confirmed_share(self) -> float:
        return min(1.0, max(0.0, 1.0 - self._clock.left_s / (self._question.budget_s * (1.0 - _SIMULATED_BY))))

    def _confirm(
        self, trials: Trials, ranking: Ranking, most: int, before: Mapping[Choice, Confirmation]
    ) -> tuple[dict[Choice, Confirmation], dict[Choice, str]]:
        """Confirms the best candidates under real load; also returns those that fell behind by corrected predictions."""
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
            if best and not trials.is_expected_to_beat(choice, best):
                behind[choice] = f"corrected by what real load showed, it is not expected to reach more than {best:.4g}/s"
                continue
            tried[choice] = trials.confirm(choice)
            best = max(best, *(one.figures.offered_rps for one in tried.values() if one.figures), 0.0)
        return tried, {**{twin: why for twin, why in alike.items() if twin not in tried}, **behind}

    def _rerun(self, trials: Trials, outcome: SearchOutcome) -> SearchOutcome:
        """Runs the winner a second time. If that run misses the goal, the next best is the winner, while there is time."""
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
            again = Rerun(None, None, f"its stack failed: {fault.message[:200]}")
        first = outcome.tried[choice]
        if again.why:
            self._notes.append(f"{choice.label}, run a second time: {again.why}")
        if again.figures is None:
            return replace(
                outcome, tried={**outcome.tried, choice: replace(first, figures=None, why=f"run twice: {again.why}")}
            )
        kept = replace(again.instead, stages_ms=first.stages_ms) if again.instead else first
        return replace(outcome, rerun=again.figures, tried={**outcome.tried, choice: kept}, champion=choice)

    def _result(self, points: Sequence[Choice], trials: Trials, outcome: SearchOutcome) -> TuneResult:
        question = self._question
        judged = configurations(points, outcome, trials.knowledge, question.goal)
        return TuneResult(
            model=question.spec.name,
            version=question.spec.version,
            goal=question.goal,
            space={name: list(values) for name, values in self._measurements.space.items()},
            configurations=judged,
            measured=tuple(self._measurements.engines.values()),
            overheads=trials.knowledge.overheads,
            capacity=self._capacity(trials, judged),
            machine=dict(describe_machine()),
            spent=SearchTime(
                total_s=round(question.budget_s - self._clock.left_s, 3),
                budget_s=question.budget_s,
                steps_s=self._clock.steps_s,
                confirmed=len(outcome.tried),
                configurations=len(points),
            ),
            notes=(*self._measurements.notes, *self._notes),
            sample="made from the model's schema" if not question.inputs else f"{len(question.inputs)} given",
        )

    def _capacity(self, trials: Trials, judged: Sequence[Configuration]) -> RateCapacity | None:
        return capacity_of(judged, trials.knowledge, self._question.goal, observed=trials.observed)

    def _devices(self) -> int:
        return self._question.spec.slots if self._question.spec.device != "cpu" else 1


def search(question: TuneQuestion, on_progress: OnProgress) -> TuneResult:
    return Search(question, on_progress).run()

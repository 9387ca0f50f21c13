"""The search for a pipeline's settings: measure its models, simulate whole configurations, confirm the best, run one again."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from penstock.errors import PenstockError
from penstock.extensions.pipelines.tune.candidates import (
    PipelineKnowledge,
    PipelineRanking,
    corrected,
    figures_of_chain,
    own_best,
    pipeline_preference,
    rank_pipelines,
    shares,
    together,
)
from penstock.extensions.pipelines.tune.result import PipelineChoice, PipelineConfiguration, PipelineQuestion, PipelineResult
from penstock.extensions.pipelines.tune.stages import StageMeasurements, notes_of
from penstock.loadtest.observed.machine import describe_machine
from penstock.tune.question import OnProgress, SearchClock
from penstock.tune.result import Choice, ConfigurationVerdict, Figures, SearchTime
from penstock.tune.simulation.predict import keeps_goal
from penstock.tune.trial_stack import NO_LIMIT, TrialResult, TrialStack, started_stack, trial_table

# The shares of the budget after which a step begins nothing new.
_SIMULATED_BY, _CONFIRMED_BY = 0.5, 0.85
_MOST_CONFIRMED, _TRIES = 3, 4
_HIGHER, _LOWER = 1.05, 0.8
# A tail needs this many calls; a slow pipeline gets this long for them.
_CALLS, _MOST_S = 400, 30.0
# Fewer calls show no tail. A load takes the time for these calls, however small the budget, but at most this long.
_FEWEST_CALLS, _FEWEST_S = 50, 90.0
_FILLS_S = 8.0


class PipelineSearch:
    """Answers one question. The best first: most requests per second within the goal."""

    def __init__(self, question: PipelineQuestion, on_progress: OnProgress) -> None:
        self._question = question
        self._on_progress = on_progress
        self._clock = SearchClock(question.budget_s, time.monotonic())
        self._stages = StageMeasurements(question, on_progress)
        self._stacks = 0
        self._notes: list[str] = []
        self._tried: dict[tuple[Choice, ...], tuple[PipelineChoice, Figures | None, str]] = {}

    def run(self) -> PipelineResult:
        """Raises `BadRequest` for inputs that a stage refuses, `HandlerLoadError` for a model that does not load."""
        parent = self._question.folder or Path.cwd()
        self._folder = Path(tempfile.mkdtemp(prefix=".penstock-tune-", dir=parent))
        try:
            return self._answer()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _answer(self) -> PipelineResult:
        with self._clock.step("measure"):
            self._stages.run()
        with self._clock.step("overheads"):
            first = next(iter(self._stages.models.values())).measurements
            overheads = first.measure_overheads(self._folder)
        self._knowledge = PipelineKnowledge(
            self._question.spec,
            {name: model.measurements.engines for name, model in self._stages.models.items()},
            overheads,
            cores=first.machine.cores,
            devices=max(1, first.machine.gpus),
        )
        with self._clock.step("simulate"):
            candidates = self._candidates()
            ranking = self._rank(candidates)
        declared = PipelineChoice({name: model.declared for name, model in self._stages.models.items()})
        with self._clock.step("confirm"):
            self._confirm_best(ranking)
        with self._clock.step("rerun"):
            winner, rerun = self._rerun()
        with self._clock.step("declared"):
            self._confirm_declared(declared)
        return self._result(candidates, ranking, winner, rerun, declared)

    def _candidates(self) -> list[PipelineChoice]:
        models = self._stages.models
        if not all(model.fit for model in models.values()):
            return []
        goal, engines = self._question.goal, self._knowledge.engines
        part = shares(engines)
        best = {
            name: own_best(model.fit, engines[name], self._knowledge.overheads, goal.limit_s * part[name])
            for name, model in models.items()
        }
        return together(best, self._knowledge)

    def _rank(self, candidates: list[PipelineChoice]) -> PipelineRanking:
        def is_over(seen: int) -> bool:
            self._on_progress("simulate", seen / len(candidates), f"{seen} of {len(candidates)}")
            return self._clock.past(_SIMULATED_BY)

        if not candidates:
            return PipelineRanking()
        return rank_pipelines(candidates, self._knowledge, self._question.goal, is_over=is_over)

    def _confirm_best(self, ranking: PipelineRanking) -> None:
        """Real load on the best few. One that corrected predictions put clearly behind the best is left out."""
        best = 0.0
        for choice in ranking.order:
            enough = bool(best and self._question.goal.min_rate)
            if enough or len(self._tried) >= _MOST_CONFIRMED or (self._tried and self._clock.past(_CONFIRMED_BY)):
                break
            expected = figures_of_chain(self._knowledge.chain(choice), self._question.goal)
            if expected is None or (best and expected.offered_rps <= best * 1.02):
                continue
            best = max(best, self._confirm(choice, expected.offered_rps))

    def _confirm(self, choice: PipelineChoice, rate: float) -> float:
        """A few loads on one stack; returns the highest rate that kept the goal, or 0."""
        try:
            with self._stack(choice) as stack:
                figures, why = self._tries(stack, choice, rate)
        except PenstockError as fault:
            figures, why = None, f"its stack failed: {fault.message[:300]}"
        self._tried[choice.key] = (choice, figures, why)
        return figures.offered_rps if figures else 0.0

    def _tries(self, stack: TrialStack, choice: PipelineChoice, rate: float) -> tuple[Figures | None, str]:
        best: Figures | None = None
        why = ""
        for number in range(_TRIES):
            result = self._offer(stack, choice, rate, seed=number + 1)
            kept = self._kept(result, rate)
            self._knowledge = corrected(self._knowledge, choice, self._question.goal, _at(result, rate))
            expected = figures_of_chain(self._knowledge.chain(choice), self._question.goal)
            if kept is not None:
                best = kept
                if expected is None or expected.offered_rps <= rate * _HIGHER or self._question.goal.min_rate:
                    break
                rate = expected.offered_rps
            else:
                why = self._missed(result, rate)
                if self._question.goal.min_rate is not None:
                    break
                lower = min(expected.offered_rps if expected else rate, rate * _LOWER)
                if best is not None and lower <= best.offered_rps * _HIGHER:
                    break
                rate = lower
            if best is not None and self._clock.past(_CONFIRMED_BY):
                break
        return best, "" if best else why

    def _rerun(self) -> tuple[PipelineChoice | None, Figures | None]:
        """The winner, on a new stack with other arrivals; a rate that does not repeat is lowered, at most twice."""
        while kept := [(choice, figures) for choice, figures, _ in self._tried.values() if figures is not None]:
            choice, figures = min(kept, key=lambda pair: pipeline_preference(pair[0], pair[1], self._question.goal))
            try:
                with self._stack(choice) as stack:
                    lowered, again = self._again(stack, choice, figures)
            except PenstockError as fault:
                lowered, again = figures, None
                self._notes.append(f"run a second time, its stack failed: {fault.message[:200]}")
            if again is not None:
                self._tried[choice.key] = (choice, lowered, "")
                return choice, again
            self._tried[choice.key] = (choice, None, "it did not keep the goal a second time")
        return None, None

    def _again(self, stack: TrialStack, choice: PipelineChoice, figures: Figures) -> tuple[Figures, Figures | None]:
        first = self._offer(stack, choice, figures.offered_rps, seed=101)
        if (again := self._kept(first, figures.offered_rps)) is not None:
            return figures, again
        self._notes.append(f"{choice.label}, run a second time: {self._missed(first, figures.offered_rps)}")
        rate = figures.offered_rps
        for seed in (102, 104) if self._question.goal.min_rate is None else ():
            rate *= _LOWER
            twice = [self._kept(self._offer(stack, choice, rate, seed=seed + more), rate) for more in (0, 1)]
            if twice[0] is not None and twice[1] is not None:
                return twice[0], twice[1]
        return figures, None

    def _confirm_declared(self, declared: PipelineChoice) -> None:
        """What the settings of today give under the same goal, for the comparison."""
        expected = figures_of_chain(self._knowledge.chain(declared), self._question.goal)
        if declared.key in self._tried or expected is None:
            return
        if self._clock.left_s < 2 * _needed_s(expected.offered_rps):
            self._notes.append("there was no time for load on the settings of today: a larger --budget compares with them")
        else:
            self._confirm(declared, expected.offered_rps)

    @contextmanager
    def _stack(self, choice: PipelineChoice) -> Iterator[TrialStack]:
        self._stacks += 1
        question = self._question
        models = {
            name: trial_table(choice.choices[name], each.table, each.spec.version) for name, each in question.models.items()
        }
        pinning = next(iter(choice.choices.values())).engine.pinning
        pipelines = {question.name: {**question.table, "max_queue_depth": NO_LIMIT}}
        folder = self._folder / f"stack-{self._stacks}"
        with started_stack(folder, models, pinning=pinning, pipelines=pipelines) as (url, processes):
            yield TrialStack(question.name, url, processes, question.inputs)

    def _offer(self, stack: TrialStack, choice: PipelineChoice, rate: float, *, seed: int) -> TrialResult:
        wanted = min(_MOST_S, max(_FILLS_S, _CALLS / rate))
        seconds = max(_needed_s(rate), min(wanted, self._clock.left_s / 3))
        self._on_progress("confirm", 0.0, f"{choice.label}: {rate:.4g}/s for {seconds:.0f} s")
        return stack.offer(rate, self._question.goal, seconds=seconds, warm_up_s=min(2.0, seconds / 3), seed=seed)

    def _kept(self, result: TrialResult, rate: float) -> Figures | None:
        kept = result.figures is not None and keeps_goal(result.figures, self._question.goal)
        return _at(result, rate) if kept else None

    def _missed(self, result: TrialResult, rate: float) -> str:
        if result.figures is None:
            return f"at {rate:.4g}/s {result.why}"
        return f"at {rate:.4g}/s its p{self._question.goal.percentile:g} was {result.figures.tail_ms:.3g} ms under real load"

    def _result(
        self,
        candidates: list[PipelineChoice],
        ranking: PipelineRanking,
        winner: PipelineChoice | None,
        rerun: Figures | None,
        declared: PipelineChoice,
    ) -> PipelineResult:
        question, models = self._question, self._stages.models
        if ranking.unseen:
            self._notes.append(f"{ranking.unseen} configurations with a lower ceiling were not simulated")
        every = {choice.key: choice for choice in [*ranking.order, *(choice for choice, _, _ in self._tried.values())]}
        configurations = [self._configuration(choice, ranking, winner, rerun, declared) for choice in every.values()]
        order = list(ConfigurationVerdict).index
        return PipelineResult(
            pipeline=question.name,
            goal=question.goal,
            stages={stage.name: stage.model for stage in question.spec.stages},
            space={
                name: {dimension: list(values) for dimension, values in model.measurements.space.items()}
                for name, model in models.items()
            },
            measured={name: tuple(model.measurements.engines.values()) for name, model in models.items()},
            configurations=tuple(sorted(configurations, key=lambda one: (order(one.verdict), -_reached(one)))),
            overheads=self._knowledge.overheads,
            machine=dict(describe_machine()),
            spent=SearchTime(
                total_s=round(question.budget_s - self._clock.left_s, 3),
                budget_s=question.budget_s,
                steps_s=self._clock.steps_s,
                confirmed=len(self._tried),
                configurations=len(candidates),
            ),
            notes=(*notes_of(iter(models.values())), *self._notes),
            sample=f"{len(question.inputs)} given",
        )

    def _configuration(
        self,
        choice: PipelineChoice,
        ranking: PipelineRanking,
        winner: PipelineChoice | None,
        rerun: Figures | None,
        declared: PipelineChoice,
    ) -> PipelineConfiguration:
        _, confirmed, why = self._tried.get(choice.key, (choice, None, ""))
        is_winner = winner is not None and choice.key == winner.key
        if is_winner:
            verdict, said = ConfigurationVerdict.WINNER, "the highest rate of all under real load"
        elif confirmed is not None:
            verdict, said = ConfigurationVerdict.CONFIRMED, f"confirmed at {confirmed.offered_rps:.4g}/s"
        else:
            verdict, said = ConfigurationVerdict.LOST, why or "simulated; not expected to beat the winner"
        return PipelineConfiguration(
            choice,
            verdict,
            said,
            predicted=ranking.predicted.get(choice.key),
            confirmed=confirmed,
            rerun=rerun if is_winner else None,
            is_declared=choice.key == declared.key,
        )


def _needed_s(rate: float) -> float:
    return min(_FEWEST_S, _FEWEST_CALLS / rate)


def _at(result: TrialResult, rate: float) -> Figures | None:
    """The figures, with the intended rate in place of the one that chance produced."""
    return replace(result.figures, offered_rps=rate) if result.figures is not None else None


def _reached(one: PipelineConfiguration) -> float:
    figures = one.confirmed or one.predicted
    return figures.offered_rps if figures else 0.0


def search_pipeline(question: PipelineQuestion, on_progress: OnProgress) -> PipelineResult:
    return PipelineSearch(question, on_progress).run()

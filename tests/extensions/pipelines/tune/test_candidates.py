"""Which configurations of a pipeline are simulated, in which order, and what real load corrects."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.extensions.pipelines.tune import candidates
from penstock.extensions.pipelines.tune.candidates import (
    PipelineKnowledge,
    corrected,
    own_best,
    rank_pipelines,
    shares,
    together,
)
from penstock.extensions.pipelines.tune.result import PipelineChoice
from penstock.tune.result import Choice, EngineSettings, Goal, Measured, Overheads
from tests.extensions.pipelines.tune.made import ROW, times

ONE = EngineSettings(threads=1)
BF16 = replace(ONE, precision="bf16")
GOAL = Goal(limit_s=0.2)
ENGINES = {
    "first": {(ONE, 1): Measured(ONE, 1, times(0.010)), (BF16, 1): Measured(BF16, 1, times(0.005))},
    "second": {(ONE, 1): Measured(ONE, 1, times(0.020))},
}
KNOWLEDGE = PipelineKnowledge(ROW, ENGINES, Overheads(), cores=2)


@pytest.fixture(autouse=True)
def _few_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    # The order of predictions is under test, and not how exact they are.
    monkeypatch.setattr(candidates, "_JOBS", 100)
    monkeypatch.setattr(candidates, "_TRIALS", 3)


def choices(engine: EngineSettings, *sizes: int) -> list[Choice]:
    return [Choice(engine, size, 0.0) for size in sizes]


def pipelines() -> list[PipelineChoice]:
    return together({"first": [*choices(ONE, 1), *choices(BF16, 1)], "second": choices(ONE, 1, 2)}, KNOWLEDGE)


def test_the_bound_is_shared_by_what_an_item_takes_and_nobody_gets_nothing() -> None:
    assert shares(ENGINES) == {"first": pytest.approx(1 / 3), "second": pytest.approx(2 / 3)}
    tiny = {**ENGINES, "second": {(ONE, 1): Measured(ONE, 1, times(1e-6))}}
    assert shares(tiny)["second"] == pytest.approx(0.05)


def test_each_engine_keeps_the_batch_sizes_that_leave_time_to_wait() -> None:
    kept = own_best([*choices(ONE, 1, 2, 4, 8), *choices(BF16, 1, 2, 4, 8)], ENGINES["first"], Overheads(), 0.060)
    assert {(one.engine.precision, one.batch_size) for one in kept} <= {
        ("fp32", 1),
        ("fp32", 2),
        ("bf16", 1),
        ("bf16", 2),
        ("bf16", 4),
    }
    assert {one.engine for one in kept} == {ONE, BF16}
    assert len(kept) == 4


def test_the_best_configuration_has_the_faster_engine_of_each_model() -> None:
    ranking = rank_pipelines(pipelines(), KNOWLEDGE, GOAL, is_over=lambda seen: False)
    assert ranking.order[0].choices["first"].engine == BF16
    rates = [ranking.predicted[choice.key].offered_rps for choice in ranking.order]
    assert rates == sorted(rates, reverse=True)


def test_when_the_time_is_over_the_rest_is_not_simulated_but_at_least_one_is() -> None:
    ranking = rank_pipelines(pipelines(), KNOWLEDGE, GOAL, is_over=lambda seen: True)
    assert len(ranking.order) == 1
    assert ranking.unseen == len(pipelines()) - 1


def test_a_rate_that_is_enough_is_carried_by_the_fewest_cores() -> None:
    wide = Choice(replace(ONE, threads=2), 1, 0.0)
    engines = {**ENGINES, "first": {**ENGINES["first"], (wide.engine, 1): Measured(wide.engine, 1, times(0.004))}}
    knowledge = replace(KNOWLEDGE, engines=engines)
    found = together({"first": [wide, *choices(ONE, 1)], "second": choices(ONE, 1)}, knowledge)
    enough = replace(GOAL, min_rate=2.0)
    ranking = rank_pipelines(found, knowledge, enough, is_over=lambda seen: False)
    assert [choice.cores for choice in ranking.order] == [2, 3]


def test_a_load_with_a_longer_median_stretches_the_times_and_one_that_only_grew_does_too() -> None:
    choice = pipelines()[0]
    rate = 5.0
    shown = KNOWLEDGE.chain(choice).simulated(GOAL, rate, jobs=200)
    slower = corrected(KNOWLEDGE, choice, GOAL, replace(shown, p50_ms=shown.p50_ms * 1.5))
    assert slower.stretch == pytest.approx(1.5, rel=0.1)
    assert corrected(KNOWLEDGE, choice, GOAL, shown).stretch == pytest.approx(1.0, abs=0.1)
    assert corrected(KNOWLEDGE, choice, GOAL, None).stretch > 1.0


def test_a_configuration_beyond_the_space_is_predicted_by_the_declared_engine() -> None:
    beyond = PipelineChoice({"first": Choice(EngineSettings(threads=None), 1), "second": choices(ONE, 1)[0]})
    assert KNOWLEDGE.chain(beyond).ceiling_rps() > 0.0

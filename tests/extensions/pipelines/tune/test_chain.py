"""Predictions for pipelines whose latency and limits are known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.tune.result import Goal
from penstock.tune.simulation.predict import goal_holds, highest_rate
from tests.extensions.pipelines.tune.made import FORK, ROW, chain, stage

GOAL = Goal(limit_s=0.1)


def test_a_lone_request_takes_all_stages_one_after_the_other_and_the_way_between_them() -> None:
    found = chain(ROW, 0.010, 0.020, hop_s=0.002, request_s=0.003).simulated(GOAL, 0.5, jobs=100)
    assert found.p50_ms == pytest.approx(10 + 20 + 2 * 2 + 3, rel=0.01)


def test_stages_beside_each_other_cost_the_slower_one() -> None:
    found = chain(FORK, 0.010, 0.030, 0.005).simulated(GOAL, 0.5, jobs=100)
    assert found.p50_ms == pytest.approx(30 + 5, rel=0.01)


def test_the_ceiling_is_the_slowest_stage_or_the_cores_that_all_share() -> None:
    assert chain(ROW, 0.010, 0.020).ceiling_rps() == pytest.approx(50.0)
    assert chain(ROW, 0.010, 0.020, cores=1.0).ceiling_rps() == pytest.approx(1 / 0.030)


def test_models_on_different_devices_do_not_share() -> None:
    apart = chain(ROW, 0.010, 0.020, cores=1.0)
    apart = replace(apart, stages={**apart.stages, "a": stage(0.010, cores=1.0, place="cuda")})
    assert apart.ceiling_rps() == pytest.approx(50.0)


def test_models_that_share_cores_slow_each_other_down_and_those_with_cores_of_their_own_do_not() -> None:
    rate = 20.0
    own, shared = (chain(ROW, 0.010, 0.010, cores=cores).simulated(GOAL, rate, jobs=400) for cores in (2.0, 1.0))
    assert shared.p50_ms > 1.2 * own.p50_ms


def test_the_rate_of_a_pipeline_is_what_its_slowest_stage_carries_within_the_bound() -> None:
    whole = chain(ROW, 0.004, 0.010)
    rate = highest_rate(whole, GOAL, jobs=150)
    assert 60.0 < rate < 100.0
    assert not goal_holds(whole, replace(GOAL, limit_s=0.012), rate, jobs=400)


def test_a_pipeline_that_cannot_follow_answers_late_or_never() -> None:
    found = chain(ROW, 0.010, 0.020).simulated(GOAL, 80.0, jobs=400)
    assert found.tail_ms == pytest.approx(400.0)
    assert found.throughput_rps < 0.9 * found.offered_rps

"""Predictions for queues with known answers."""

from __future__ import annotations

from itertools import islice

import pytest

from benchmarks.experiments.known_queue import KnownDevice, latencies
from penstock.loadtest.generator.arrivals import poisson
from penstock.loadtest.generator.summary import percentile
from penstock.model_spec import BatchPolicy
from penstock.tune.result import BatchTime, Goal, Overheads
from penstock.tune.simulation.predict import (
    MARGIN,
    LearnedTimes,
    StackModel,
    best_figures,
    goal_holds,
    highest_rate,
    simulate_rate,
    slots_needed,
)

_GOAL = Goal(limit_s=0.1)


def stack(
    *, batch: int = 1, slots: int = 1, base_s: float = 0.010, item_s: float = 0.0, overheads: Overheads | None = None
) -> StackModel:
    times = tuple(BatchTime(size, base_s + item_s * size) for size in (1, 2, 4, 8, 16, 32))
    return StackModel(times, BatchPolicy(batch, 0.0), slots, overheads or Overheads())


def test_one_device_and_batches_of_one_are_the_queue_that_theory_knows() -> None:
    """M/D/1 at 60 % load against an exact recursion over other arrivals."""
    exact = sorted(latencies(KnownDevice(fixed_s=0.010), list(islice(poisson(60.0, 7), 30_000))))
    found = simulate_rate(stack(), _GOAL, 60.0, jobs=6_000)
    assert found.p50_ms == pytest.approx(percentile(exact, 50.0) * 1e3, rel=0.05)
    assert found.p99_ms == pytest.approx(percentile(exact, 99.0) * 1e3, rel=0.12)
    assert found.mean_batch == 1.0


def test_what_a_request_spends_outside_is_added_to_every_latency() -> None:
    bare = simulate_rate(stack(), _GOAL, 30.0, jobs=500)
    slower = simulate_rate(stack(overheads=Overheads(request_s=0.002)), _GOAL, 30.0, jobs=500)
    assert slower.p50_ms - bare.p50_ms == pytest.approx(2.0)
    assert slower.p99_ms - bare.p99_ms == pytest.approx(2.0)


def test_a_lone_request_takes_all_three_stages() -> None:
    stages = (BatchTime(1, 0.010, preprocess_s=0.004, postprocess_s=0.003),)
    found = simulate_rate(StackModel(stages, BatchPolicy(1, 0.0)), _GOAL, 0.5, jobs=60)
    assert found.p50_ms == pytest.approx(17.0, abs=0.1)


def test_stages_overlap_so_that_the_slowest_bounds_the_rate() -> None:
    stages = (BatchTime(1, 0.010, preprocess_s=0.005, postprocess_s=0.004),)
    found = simulate_rate(StackModel(stages, BatchPolicy(1, 0.0)), Goal(limit_s=0.5), 80.0, jobs=800)
    assert found.throughput_rps == pytest.approx(found.offered_rps, rel=0.02)


def test_a_child_never_has_more_than_two_batches_however_long_their_other_stages_are() -> None:
    long = StackModel((BatchTime(1, 0.010, preprocess_s=0.010, postprocess_s=0.010),), BatchPolicy(1, 0.0))
    assert long.ceiling_rps() == pytest.approx(2 / 0.030)
    assert simulate_rate(long, Goal(limit_s=0.1), 90.0, jobs=800).throughput_rps < 75.0


def test_the_highest_rate_lies_below_the_ceiling_by_the_margin() -> None:
    found = highest_rate(stack(batch=16, base_s=0.005, item_s=0.0005), _GOAL, jobs=1_000)
    ceiling = 16 / 0.013
    assert 0.8 * ceiling / MARGIN < found <= ceiling / MARGIN


def test_a_goal_that_one_item_breaks_is_kept_at_no_rate() -> None:
    assert best_figures(stack(base_s=0.2), _GOAL, jobs=100) is None


def test_a_rate_beyond_the_ceiling_does_not_hold() -> None:
    assert not goal_holds(stack(), _GOAL, 101.0, jobs=400)


def test_what_the_path_carries_bounds_every_configuration() -> None:
    bounded = stack(batch=32, base_s=0.001, overheads=Overheads(per_item_s=0.001, per_batch_s=0.0032))
    assert bounded.ceiling_rps() == pytest.approx(0.8 / (0.001 + 0.0001))


def test_slots_are_counted_from_the_rate_up() -> None:
    assert slots_needed(stack(), _GOAL, 60.0, most=10, jobs=400) == 1
    assert slots_needed(stack(), _GOAL, 270.0, most=10, jobs=400) in (3, 4)
    assert slots_needed(stack(), _GOAL, 2_000.0, most=10, jobs=400) is None


def test_times_between_and_above_what_was_measured_lie_on_a_line() -> None:
    learned = LearnedTimes([BatchTime(1, 0.010, 0.001), BatchTime(4, 0.016, 0.004)], stretch=2.0)
    assert learned.expected_s(2) == pytest.approx(0.024)
    assert learned.expected_s(8) == pytest.approx(0.048)
    assert learned.alone_s(4) == pytest.approx(0.040)


def test_equal_seeds_give_equal_predictions() -> None:
    assert simulate_rate(stack(), _GOAL, 50.0, jobs=300) == simulate_rate(stack(), _GOAL, 50.0, jobs=300)

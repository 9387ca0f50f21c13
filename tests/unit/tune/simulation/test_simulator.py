"""Requirements of the batching policy: four slots, 5 ms + 0.5 ms per item, batches of at most 64, deadlines of 50 ms."""

from __future__ import annotations

import pytest

from penstock.model_spec import BatchPolicy
from penstock.tune.simulation.scenario import Scenario, SimulatedDevice
from penstock.tune.simulation.simulator import simulate


@pytest.mark.parametrize("seed", [1, 2])
def test_overload_still_answers_85_percent_of_the_peak_on_time(seed: int) -> None:
    assert simulate(Scenario(1.20, seconds=2.0, seed=seed)).goodput >= 0.85


@pytest.mark.parametrize("seed", [1, 2])
def test_90_percent_of_the_peak_is_answered_99_percent_on_time(seed: int) -> None:
    assert simulate(Scenario(0.90, seconds=4.0, seed=seed)).on_time >= 0.99


def test_light_load_is_batched_for_the_sake_of_the_device() -> None:
    outcome = simulate(Scenario(0.30, seconds=2.5))
    assert outcome.device_ms_per_item <= 0.85
    assert outcome.on_time >= 0.99


def test_a_nearly_idle_pool_does_not_wait_for_company() -> None:
    outcome = simulate(Scenario(0.03, seconds=4.0))
    assert outcome.p50_ms <= 10.0
    assert set(outcome.reasons) <= {"idle", "full", "wait"}


def test_a_lone_worker_keeps_up_with_most_of_its_peak() -> None:
    outcome = simulate(Scenario(0.80, slots=1, deadline_s=0.100, seconds=2.5))
    assert outcome.on_time >= 0.99


def test_no_batching_saturates_below_a_tenth_of_the_batched_peak() -> None:
    """A check of the simulator: with batches of one, four slots give 4 / 5.5 ms, a tenth of the rate with batches of 64."""
    scenario = Scenario(0.5, policy=BatchPolicy(max_batch_size=1), seconds=1.5)
    assert scenario.peak_rps == pytest.approx(4 / 0.0055)
    assert simulate(scenario).mean_batch == 1.0


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = simulate(Scenario(0.2, seconds=1.5)), simulate(Scenario(0.2, seconds=1.5))
    assert first == second


class CrowdedDevice(SimulatedDevice):
    """4 ms, and 3 ms per item; from the fifth on, items suffer from each other: in full batches each costs twice as much."""

    def expected_s(self, size: int) -> float:
        return 0.004 + 0.003 * size * (1.0 + 0.06 * max(0, size - 4))


def test_a_prediction_knows_that_workers_find_small_calls_where_these_are_cheapest() -> None:
    # The peak is that of full batches; only with small calls can a worker do more.
    policy = BatchPolicy(max_batch_size=32)
    found = simulate(Scenario(2.0, device=CrowdedDevice(), policy=policy, slots=1, deadline_s=2.0, seconds=20.0))
    assert found.on_time >= 0.99
    assert found.device_ms_per_item <= 4.5


class InterruptedDevice(SimulatedDevice):
    """1 ms per item in a call of any size, but other processes take time from calls of four items and more."""

    def expected_s(self, size: int) -> float:
        return 0.001 * size * (1.0 if size < 4 else 1.2)


def test_a_model_that_gains_nothing_from_large_calls_is_not_run_item_by_item_under_load() -> None:
    policy = BatchPolicy(max_batch_size=32)
    found = simulate(Scenario(1.2, device=InterruptedDevice(), policy=policy, slots=1, deadline_s=1.0, seconds=6.0))
    assert found.mean_batch > 24

from __future__ import annotations

import pytest

from penstock.workers.slot.latency import Latency


def learned(*runs: tuple[int, float], times: int = 1) -> Latency:
    latency = Latency()
    for size, seconds in runs:
        for _ in range(times):
            latency.observe(size, seconds)
    return latency


def test_nothing_is_expected_before_the_first_run() -> None:
    latency = Latency()
    assert (latency.expect(4), latency.bound(4), latency.largest, latency.efficient(8)) == (None, None, 0, 1)


def test_a_measured_size_is_expected_to_take_its_median() -> None:
    assert learned((8, 0.010), (8, 0.012), (8, 0.500)).expect(8) == 0.012


def test_sizes_between_two_measured_ones_lie_on_the_line_between_them() -> None:
    latency = learned((4, 0.010), (8, 0.020), (16, 0.040))
    assert latency.expect(6) is not None
    assert abs(latency.expect(6) - 0.015) < 1e-9  # type: ignore[operator]


def test_sizes_beyond_the_measured_ones_follow_the_fitted_line() -> None:
    latency = learned((1, 0.0055), (2, 0.006), (4, 0.007))
    assert abs((latency.expect(64) or 0) - 0.037) < 1e-6


def test_the_bound_lies_above_nearly_all_runs() -> None:
    runs = [0.010 + (n % 20) * 0.0005 for n in range(200)]
    latency = learned(*[(8, run) for run in runs])
    assert sum(run <= (latency.bound(8) or 0) for run in runs) >= 0.9 * len(runs)


def test_a_costly_job_where_cheap_ones_ran_does_not_make_every_size_look_slow() -> None:
    """Regression: after three jobs of 0.2 ms the first of 50 ms counted as 250 times as slow as expected. For the next twelve
    batches no waiting job seemed to have time enough: all of them went behind those that came later, and were late.
    """
    latency = Latency()
    for size, seconds in ((1, 0.05), (2, 0.1), (4, 0.2), *[(1, 0.000_2)] * 3, (1, 0.05)):
        latency.observe(size, seconds)
    for _ in range(12):
        latency.observe(4, 0.2)
        assert 0.2 <= (latency.bound(4) or 0.0) <= 0.3 + 1e-9


def test_a_bound_reaches_as_far_as_a_stall_that_was_seen() -> None:
    latency = Latency()
    for seconds in [0.1] * 10 + [0.5]:
        latency.observe(8, seconds)
    assert latency.bound(8) == pytest.approx(0.5)


def test_a_lasting_change_is_followed_at_once_and_a_spike_is_not() -> None:
    latency = learned((8, 0.010), times=32)
    latency.observe(8, 0.200)
    assert latency.expect(8) == 0.010
    for _ in range(5):
        latency.observe(8, 0.050)
    assert latency.expect(8) == 0.050


def test_the_efficient_size_is_the_smallest_near_the_best_throughput() -> None:
    # With 5 ms + 0.5 ms per item, size 64 reaches 1.73 items/ms and size 32 reaches 1.52.
    latency = learned(*[(size, 0.005 + 0.0005 * size) for size in (1, 2, 4, 8, 16, 32, 64)])
    assert latency.efficient(64) == 32


def test_one_item_is_efficient_where_batching_gains_nothing() -> None:
    assert learned(*[(size, 0.010 * size) for size in (1, 2, 4, 8)]).efficient(8) == 1


def test_what_an_earlier_process_learned_is_expected_from_the_first_batch_on() -> None:
    before = learned((1, 0.006), (32, 0.021), times=20)
    after = Latency()
    after.remember(before.trusted())
    assert (after.expect(1), after.expect(32), after.largest) == (0.006, 0.021, 32)
    assert after.efficient(32) == before.efficient(32)


def test_only_what_ran_often_is_remembered() -> None:
    assert learned((1, 0.006), (8, 0.010), times=3).trusted() == {}


def test_sizes_that_ran_here_are_not_replaced_by_what_is_remembered() -> None:
    latency = learned((8, 0.010))
    latency.remember({8: 0.5, 16: 0.020})
    assert latency.table() == {8: 0.010, 16: 0.020}


def test_what_is_remembered_is_dropped_once_runs_disagree_with_it() -> None:
    latency = Latency()
    latency.remember({1: 0.010, 8: 0.020, 32: 0.060})
    for _ in range(6):
        latency.observe(8, 0.100)
    assert latency.table() == {8: 0.100}


def test_one_slow_run_after_a_restart_drops_nothing() -> None:
    latency = Latency()
    latency.remember({1: 0.010, 8: 0.020})
    latency.observe(8, 0.100)
    assert latency.table() == {1: 0.010, 8: 0.020}

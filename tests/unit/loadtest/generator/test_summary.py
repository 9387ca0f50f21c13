from __future__ import annotations

import math

from penstock.loadtest.generator.summary import LOST, Samples, percentile, summarize


def _samples(*pairs: tuple[float, int]) -> Samples:
    samples = Samples()
    for latency_s, status in pairs:
        samples.add(latency_s, status, at=0.0)
    return samples


def test_percentile_is_the_nearest_rank() -> None:
    ordered = [float(value) for value in range(1, 101)]
    assert percentile(ordered, 50.0) == 50.0
    assert percentile(ordered, 99.0) == 99.0
    assert percentile(ordered, 99.9) == 100.0


def test_percentile_of_one_value_is_that_value_and_of_none_is_nan() -> None:
    assert percentile([7.0], 1.0) == 7.0
    assert math.isnan(percentile([], 50.0))


def test_errors_have_no_part_in_rates_and_latencies() -> None:
    summary = summarize(_samples((0.010, 200), (0.020, 202), (9.0, 503), (9.0, LOST)), 2.0)
    assert summary.count == 2
    assert summary.rps == 1.0
    assert summary.max_ms == 20.0
    assert summary.errors == {"lost": 1, "503": 1}


def test_goodput_counts_only_what_came_within_the_deadline() -> None:
    summary = summarize(_samples((0.010, 200), (0.200, 200), (0.201, 200), (0.010, 504)), 1.0, deadline_s=0.2)
    assert summary.rps == 3.0
    assert summary.goodput_rps == 2.0


def test_a_run_without_success_has_no_latencies() -> None:
    summary = summarize(_samples((0.010, 500)), 1.0)
    assert summary.count == 0
    assert math.isnan(summary.p99_ms)
    assert math.isnan(summary.max_ms)

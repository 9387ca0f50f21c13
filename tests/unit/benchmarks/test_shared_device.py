from __future__ import annotations

from penstock.benchmarks.shared_device import Latencies


def test_the_ratio_is_of_the_99th_percentiles() -> None:
    found = Latencies([0.010] * 98 + [0.020] * 2, [0.010] * 90 + [0.030] * 10, flood_jobs=7).figures()
    assert (found["lone_p99_ms"], found["flooded_p99_ms"], found["ratio"]) == (20.0, 30.0, 1.5)
    assert (found["lone_p50_ms"], found["lone_answers"], found["flood_jobs"]) == (10.0, 100, 7)

from __future__ import annotations

from benchmarks.models.shared_device import FloodTurn, figures, verdict


def _block(ratio: float, *, foreign_share: float = 0.0) -> FloodTurn:
    return FloodTurn([0.010] * 100, [0.010 * ratio] * 100, 7, foreign_share)


def test_the_ratio_is_of_the_99th_percentiles() -> None:
    found = figures([FloodTurn([0.010] * 98 + [0.020] * 2, [0.010] * 90 + [0.030] * 10, flood_jobs=7)])
    assert (found["lone_p99_ms"], found["flooded_p99_ms"], found["ratio"]) == (20.0, 30.0, 1.5)
    assert (found["lone_p50_ms"], found["lone_answers"], found["flood_jobs"]) == (10.0, 100, 7)


def test_one_bad_block_does_not_miss_the_target_and_a_bad_median_does() -> None:
    good = figures([_block(1.5), _block(9.0), _block(1.9)])
    assert (good["block_ratios"], good["median_ratio"], good["met"]) == ([1.5, 9.0, 1.9], 1.9, True)
    assert good["flood_jobs"] == 21
    bad = figures([_block(1.5), _block(2.1), _block(2.2)])
    assert (bad["median_ratio"], bad["met"]) == (2.1, False)
    assert verdict(bad) == "MISSED: median of the blocks' ratios of p99 at most 2"


def test_a_block_beside_other_programs_makes_the_figures_doubtful() -> None:
    found = figures([_block(1.0), _block(1.0, foreign_share=0.2)])
    assert (found["foreign_cpu_share"], found["doubtful"]) == (0.2, True)
    assert verdict(found).startswith("met, doubtful: other processes used the machine")
    assert not figures([_block(1.0)])["doubtful"]

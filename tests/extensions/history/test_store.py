"""The steps of a model's history: how they add up, and how far percentiles may be off."""

from __future__ import annotations

import math
from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from penstock.extensions.history.store import (
    BOUNDS_S,
    COVERED,
    ITEMS,
    KEPT,
    LAST_BUCKET,
    LENGTHS_S,
    LONGEST_S,
    OLDEST,
    SHORTEST_S,
    WAITING,
    HistoryStep,
    all_queues,
    coarser,
    in_steps,
    level_for,
    merged,
    percentile_error,
    percentile_s,
    together,
)

SECONDS = st.floats(0.0012, 20_000.0)
BUCKETS = st.dictionaries(st.integers(0, LAST_BUCKET), st.integers(1, 1000), max_size=20)
STEPS = st.builds(
    HistoryStep,
    st.integers(0, 400).map(lambda number: 10 * number),
    st.dictionaries(st.integers(1, 17), st.integers(0, 1000), max_size=5),
    st.dictionaries(st.integers(1, 6), st.integers(0, 1000), max_size=5),
    BUCKETS,
    BUCKETS,
    st.just(0),
)


def bucket_of(seconds: float) -> int:
    return bisect_left(BOUNDS_S, seconds)


def histogram(durations_s: list[float]) -> dict[int, int]:
    found: dict[int, int] = {}
    for seconds in durations_s:
        found[bucket_of(seconds)] = found.get(bucket_of(seconds), 0) + 1
    return found


@given(st.lists(SECONDS, min_size=1, max_size=60), st.sampled_from([0.5, 0.95, 0.99]), st.integers(0, 3))
def test_a_percentile_is_off_by_no_more_than_is_said(durations_s: list[float], share: float, grain: int) -> None:
    true = sorted(durations_s)[math.ceil(share * len(durations_s)) - 1]
    found = percentile_s(coarser(histogram(durations_s), grain), grain, share)
    assert found is not None
    error = percentile_error(grain) + 1e-9
    assert true / (1 + error) <= found <= true * (1 + error)


def test_without_times_there_is_no_percentile() -> None:
    assert percentile_s({}, 0, 0.5) is None


def test_the_finest_percentile_is_off_by_9_percent_at_most() -> None:
    assert round(percentile_error(0), 2) == 0.09


@given(st.floats(0.0, 10**9))
def test_every_duration_has_a_bucket(seconds: float) -> None:
    assert 0 <= bucket_of(seconds) <= LAST_BUCKET


@given(st.lists(STEPS, max_size=30), st.sampled_from(LENGTHS_S))
def test_longer_steps_hold_what_the_short_ones_did(steps: list[HistoryStep], length_s: int) -> None:
    found = in_steps(steps, length_s)
    for number in range(1, 18):
        assert sum(step.sums.get(number, 0) for step in found.values()) == sum(step.sums.get(number, 0) for step in steps)
    assert sum(sum(step.totals.values()) for step in found.values()) == sum(sum(step.totals.values()) for step in steps)
    assert all(at % length_s == 0 for at in found)


@given(STEPS, STEPS, STEPS)
def test_steps_merge_in_any_order(one: HistoryStep, two: HistoryStep, three: HistoryStep) -> None:
    left, right = merged(merged(one, two), three), merged(one, merged(two, three))
    assert (left.sums, left.tops, left.totals, left.waits) == (right.sums, right.tops, right.totals, right.waits)


def test_a_coarse_step_makes_what_it_is_merged_with_coarse() -> None:
    fine, coarse = HistoryStep(0, {}, {}, {8: 1, 9: 1, 10: 1}), HistoryStep(0, {}, {}, {8: 4}, {}, 1)
    found = merged(fine, coarse)
    assert (found.totals, found.grain) == ({8: 6, 10: 1}, 1)


def test_queues_side_by_side_have_together_what_waits_in_each_and_the_oldest_of_all() -> None:
    one = HistoryStep(0, {COVERED: 5000, ITEMS: 1}, {WAITING: 3, OLDEST: 700})
    other = HistoryStep(0, {COVERED: 4000, ITEMS: 2}, {WAITING: 4, OLDEST: 200})
    found = together(one, other)
    assert (found.tops[WAITING], found.tops[OLDEST], found.sums) == (7, 700, {COVERED: 5000, ITEMS: 3})
    assert all_queues([{0: one}, {0: other, 10: one}]).keys() == {0, 10}


def test_every_range_has_steps_that_reach_back_so_far() -> None:
    assert [level_for(range_s) for range_s in (SHORTEST_S, 3600, 6 * 3600, 86_400, LONGEST_S)] == [0, 0, 1, 2, 3]
    assert LENGTHS_S[-1] * KEPT[-1] == LONGEST_S

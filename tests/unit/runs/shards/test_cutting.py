from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.runs.shards.cutting import cut
from penstock.runs.shards.sizing import FixedSize, ShardSize, batch_rows

row = st.text(max_size=40) | st.integers() | st.none() | st.dictionaries(st.text(max_size=3), st.text(max_size=9), max_size=2)


@given(st.lists(row), st.integers(1, 9), st.data())
def test_every_row_that_needs_to_run_is_in_one_cut(inputs: list[Any], most: int, data: st.DataObject) -> None:
    without = frozenset(data.draw(st.sets(st.integers(0, max(0, len(inputs) - 1)), max_size=4)))
    cuts = cut(inputs, most, without=without)
    assert sorted(place for places, _ in cuts for place in places) == sorted(set(range(len(inputs))) - without)
    assert all(1 <= len(places) <= most for places, _ in cuts)
    assert sum(weight for _, weight in cuts) == pytest.approx(sum(len(places) for places, _ in cuts))


def test_rows_of_like_length_travel_together_fewer_of_the_long_ones_long_and_short_shards_in_turn() -> None:
    inputs = ["x" * 10, "x" * 90] * 8
    cuts = cut(inputs, 4)
    lengths = [{len(inputs[place]) for place in places} for places, _ in cuts]
    assert lengths[:2] == [{90}, {10}]
    assert len(cuts[0].places) < 4
    assert max(len(places) for places, _ in cuts) == 4
    assert all(weight <= 4 for _, weight in cuts)


def test_rows_of_one_length_stay_in_order() -> None:
    assert [places for places, _ in cut([b"a", b"b", b"c"], 2)] == [range(2), range(2, 3)]


def test_a_row_dearer_than_a_whole_shard_travels_alone() -> None:
    inputs = ["x" * 1_000, *["x"] * 9]
    assert len(cut(inputs, 2)[0].places) == 1


def test_rows_are_read_some_shards_at_a_time_within_a_third_of_the_window() -> None:
    assert batch_rows(ShardSize(100, 1_400, seen=True), 10_000) == 800
    assert batch_rows(ShardSize(1_400, 1_400, seen=True), 10_000) == 3_333
    assert batch_rows(FixedSize(9_000, 10_000, seen=True), 10_000) == 9_000


def test_until_a_shard_has_ended_one_is_read_at_a_time() -> None:
    """The rows of a batch are written together. Regression: runs of a slow model wrote nothing for minutes."""
    first = ShardSize(64, 1_400)
    assert batch_rows(first, 10_000) == 64
    assert batch_rows(first.after(64, 0.7), 10_000) == 8 * 64

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.handlers.calls import group_by_cost, parallel_by_cost, shrinking_calls

LENGTHS = st.lists(st.integers(1, 300), max_size=40)


@given(LENGTHS, st.integers(1, 9), st.integers(1, 600))
def test_texts_run_with_texts_of_like_length_within_both_bounds(lengths: list[int], rows: int, tokens: int) -> None:
    calls = group_by_cost(lengths, most_items=rows, most_cost=tokens)
    _all_within_bounds(calls, lengths, rows=rows, tokens=tokens)
    in_order = [lengths[place] for call in calls for place in call]
    assert in_order == sorted(in_order)


@given(LENGTHS, st.integers(1, 9), st.integers(1, 600), st.integers(2, 8))
def test_parallel_calls_keep_the_bounds_and_end_together(lengths: list[int], rows: int, tokens: int, threads: int) -> None:
    calls = parallel_by_cost(lengths, most_items=rows, most_cost=tokens, threads=threads)
    if not calls:
        return
    _all_within_bounds(calls, lengths, rows=rows, tokens=tokens)
    in_order = [lengths[place] for call in calls for place in call]
    assert in_order == sorted(in_order, reverse=True)
    ends = [0] * threads
    for call in calls:
        first = ends.index(min(ends))
        ends[first] += len(call) * lengths[call[0]]
    assert max(ends) * threads <= 1.15 * sum(ends)


def test_a_full_batch_is_cut_into_calls_that_shrink_towards_the_end() -> None:
    calls = parallel_by_cost([50] * 32, most_items=16, most_cost=256, threads=2)
    sizes = [len(call) for call in calls]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 5
    assert sizes[-1] == 1


def test_what_cannot_be_cut_evenly_is_left_to_all_threads_together() -> None:
    bounds = {"most_items": 16, "most_cost": 256, "threads": 2}
    assert parallel_by_cost([], **bounds) == []
    assert parallel_by_cost([200], **bounds) == []
    assert parallel_by_cost([200, 10, 10], **bounds) == []
    assert parallel_by_cost([10, 10], **bounds) == []
    assert parallel_by_cost([100, 100], **bounds) == [[0], [1]]


@given(st.integers(1, 40), st.integers(2, 8))
def test_calls_of_equal_items_shrink_and_end_together(items: int, threads: int) -> None:
    calls = shrinking_calls(items, threads=threads)
    sizes = [len(call) for call in calls]
    assert sizes == sorted(sizes, reverse=True)
    assert [place for call in calls for place in call] == (list(range(items)) if calls else [])


def test_eight_images_are_five_calls_for_two_threads_and_three_are_one_for_both() -> None:
    assert [len(call) for call in shrinking_calls(8, threads=2)] == [3, 2, 1, 1, 1]
    assert [len(call) for call in shrinking_calls(2, threads=2)] == [1, 1]
    assert shrinking_calls(3, threads=2) == shrinking_calls(1, threads=2) == []


def _all_within_bounds(calls: list[list[int]], lengths: list[int], *, rows: int, tokens: int) -> None:
    assert sorted(place for call in calls for place in call) == list(range(len(lengths)))
    for call in calls:
        assert len(call) <= rows
        assert len(call) == 1 or len(call) * max(lengths[place] for place in call) <= tokens

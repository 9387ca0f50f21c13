"""Each row leaves the window once and in row order, in whatever order shards end."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.runs.rows import RowBatch, RowError
from penstock.runs.shards.sizing import FixedSize, ShardSize, first_size, most_rows, open_shards
from penstock.runs.shards.window import FinishedBatch, ShardPiece, Window
from penstock.shard import NOT_RUN, RowFailure, ShardOutcome

OOPS = RowError("poison", "died")


def batch(first: int, rows: int, *, bad: set[int] = frozenset(), known: set[int] = frozenset()) -> RowBatch:  # type: ignore[assignment]
    numbers = range(first, first + rows)
    return RowBatch(
        first,
        [None if row in bad | known else row for row in numbers],
        {"row": list(numbers)},
        {"row": first + rows},
        {row - first: RowError("unread", "x") for row in bad if row in numbers},
        {row - first: ("known", row) for row in known if row in numbers},
    )


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_each_row_leaves_once_in_order_with_its_own_verdict(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 9), max_size=6))
    rows = sum(sizes)
    some = st.sets(st.integers(0, max(0, rows - 1)), max_size=4)
    bad, deadly, failing = data.draw(some), data.draw(some), data.draw(some)
    known = data.draw(some) - bad
    window = Window()
    pieces: list[ShardPiece] = []
    left: list[FinishedBatch] = []
    first = 0
    for size in sizes:
        pieces += window.add(batch(first, size, bad=bad, known=known), data.draw(st.integers(1, 9)))
        first += size
    while pieces:
        piece = pieces.pop(data.draw(st.integers(0, len(pieces) - 1)))
        pieces += verdict(window, piece, deadly, failing)
        left += window.finished()
    left += window.finished()
    assert window.rows == 0
    written: dict[int, Any] = {}
    for finished in left:
        results = finished.results
        assert results.first == len(written)
        for place, output in enumerate(results.outputs):
            written[results.first + place] = results.failed[place].code if place in results.failed else output
    assert list(written) == list(range(rows))
    assert written == {row: hoped(row, bad, known, deadly, failing) for row in range(rows)}


def test_rows_that_were_not_run_come_back_without_the_loss_of_a_try() -> None:
    window = Window(most_tries=2)
    [piece] = window.add(batch(0, 4), 4)
    for left in (3, 2, 1):
        unrun = [RowFailure(place, NOT_RUN, "", retryable=True) for place in range(1, left + 1)]
        [again] = window.settle(piece, ShardOutcome([4 - left, *[None] * left], unrun))
        assert (len(again), again.tries, again.weight) == (left, 1, piece.weight * left / (left + 1))
        piece = again
    assert window.settle(piece, ShardOutcome([4])) == []
    [finished] = window.finished()
    assert (finished.results.outputs, finished.results.failed) == ([1, 2, 3, 4], {})


def test_rows_that_were_not_run_and_rows_to_try_again_come_back_apart() -> None:
    window = Window()
    [piece] = window.add(batch(0, 3), 3)
    failures = [RowFailure(1, "busy", "", retryable=True), RowFailure(2, NOT_RUN, "", retryable=True)]
    pieces = window.settle(piece, ShardOutcome([0, None, None], failures))
    assert [(list(one.places), one.tries) for one in pieces] == [([2], 1), ([1], 2)]


def verdict(window: Window, piece: ShardPiece, deadly: set[int], failing: set[int]) -> list[ShardPiece]:
    rows = window.inputs(piece)
    if deadly & set(rows):
        return window.fail(piece, OOPS)
    failures = [RowFailure(place, "busy", "x", retryable=True) for place, row in enumerate(rows) if row in failing]
    return window.settle(piece, ShardOutcome([None if row in failing else ("ran", row) for row in rows], failures))


def hoped(row: int, bad: set[int], known: set[int], deadly: set[int], failing: set[int]) -> Any:
    if row in bad:
        return "unread"
    if row in known:
        return ("known", row)
    return "poison" if row in deadly else "busy" if row in failing else ("ran", row)


def test_rows_under_way_are_counted_until_they_leave() -> None:
    window = Window()
    [first] = window.add(batch(0, 5), 5)
    [second] = window.add(batch(5, 3), 5)
    window.settle(second, ShardOutcome([0] * 3))
    assert (list(window.finished()), window.rows) == ([], 8)
    window.settle(first, ShardOutcome([0] * 5))
    assert [finished.after["row"] for finished in window.finished()] == [5, 8]
    assert window.rows == 0


def test_a_piece_is_halved_down_to_the_row_at_fault() -> None:
    window = Window()
    pieces, seen = window.add(batch(0, 8), 8), []
    while pieces:
        piece = pieces.pop()
        seen.append(len(piece))
        pieces += verdict(window, piece, {5}, set())
    assert seen.count(8) == 1
    assert len(seen) == 1 + 2 * 3
    [finished] = window.finished()
    assert finished.results.failed == {5: OOPS}


@given(st.lists(st.floats(0.0001, 10.0), max_size=40), st.integers(1, 20_000), st.integers(1, 9))
def test_shards_grow_and_shrink_by_at_most_two_and_stay_within_the_window(
    costs: list[float], window_rows: int, slots: int
) -> None:
    size = first_size(0, window_rows=window_rows, slots=slots)
    for cost in costs:
        after = size.after(float(size.rows), cost)
        assert 1 <= after.rows <= most_rows(window_rows, slots)
        assert size.rows // 2 <= after.rows <= size.rows * 2
        size = after
    assert size.rows * open_shards(slots) <= max(window_rows, open_shards(slots))


def test_a_shard_grows_to_the_time_it_should_take_and_the_end_of_a_file_teaches_nothing() -> None:
    size: Any = ShardSize(64, 5_000)
    for _ in range(12):
        size = size.after(size.rows, size.rows * 0.001)
    assert 600 <= size.rows <= 800
    assert size.after(3, 2.0) == size
    assert size.capped(100) == ShardSize(100, 100)


def test_a_size_that_was_asked_for_is_kept() -> None:
    size = first_size(500, window_rows=10_000, slots=2)
    assert size == FixedSize(500, 10_000)
    assert size.after(500, 60.0) == size

"""Which steps a caller gets for `range_s`, `from` and `to`."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.errors import BadRequest
from penstock.extensions.history.gateway.window import HistoryRange, HistoryWindow, asked_range, level_of, window_of
from penstock.extensions.history.store import KEPT, LENGTHS_S, LONGEST_S, SHORTEST_S

NOW = 1_795_475_785.25
MOMENTS = st.floats(NOW - LONGEST_S, NOW).map(lambda at: round(at, 3))


def window(asked: HistoryRange, now: float = NOW) -> HistoryWindow:
    return window_of(asked, LENGTHS_S[level_of(asked, now)], now)


@given(st.integers(SHORTEST_S, LONGEST_S), st.floats(NOW, NOW + 2_000))
def test_a_range_that_ends_now_has_as_many_steps_at_any_time(range_s: int, now: float) -> None:
    found = window(HistoryRange(range_s), now)
    assert len(found.at) == -(-range_s // found.length_s)
    assert found.at[-1] < now <= found.at[-1] + found.length_s


@given(MOMENTS, MOMENTS)
def test_from_and_to_lie_in_the_first_and_the_last_step(since: float, until: float) -> None:
    assume(since < until)
    found = window(HistoryRange(since=since, until=until))
    assert found.at[0] <= since < found.at[0] + found.length_s
    assert found.at[-1] < until <= found.at[-1] + found.length_s


@given(MOMENTS)
def test_steps_reach_back_to_from_and_are_not_longer_than_they_must(since: float) -> None:
    assume(since < NOW)
    found = window(HistoryRange(since=since))
    level = LENGTHS_S.index(found.length_s)
    assert len(found.at) <= KEPT[level] + 1
    assert all(NOW - since > length * kept for length, kept in zip(LENGTHS_S[:level], KEPT, strict=False))


def test_a_range_may_end_before_now() -> None:
    found = window(HistoryRange(600, until=NOW - 7_200))
    assert (found.length_s, len(found.at)) == (60, 10)
    assert found.at[-1] <= NOW - 7_200 <= found.at[-1] + 60


def test_what_comes_after_now_is_left_out() -> None:
    assert window(HistoryRange(until=NOW + 86_400)) == window(HistoryRange())


def test_a_clock_that_is_a_little_behind_may_ask_for_all_that_is_kept() -> None:
    assert level_of(HistoryRange(since=NOW - LONGEST_S - 30), NOW) == len(LENGTHS_S) - 1


@pytest.mark.parametrize(
    ("asked", "detail"),
    [
        (HistoryRange(since=NOW - 10, until=NOW - 20), "does not lie before to"),
        (HistoryRange(since=NOW - 10, until=NOW - 10), "does not lie before to"),
        (HistoryRange(since=NOW + 3_600), "in the future: by the store's clock it is 2026-11-23T"),
        (HistoryRange(since=NOW - LONGEST_S - 3_600), "kept for 7 days, from 2026-11-16T"),
        (HistoryRange(3_600, until=NOW - LONGEST_S), "kept for 7 days"),
        (HistoryRange(since=-62_135_683_140.0), "kept for 7 days"),
    ],
)
def test_steps_that_are_not_kept_are_refused(asked: HistoryRange, detail: str) -> None:
    with pytest.raises(BadRequest, match=detail):
        level_of(asked, NOW)


def test_two_begins_are_refused() -> None:
    with pytest.raises(BadRequest, match="range_s and from"):
        asked_range(300, "1795475785")


@pytest.mark.parametrize(("name", "values"), [("from", (None, "yesterday")), ("to", (None, None, "2026-11-23T10:00:00"))])
def test_a_moment_that_cannot_be_read_is_named(name: str, values: tuple[str | None, ...]) -> None:
    with pytest.raises(BadRequest, match=f"{name} must be a moment"):
        asked_range(None, *values[1:])

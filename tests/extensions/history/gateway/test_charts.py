"""The lines of the history's charts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import words
from penstock.extensions.history.gateway.charts import charts_of, line, nice, path
from penstock.extensions.history.gateway.view import history_of, view
from penstock.extensions.history.gateway.window import HistoryRange, window_of
from penstock.extensions.history.store import ACCEPTED, COVERED, HistoryStep

STEP = HistoryStep(1_000, {COVERED: 10_000, ACCEPTED: 20}, {}, {40: 1})


def test_a_line_goes_from_edge_to_edge_and_has_gaps() -> None:
    assert path([0, 10, None, 5, None, 10, 10], 10) == "M0.0,100.0h0L50.0,4.0M150.0,52.0h0M250.0,4.0h0L300.0,4.0"


def test_without_values_there_is_no_line() -> None:
    drawn = line("accepted", "a", [None, None], words.per_second, top=1.0)
    assert (drawn.path, drawn.now, drawn.highest) == ("", "–", "–")


@pytest.mark.parametrize(("highest", "edge"), [(0, 1), (0.3, 0.5), (1, 1), (1.1, 2), (42, 50), (501, 1000)])
def test_the_upper_edge_is_a_round_number(highest: float, edge: float) -> None:
    assert nice(highest) == pytest.approx(edge)


@given(st.floats(1e-6, 1e12))
def test_no_value_is_above_the_upper_edge(highest: float) -> None:
    assert highest <= nice(highest) * (1 + 1e-9)
    assert nice(highest) <= highest * 10


@pytest.mark.parametrize(("model", "charts"), [("m", 10), ("", 9)])
def test_every_figure_has_its_chart(model: str, charts: int) -> None:
    history = history_of({1_000: STEP}, model=model, window=window_of(HistoryRange(300), 10, 1_009.0))
    drawn = charts_of(history, view(history), 300)
    assert len(drawn.charts) == charts
    assert drawn.since == ("5 min ago", "2 min 30 s ago", "now")
    [accepted, *_] = drawn.charts[0].lines
    assert (accepted.now, accepted.highest, drawn.charts[0].top) == ("2/s", "2/s", "2/s")
    assert {one.title for one in drawn.charts if one.is_empty} >= {"Queue time", "Batch size"}

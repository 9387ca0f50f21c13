from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from penstock.client import display
from penstock.client.runs import RunView
from penstock.client.views import JobView, ProgressView


def test_in_a_log_no_bar_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with display.progress_bar("m", shown=True) as on_step:
        on_step(1, 2, "")
    assert capsys.readouterr() == ("", "")


def test_a_bar_knows_how_many_there_are_before_they_are_read_if_anybody_does() -> None:
    assert display.total_of([1, 2]) == 2
    assert display.total_of(iter([1, 2])) is None


def test_a_job_in_a_notebook_is_a_table_whose_texts_are_no_html() -> None:
    table = display.job_table(JobView("01k-m", "running", progress=ProgressView(0.5, "<b>half</b>")))
    assert "<th>status</th><td>running</td>" in table
    assert "50% &lt;b&gt;half&lt;/b&gt;" in table


def test_a_run_in_a_notebook_says_how_far_it_is_also_while_its_rows_are_not_counted() -> None:
    assert "<td>3 of 10</td>" in display.run_table(RunView("r", "running", rows=10, done=2, failed=1))
    assert "<td>3 of ?</td>" in display.run_table(RunView("r", "running", done=3))
    # Regression: a run that had ended said "3 of ?".
    assert "<td>3 of 3</td>" in display.run_table(RunView("r", "completed", done=2, failed=1))


class Cell(ModuleType):
    """The output of a notebook's cell, by the display protocol of IPython: what `display` showed, and each update of it."""

    def __init__(self) -> None:
        super().__init__("IPython.display")
        self.outputs: list[str] = []

    def display(self, shown: Any, *, display_id: bool) -> Cell:
        assert display_id
        self.update(shown)
        return self

    def update(self, shown: Any) -> None:
        self.outputs.append(shown._repr_html_())


def test_in_a_notebook_a_bar_is_html_that_is_replaced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Regression: rich draws nothing in a notebook without ipywidgets, and says that they are missing.
    cell = Cell()
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    monkeypatch.setitem(sys.modules, "IPython.display", cell)
    with display.progress_bar("<square>", shown=True) as on_step:
        for done in range(1, 4):
            on_step(done, 3, "a < b")
    assert cell.outputs[0] == "<progress></progress> &lt;square&gt; 0/?"
    assert cell.outputs[-1] == '<progress value="3" max="3"></progress> &lt;square&gt; 3/3 a &lt; b'
    assert len(cell.outputs) < 4  # not each step is worth a message to the browser
    assert capsys.readouterr() == ("", "")


def test_the_steps_of_a_run_move_its_bar_and_reach_the_caller() -> None:
    steps: list[tuple[float, float | None, str]] = []
    seen: list[RunView] = []
    view = RunView("r", "running", rows=10, done=2, failed=1)
    display.run_steps(lambda *step: steps.append(step), seen.append)(view)
    assert steps == [(3, 10, "1 failed")]
    assert seen == [view]


def test_a_jobs_bar_goes_where_its_handler_says_and_ends_full() -> None:
    steps: list[tuple[float, float | None, str]] = []
    for view in (JobView("j", "running", progress=ProgressView(0.25, "page 1")), JobView("j", "succeeded")):
        display.job_step(view, lambda *step: steps.append(step))
    assert steps == [(25, 100, "page 1"), (100, 100, "succeeded")]

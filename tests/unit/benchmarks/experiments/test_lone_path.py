"""The report on a lone request: every stamp has its function, steps are cut right, and the page shows the saved figures."""

from __future__ import annotations

import functools
import importlib
import json
from pathlib import Path

import pytest

from benchmarks.experiments.lone_path.__main__ import PAGE, RESULTS
from benchmarks.experiments.lone_path.report import is_sound, put_into, report
from benchmarks.experiments.lone_path.stamping import CALL, Mark
from benchmarks.experiments.lone_path.steps import HOP, MARKS, STEPS, STORE, Asked, PathStep, rows, way

FIRST, SECOND = ("a:first", CALL), ("a:second", CALL)
THREE = (PathStep(HOP, "there", FIRST), PathStep(HOP, "through", SECOND, nth=2), PathStep(HOP, "back", None))
FUNCTIONS = {"submit": 50.0, "finish": 30.0, "claim": 10.0}


@pytest.mark.parametrize("mark", MARKS)
def test_every_function_that_is_stamped_exists(mark: Mark) -> None:
    module, _, qualified = mark[0].partition(":")
    assert callable(functools.reduce(getattr, qualified.split("."), importlib.import_module(module)))


def test_a_step_lasts_from_stamp_to_stamp_whatever_was_stamped_before_and_after() -> None:
    stamps = {FIRST: [5, 110, 210], SECOND: [105, 120, 130, 220]}
    assert way(Asked(100, 150, 0), stamps, THREE) == [10, 20, 20]


def test_a_request_that_went_another_way_is_left_out() -> None:
    assert way(Asked(100, 150, 0), {FIRST: [110], SECOND: [120]}, THREE) is None
    assert way(Asked(100, 150, 0), {FIRST: [110], SECOND: [120, 160]}, THREE) is None


def even(asked: Asked, step_us: int) -> dict[Mark, list[int]]:
    """Return stamps that make every step of the request last as long."""
    stamps: dict[Mark, list[int]] = {mark: [] for mark in MARKS}
    for place, step in enumerate(STEPS, 1):
        if step.ends is not None:
            stamps[step.ends] += [asked.sent + place * step_us * 1_000] * step.nth
    return stamps


def test_a_step_through_the_store_is_split_into_its_functions_its_log_and_the_rest() -> None:
    asked = Asked(0, len(STEPS) * 500_000, 400)
    taken = way(asked, even(asked, 500))
    assert taken is not None
    found = rows([taken], [asked], FUNCTIONS)
    assert [row.us for row in found if row.where == STORE] == [50.0, 200.0, 30.0, 10.0, 200.0]
    assert sum(row.us for row in found) == len(STEPS) * 500.0


def test_the_report_says_whether_the_steps_add_up() -> None:
    asked = Asked(0, len(STEPS) * 500_000, 400)
    found = {name: [asked] for name in ("stamped", "plain", "empty", "write")}
    told = report(found, functions=FUNCTIONS, stamps=even(asked, 500))
    assert (told["requests"], told["followed"], told["sum_us"]) == (1, 1, told["p50_us"]["stamped"])
    assert is_sound(told)
    assert not is_sound({**told, "sum_us": 0.8 * told["sum_us"]})


def test_the_page_shows_the_saved_figures(tmp_path: Path) -> None:
    page = tmp_path / "lone_path.md"
    page.write_text(PAGE.read_text())
    put_into(page, json.loads(RESULTS.read_text()))
    assert page.read_text() == PAGE.read_text(), "run `python -m benchmarks.experiments.lone_path --docs`"

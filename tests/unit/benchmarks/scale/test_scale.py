"""The runner of the drills beyond one machine: which there are, and what it keeps of those that did not run."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.scale.__main__ import write_results
from benchmarks.scale.autoscale import PICTURE
from benchmarks.scale.autoscale_picture import draw
from benchmarks.scale.drill import DRILLS, DrillResult, DrillSetting, load_drill
from benchmarks.scale.page import PAGE, figures_table, read_results


def test_each_drill_can_be_loaded() -> None:
    for name in DRILLS:
        assert callable(load_drill(name))


def test_what_another_drill_measured_before_stays(tmp_path: Path) -> None:
    out = tmp_path / "scale.json"
    write_results({"stores": DrillResult({"two_store_ratio": 1.91})}, out)
    write_results({"hosts": DrillResult({"host_loss": 0}, {"killed": 3})}, out)
    kept = json.loads(out.read_text())
    assert kept["stores"]["figures"] == {"two_store_ratio": 1.91}
    assert kept["hosts"]["detail"] == {"killed": 3}


def test_a_quick_drill_makes_a_tenth_of_the_rounds_and_at_least_one(tmp_path: Path) -> None:
    quick = DrillSetting(tmp_path, quick=True, say=print)
    assert (quick.rounds(30), quick.rounds(5)) == (3, 1)


def test_the_page_and_the_picture_say_what_was_committed() -> None:
    results = read_results()
    assert set(results) == set(DRILLS)
    assert figures_table(results) in PAGE.read_text()
    assert PICTURE.read_text() == draw(results["autoscale"]["detail"]["burst"])


def test_a_figure_that_misses_what_is_asked_for_says_so() -> None:
    figures = {"failover_lost": 2.0, "failover_recover_s": 0.1234}
    detail = {"replicated": {"ends": {"succeeded": 1_500, "lost": 2}}}
    table = figures_table({"failover": {"figures": figures, "detail": detail}})
    assert "| 2 of 1,502 | <= 0, **missed** |" in table
    assert "| 0.123 | <= 5 |" in table

"""The soak measures what it says: slopes against made-up series, and a few seconds of the real thing."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from random import Random
from subprocess import run
from typing import Any

import pytest

from tests.faults.soak import picture, report
from tests.faults.soak.__main__ import COLLECTING, PAGE, PICTURE, RESULTS, SoakPlan, soak
from tests.faults.soak.slopes import Point, slope_of


def series(*, per_hour: float, level: float = 100.0, noise: float = 0.5, begin: int = 0, seed: int = 1) -> list[Point]:
    """Return twenty minutes of samples, one every 5 s."""
    random = Random(seed)
    return [(5.0 * n, level + per_hour * n * 5.0 / 3600 + random.gauss(0.0, noise)) for n in range(begin, 240)]


@pytest.mark.parametrize("seed", range(5))
def test_a_quantity_that_grows_is_found_in_its_noise(seed: int) -> None:
    found = slope_of([series(per_hour=12.0, seed=seed)])
    assert found is not None
    assert not found.flat
    assert abs(found.per_hour - 12.0) < 2 * found.noise


def test_a_quantity_that_swings_around_one_level_is_flat() -> None:
    swinging = [(5.0 * n, 100.0 + n % 7) for n in range(240)]
    found = slope_of([swinging])
    assert found is not None
    assert (found.flat, round(found.level)) == (True, 103)


def test_a_process_that_takes_over_at_another_level_is_no_growth() -> None:
    before, after = series(per_hour=0.0)[:120], series(per_hour=0.0, level=180.0)[120:]
    both = slope_of([before, after])
    assert both is not None
    assert both.flat
    as_one = slope_of([before + after])
    assert as_one is not None
    assert not as_one.flat


def test_growth_below_the_smallest_change_that_means_something_is_flat() -> None:
    straight = series(per_hour=1.5, noise=0.0)
    found, coarse = slope_of([straight]), slope_of([straight], step=1.0)
    assert found is not None
    assert coarse is not None
    assert (found.flat, coarse.flat) == (False, True)


def test_one_small_step_in_the_life_of_a_process_is_no_growth() -> None:
    # A gateway that lived for half of the time took 0.6 MiB once. The line through that step, drawn over the whole time, rose
    # by more than the 1 MiB that means something.
    first = [(5.0 * n, 58.0) for n in range(100)]
    last = [(5.0 * n, 59.0 if n < 185 else 59.6) for n in range(132, 240)]
    once, growing = slope_of([first, last], step=1.0), slope_of([first, series(per_hour=12.0, noise=0.0)[132:]], step=1.0)
    assert once is not None
    assert growing is not None
    assert (once.flat, growing.flat) == (True, False)


def test_too_few_samples_have_no_slope() -> None:
    assert slope_of([[(0.0, 1.0), (5.0, 2.0)]]) is None
    assert slope_of([]) is None


def test_the_warm_up_of_the_soak_and_of_each_process_is_left_out() -> None:
    points = [(float(at), 0.0) for at in range(0, 100, 10)]
    assert [at for at, _ in report.settled(points, 40.0)] == [40, 50, 60, 70, 80, 90]
    assert [at for at, _ in report.settled(points[5:], 40.0)] == [70, 80, 90]


def test_the_verdict_names_what_grows() -> None:
    rows: list[dict[str, Any]] = [
        {"quantity": "keys in the store", "role": "store", "flat": False},
        {"quantity": "x", "role": "y", "flat": None},
    ]
    assert report.verdict(rows, []) == "grows: keys in the store (store)"
    assert report.verdict(rows[1:], []).startswith("flat:")
    assert report.verdict(rows[1:], ["a wrong answer"]) == "flat, but 1 answers were wrong or unexpected"


def test_the_page_and_its_picture_show_the_saved_report_or_say_that_there_is_none(tmp_path: Path) -> None:
    page = tmp_path / "soak.md"
    page.write_text(PAGE.read_text())
    if not RESULTS.exists():
        assert report.NOT_YET in page.read_text()
        return
    told = json.loads(RESULTS.read_text())
    report.put_into(page, told)
    assert page.read_text() == PAGE.read_text(), "run `python -m tests.faults.soak --docs`"
    assert picture.draw(told) == PICTURE.read_text()


@pytest.mark.usefixtures("has_server")
def test_a_few_seconds_of_it_measure_everything_and_lose_nothing(tmp_path: Path) -> None:
    # One kill, of the child, and one run: the second of each would only start more processes.
    plan = SoakPlan(
        lasts_s=4.0, per_s=50.0, kill_every_s=2.0, run_pause_s=60.0, sample_every_s=0.2, warm_s=0.5, workers=1, kept_s=1.0
    )
    told = soak(plan, tmp_path / "work", tmp_path / "soak.json")
    assert told["complaints"] == []
    assert told["answers"]["right"] > 0
    assert told["kills"] == {"child": 1}
    measured = {(row["quantity"], row["role"]) for row in told["rows"]}
    assert measured >= {
        ("memory used by the store per kept job", "store"),
        ("resident memory beyond the peak of use", "store"),
        ("keys in the store per kept job", "store"),
        ("files in the state folder", "store"),
        ("resident memory", "worker's child"),
        ("anonymous memory", "gateway"),
        ("open descriptors", "worker"),
    }
    drawn = ElementTree.fromstring(picture.draw(told))
    assert len(drawn.findall("{http://www.w3.org/2000/svg}rect")) == len(told["rows"])


GARBAGE = """
import gc, time, weakref

class Ring: pass

gc.disable()
ring = Ring()
ring.itself, seen = ring, weakref.ref(ring)
del ring
while seen(): time.sleep(0.01)
"""


def test_processes_of_the_soak_collect_what_they_would_only_collect_much_later() -> None:
    # Regression: a soak of twenty minutes found growth that was CPython's store of freed tuples filling up.
    assert run([sys.executable, "-c", GARBAGE], env={"PYTHONPATH": str(COLLECTING)}, timeout=60, check=True).returncode == 0

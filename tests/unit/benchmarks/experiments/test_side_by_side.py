"""The report on source trees that are measured in turns."""

from __future__ import annotations

from pathlib import Path

from benchmarks.experiments.side_by_side import TreeSide
from benchmarks.main_path.http_figures import NOOP_BODY
from penstock.loadtest.stack import Processes

COST = {"gateway": 1.0, "redis": 2.0, "worker": 3.0, "child": 4.0, "total": 10.0}


def side(name: str, rates: list[float], folder: Path) -> TreeSide:
    return TreeSide(name, "", Processes(folder, {}), NOOP_BODY, rates, [1.0] * len(rates), [COST] * len(rates))


def test_the_ratio_is_of_turns_beside_each_other_so_that_a_machine_that_slows_down_does_not_show(tmp_path: Path) -> None:
    # The machine slows down to half its speed, and the second tree is a fifth faster in every turn.
    before, after = side("a", [1_000, 900, 500], tmp_path), side("b", [1_200, 1_080, 600], tmp_path)
    assert after.report_line(before).startswith("b: 1,080/s, ratio 1.200, p50 1.00 ms")
    assert "ratio 1.000" in before.report_line(before)
    assert after.report_line(before).endswith("gateway 1, redis 2, worker 3, child 4, total 10")

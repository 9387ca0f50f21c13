"""The service of the experiment with async handlers, and what is said of its turns."""

from __future__ import annotations

import pytest

from benchmarks.experiments.async_items.__main__ import OverlapSide, report_line
from benchmarks.experiments.async_items.service import latencies_s, mean_s


def test_the_late_answers_of_the_service_are_few_and_lie_apart() -> None:
    waits_s = latencies_s()
    assert len(waits_s) == 100
    assert mean_s() == pytest.approx(0.054)
    late = [place for place, seconds in enumerate(waits_s) if seconds == 1.0]
    assert len(late) == 2
    assert late[1] - late[0] > 10


def test_a_tree_is_compared_with_the_first_one_by_medians() -> None:
    first = OverlapSide("before", "", [100.0, 120.0, 110.0], [9.0], [90.0])
    side = OverlapSide("after", "", [900.0, 220.0, 330.0], [3.0], [30.0])
    assert report_line(side, first) == "after: 330/s, ratio 3.00, p50 3 ms, p99 30 ms"

"""The recent samples from which the dashboard computes rates and small charts."""

from __future__ import annotations

import pytest

from penstock.gateway.dashboard.rows.series import KEPT_S, QueueSamples, Sample, spark


def filled(*looks: tuple[float, int, int, int]) -> QueueSamples:
    samples = QueueSamples()
    for look in looks:
        samples.add(Sample(*look))
    return samples


def test_rates_are_known_from_the_second_look_on_and_taken_over_the_last_seconds() -> None:
    assert filled((1.0, 5, 100, 90)).rates() is None
    assert filled((1.0, 5, 100, 90), (3.0, 5, 120, 100)).rates() == (10.0, 5.0)
    long_ago = filled((0.0, 0, 0, 0), (100.0, 0, 1_000, 1_000), (102.0, 0, 1_004, 1_002))
    assert long_ago.rates() == (2.0, 1.0)


def test_old_looks_are_forgotten() -> None:
    samples = filled(*((float(at), at, at, 0) for at in range(1_000)))
    assert len(samples.samples) == KEPT_S + 1


@pytest.mark.parametrize("later", [(5.0, 1, 200, 200), (11.0, 1, 99, 99), (11.0, 1, 100, 98)])
def test_a_store_that_came_back_older_or_empty_begins_anew(
    later: tuple[float, int, int, int],
) -> None:
    samples = filled((10.0, 5, 100, 99), later)
    assert [sample.at for sample in samples.samples] == [later[0]]


def test_a_line_keeps_every_peak_and_says_where_nobody_looked() -> None:
    line = filled((0.0, 3, 0, 0), (118.0, 50, 0, 0), (118.5, 4, 0, 0), (300.0, 7, 0, 0)).line()
    assert (len(line), line[-1], max(line), line.count(-1)) == (60, 7, 50, 57)
    assert filled((0.0, 3, 0, 0)).line() == []


def test_a_spark_is_drawn_within_its_box() -> None:
    drawn = spark([-1, 0, 10, -1, 5])
    assert drawn is not None
    points = [tuple(map(float, point.split(","))) for point in drawn.line.split()]
    assert (drawn.top, len(points)) == (10, 3)
    assert all(0.0 <= x <= 120.0 and 0.0 <= y <= 28.0 for x, y in points)
    assert drawn.area.startswith(f"{points[0][0]:.1f},28 ")
    assert spark([-1, -1, 3]) is None
    flat = spark([0, 0])
    assert flat is not None
    assert flat.top == 0

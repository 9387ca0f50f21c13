from __future__ import annotations

import pytest

from penstock.errors import BadRequest
from penstock.loadtest.generator.arrivals import Stretch
from penstock.loadtest.workload import Shape, read_rate


def rates(text: str) -> list[tuple[float, float, float]]:
    return [(part.start, part.end, round(part.seconds, 9)) for part in read_rate(text, 30.0)]


def test_one_rate_holds_for_the_whole_time() -> None:
    assert rates("200") == [(200.0, 200.0, 30.0)]
    assert rates("0.5") == [(0.5, 0.5, 30.0)]


def test_a_range_is_steps_of_equal_length_up_to_its_end() -> None:
    assert rates("50..500/4") == [(50.0, 50.0, 7.5), (200.0, 200.0, 7.5), (350.0, 350.0, 7.5), (500.0, 500.0, 7.5)]
    assert len(rates("50..500")) == 10
    assert [start for start, _, _ in rates("50,400.5,100")] == [50.0, 400.5, 100.0]


def test_a_colon_is_a_ramp() -> None:
    assert rates("50:500") == [(50.0, 500.0, 30.0)]


@pytest.mark.parametrize("text", ["", "fast", "0", "-5", "5..", "5..6/1", "5/6", "1..2,3", "1:2:3", "inf", "nan"])
def test_a_rate_that_cannot_be_read_says_how_to_write_it(text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read_rate(text, 30.0)
    assert "50..500" in str(caught.value.hint)


def test_the_warm_up_runs_at_the_first_rate_and_is_no_step() -> None:
    shape = Shape(duration_s=30.0, warm_up_s=5.0, profile=read_rate("50,100", 30.0))
    assert shape.schedule()[0] == Stretch(50.0, 50.0, 5.0)
    assert [(step.begins_s, step.ends_s, step.rate) for step in shape.steps()] == [(0.0, 15.0, 50.0), (15.0, 30.0, 100.0)]


def test_a_ramp_is_reported_in_slices_of_their_mean_rate() -> None:
    steps = Shape(duration_s=10.0, profile=read_rate("0.001:100", 10.0)).steps()
    assert len(steps) == 10
    assert steps[0].rate == pytest.approx(5.0, rel=0.01)
    assert (steps[-1].begins_s, steps[-1].ends_s) == (9.0, 10.0)


def test_a_closed_loop_prescribes_no_rate() -> None:
    assert [step.rate for step in Shape(concurrency=8).steps()] == [0.0]

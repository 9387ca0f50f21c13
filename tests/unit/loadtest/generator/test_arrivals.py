from __future__ import annotations

import itertools
import statistics

import pytest

from penstock.errors import BadRequest
from penstock.loadtest.generator.arrivals import (
    Stretch,
    along,
    constant,
    every_nth,
    poisson,
    read_trace,
    unit_constant,
    unit_poisson,
)


def test_poisson_arrivals_ascend_at_the_asked_rate_and_repeat_with_their_seed() -> None:
    moments = list(itertools.islice(poisson(1_000.0, 7), 10_000))
    assert moments == sorted(moments)
    assert 9.5 < moments[-1] < 10.5
    assert moments == list(itertools.islice(poisson(1_000.0, 7), 10_000))


def test_the_gaps_of_poisson_arrivals_vary_as_much_as_their_mean() -> None:
    moments = list(itertools.islice(poisson(10.0, 3), 50_000))
    gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert statistics.fmean(gaps) == pytest.approx(0.1, rel=0.02)
    assert statistics.pstdev(gaps) == pytest.approx(0.1, rel=0.02)


def test_constant_arrivals_are_evenly_spaced() -> None:
    assert list(itertools.islice(constant(4.0), 3)) == [0.25, 0.5, 0.75]


def test_steps_follow_each_other_at_their_own_rates() -> None:
    moments = list(along([Stretch(2.0, 2.0, 1.0), Stretch(4.0, 4.0, 1.0)], unit_constant()))
    assert moments == [0.5, 1.0, 1.25, 1.5, 1.75, 2.0]


def test_a_ramp_has_as_many_requests_as_its_mean_rate_says_and_gets_denser() -> None:
    moments = list(along([Stretch(0.0, 100.0, 10.0)], unit_constant()))
    assert len(moments) == 500
    # The number of requests until t is the integral of the rate, 5 t^2.
    assert [round(5.0 * moment * moment) for moment in moments] == list(range(1, 501))


def test_a_falling_ramp_ends_with_its_time() -> None:
    moments = list(along([Stretch(100.0, 0.0, 2.0)], unit_poisson(5)))
    assert moments == sorted(moments)
    assert moments[-1] <= 2.0
    assert 70 < len(moments) < 130


def test_generators_that_share_a_schedule_make_it_up_together() -> None:
    whole = list(along([Stretch(50.0, 50.0, 2.0)], unit_poisson(1)))
    parts = [list(every_nth(along([Stretch(50.0, 50.0, 2.0)], unit_poisson(1)), first, 3)) for first in range(3)]
    assert sorted(itertools.chain(*parts)) == whole


def test_a_trace_counts_from_its_first_moment() -> None:
    assert read_trace("# recorded\n100.5\n101,POST\n\n100.75 # late\n") == [0.0, 0.25, 0.5]
    assert read_trace("2026-11-21T10:00:00Z\n2026-11-21T10:00:00.25+00:00\n") == [0.0, 0.25]


@pytest.mark.parametrize(("text", "match"), [("", "no moments"), ("1.0\nsoon\n", "line 2"), ("nan\n", "line 1")])
def test_a_trace_that_cannot_be_read_says_where(text: str, match: str) -> None:
    with pytest.raises(BadRequest, match=match):
        read_trace(text)

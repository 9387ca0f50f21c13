from __future__ import annotations

import pytest

from penstock.backoff import Backoff, BackoffCounter


def test_delays_double_up_to_the_limit() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.delay_s(failures) for failures in (1, 2, 3, 4, 5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_there_is_no_delay_before_the_first_failure() -> None:
    assert Backoff(1.0, 60.0, jitter=1.0).delay_s(0, chance=0.0) == 0.0
    assert Backoff(1.0, 60.0).delay_s(-2) == 0.0


def test_the_factor_says_how_fast_delays_grow() -> None:
    assert Backoff(1.0, 100.0, factor=3.0).delay_s(4) == 27.0


@pytest.mark.parametrize(
    ("jitter", "chance", "expected"), [(0.0, 0.0, 8.0), (0.5, 0.0, 4.0), (0.5, 0.5, 6.0), (1.0, 0.25, 2.0)]
)
def test_jitter_is_the_share_that_chance_may_take_off(jitter: float, chance: float, expected: float) -> None:
    assert Backoff(8.0, 60.0, jitter=jitter).delay_s(1, chance=chance) == expected


def test_any_number_of_failures_has_a_delay() -> None:
    assert Backoff(0.05, 2.0).delay_s(1_000_000) == 2.0


def test_a_success_starts_the_delays_again() -> None:
    counter = BackoffCounter(Backoff(1.0, 60.0))
    assert [counter.count_failure(), counter.count_failure()] == [1.0, 2.0]
    counter.reset()
    assert counter.failures == 0
    assert counter.count_failure() == 1.0

from __future__ import annotations

import pytest

from penstock.errors import BadRequest
from penstock.tune.options import goal_of, seconds_of
from penstock.tune.result import Goal


def goal(slo: str, *, min_rate: float | None = None, rate: float | None = None) -> Goal:
    return goal_of(slo, min_rate=min_rate, rate=rate, tolerance=0.01, price_per_hour=None)


@pytest.mark.parametrize(
    ("text", "percentile", "limit_s"), [("p99=100ms", 99.0, 0.1), ("p95<=0.5s", 95.0, 0.5), ("p99.9 = 2", 99.9, 2.0)]
)
def test_a_goal_is_read(text: str, percentile: float, limit_s: float) -> None:
    found = goal(text)
    assert found.percentile == percentile
    assert found.limit_s == pytest.approx(limit_s)


@pytest.mark.parametrize("text", ["p99", "p97=1s", "100ms", "p99=0ms", "p99=fast"])
def test_what_is_no_goal_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        goal(text)


def test_two_questions_at_once_are_refused() -> None:
    with pytest.raises(BadRequest, match="different questions"):
        goal("p99=1s", min_rate=1.0, rate=2.0)


def test_durations_have_their_units() -> None:
    assert [seconds_of(text) for text in ("250ms", "90s", "10m", "1h", "3")] == [0.25, 90.0, 600.0, 3600.0, 3.0]

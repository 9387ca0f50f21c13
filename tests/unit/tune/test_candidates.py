"""Measurements become verdicts, without a running stack."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.tune import candidates, capacity
from penstock.tune.candidates import Knowledge, Ranking, most_confirmed, rank, shortlist, stand_ins
from penstock.tune.capacity import capacity_of
from penstock.tune.report.verdicts import SearchOutcome, configurations, cost_per_million
from penstock.tune.result import BatchTime, Choice, ConfigurationVerdict, EngineSettings, Figures, Goal, Measured, Overheads
from penstock.tune.trials import Confirmation

_GOAL = Goal(limit_s=0.1)
_ENGINE = EngineSettings(threads=1)
_TIMES = tuple(BatchTime(size, 0.010 + 0.001 * size) for size in (1, 8))
_BANK = {(_ENGINE, slots): Measured(_ENGINE, slots, _TIMES) for slots in (1, 2)}
_KNOWN = Knowledge(_BANK, Overheads())
_SMALL, _LARGE = Choice(_ENGINE, 1), Choice(_ENGINE, 8)


@pytest.fixture(autouse=True)
def _few_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules are under test, and not how exact a simulation of thousands of jobs is."""
    monkeypatch.setattr(candidates, "_JOBS", 300)
    monkeypatch.setattr(capacity, "_JOBS", 300)


def figures(rate: float, tail_ms: float = 50.0) -> Figures:
    return Figures(rate, rate, tail_ms / 2, tail_ms, tail_ms)


def ranking(*points: Choice, goal: Goal = _GOAL, is_over: bool = False) -> Ranking:
    return rank(points, _KNOWN, goal, on_number=lambda number: None, is_over=lambda: is_over)


def test_the_best_comes_first_with_its_rate() -> None:
    found = ranking(_SMALL, _LARGE)
    assert found.order == (_LARGE, _SMALL)
    assert found.predicted[_LARGE].offered_rps > 3 * found.predicted[_SMALL].offered_rps


def test_with_a_rate_given_the_fewest_cores_come_first() -> None:
    two = replace(_LARGE, slots=2)
    assert ranking(two, _LARGE, goal=replace(_GOAL, min_rate=50.0)).order[0] == _LARGE


def test_a_rate_that_is_not_carried_is_lost_with_words() -> None:
    found = ranking(_SMALL, goal=replace(_GOAL, min_rate=500.0))
    assert found.order == ()
    assert "at 500/s it does not keep p99 <= 100 ms" in found.lost[_SMALL]


def test_without_time_only_the_highest_ceiling_is_simulated_and_the_others_say_why_not() -> None:
    """Regression: on a busy machine the measurements took the time of all simulations, and no search had a winner."""
    found = ranking(_SMALL, _LARGE, is_over=True)
    assert found.order == (_LARGE,)
    assert "the best so far" in found.lost[_SMALL]
    tight = ranking(_SMALL, _LARGE, goal=replace(_GOAL, limit_s=0.012), is_over=True)
    assert tight.lost[_SMALL] == "not simulated: the time was over"


def test_a_wait_that_gains_nothing_is_stood_for() -> None:
    first, later = replace(_LARGE, slots=2, max_wait_s=0.0), replace(_LARGE, slots=2, max_wait_s=0.01)
    made = Ranking((first, later, _SMALL), {point: figures(100.0) for point in (first, later, _SMALL)}, {})
    assert shortlist(made) == [first, _SMALL]
    assert stand_ins(made) == {later: "simulated at 100/s, no better than with a wait of 0 ms"}


@pytest.mark.parametrize(("space", "most"), [(4, 2), (30, 2), (45, 4), (1_000, 5)])
def test_real_load_is_for_less_than_a_tenth_but_for_two_at_least(space: int, most: int) -> None:
    assert most_confirmed(space) == most
    assert most < 0.1 * space or most == 2


def test_verdicts_name_the_winner_first_and_say_why_each_other_lost() -> None:
    slow, out = replace(_SMALL, slots=2), replace(_LARGE, slots=2)
    made = Ranking((_LARGE, _SMALL, slow), {_LARGE: figures(400.0), _SMALL: figures(90.0), slow: figures(180.0)}, {})
    tried = {_LARGE: Confirmation(figures(400.0), figures(390.0, 80.0)), slow: Confirmation(figures(180.0), figures(170.0))}
    outcome = SearchOutcome({out: "too large"}, made, tried, {})
    found = configurations([_SMALL, _LARGE, slow, out], outcome, _KNOWN, replace(_GOAL, price_per_hour=3.6))
    assert [(one.choice, one.verdict) for one in found] == [
        (_LARGE, ConfigurationVerdict.WINNER),
        (slow, ConfigurationVerdict.CONFIRMED),
        (out, ConfigurationVerdict.PRUNED),
        (_SMALL, ConfigurationVerdict.LOST),
    ]
    assert found[1].why == "confirmed at 170/s, the winner at 390/s"
    assert found[3].why == "simulated at 90/s, the winner has 390/s"
    assert found[0].cost_per_million == pytest.approx(1_000 / 390)


def test_without_a_price_there_is_no_cost() -> None:
    assert cost_per_million(100.0, None) is None


def test_capacity_counts_workers_and_states_its_error() -> None:
    goal = replace(_GOAL, rate=1_200.0)
    made = Ranking((_LARGE,), {_LARGE: figures(400.0)}, {})
    told = configurations([_LARGE], SearchOutcome({}, made, {}, {}), _KNOWN, goal)
    found = capacity_of(told, _KNOWN, goal, observed=[])
    assert found is not None
    # One worker with full batches gives 8 / 18 ms = 444 a second, 423 with the margin.
    assert found.slots == 3
    assert found.slots_low <= found.slots <= found.slots_high
    assert "none was confirmed" in found.basis
    assert 0.0 <= found.error < 0.2


def test_what_real_load_showed_widens_the_error() -> None:
    goal = replace(_GOAL, rate=1_200.0)
    made = Ranking((_LARGE,), {_LARGE: figures(400.0)}, {})
    tried = {_LARGE: Confirmation(figures(400.0), figures(400.0))}
    told = configurations([_LARGE], SearchOutcome({}, made, tried, {}), _KNOWN, goal)
    found = capacity_of(told, _KNOWN, goal, observed=[1.3])
    assert found is not None
    assert found.error == pytest.approx(0.3)
    assert found.slots_high > found.slots

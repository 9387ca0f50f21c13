from __future__ import annotations

import json

import pytest

from penstock.loadtest import figures
from penstock.loadtest.workload import Step
from tests.unit.loadtest.made import load


def test_what_was_due_in_the_warm_up_or_after_the_end_has_no_part() -> None:
    whole = load([(-0.5, 0.1, 200), (0.0, 0.1, 200), (9.9, 0.2, 200), (10.0, 0.1, 200)])
    found = figures.outcome(whole, figures.calls_of(whole), 10.0, deadline_s=0.15)
    assert (found.offered, found.answered) == (2, 2)
    # The answer at 10.1 came too late to be throughput, and past its deadline; it was sent in time and has a latency.
    assert (found.throughput_rps, found.goodput_rps) == (0.1, 0.1)
    assert found.latency is not None
    assert found.latency.max_ms == pytest.approx(200.0)


def test_errors_are_counted_by_code_with_what_the_first_one_said() -> None:
    whole = load([(0.0, 0.1, 200), (0.1, 0.1, 503), (0.2, 0.1, 503), (0.3, 0.1, 0)], more_due=[0.4])
    whole.bodies = {200: "fine", 503: json.dumps({"code": "no_worker", "detail": "none is ready"})}
    found = figures.outcome(whole, figures.calls_of(whole), 1.0, deadline_s=1.0)
    assert found.errors == {"lost": 1, "503": 2, "unfinished": 1}
    assert found.error_rate == 0.8
    assert found.said == {"503": "no_worker: none is ready"}


def test_a_load_without_a_good_answer_has_no_latency() -> None:
    whole = load([(0.0, 0.1, 500)])
    calls = figures.calls_of(whole)
    assert figures.outcome(whole, calls, 1.0, deadline_s=1.0).latency is None
    assert figures.cdf(calls, 1.0) == []
    assert figures.series(whole, calls, 1.0)[0].p99_ms is None


def test_seconds_tell_latencies_by_leaving_and_answers_by_coming() -> None:
    whole = load([(0.5, 1.0, 200), (1.5, 0.1, 200), (1.6, 0.1, 503)])
    first, second = figures.series(whole, figures.calls_of(whole), 2.0)
    assert (first.offered, first.answered, first.p99_ms) == (1, 0, 1000.0)
    assert (second.offered, second.answered, second.errors, second.p99_ms) == (2, 2, 1, 100.0)


def test_each_step_has_its_own_rates() -> None:
    whole = load([(number / 10.0, 0.05, 200) for number in range(30)])
    slow, fast = figures.parts(whole, figures.calls_of(whole), [Step(0.0, 1.0, 10.0), Step(1.0, 3.0, 10.0)], deadline_s=0.01)
    assert (slow.offered_rps, slow.throughput_rps, slow.goodput_rps) == (10.0, 10.0, 0.0)
    assert (fast.seconds, fast.offered_rps, fast.errors) == (2.0, 10.0, 0)


def test_a_run_that_was_stopped_has_only_the_steps_it_came_to() -> None:
    steps = [Step(0.0, 5.0, 1.0), Step(5.0, 10.0, 2.0), Step(10.0, 15.0, 3.0)]
    assert figures.within(steps, 7.0) == [Step(0.0, 5.0, 1.0), Step(5.0, 7.0, 2.0)]


def test_the_distribution_ascends_to_the_slowest_answer_and_keeps_the_tail() -> None:
    whole = load([(0.0, (number + 1) / 1_000.0, 200) for number in range(10_000)])
    found = figures.cdf(figures.calls_of(whole), 1.0)
    assert found == sorted(found)
    assert found[-1] == (10_000.0, 1.0)
    assert sum(share >= 0.99 for _, share in found) >= 30
    assert all(share == pytest.approx(ms / 10_000.0) for ms, share in found)

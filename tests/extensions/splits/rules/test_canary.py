"""What a canary does next, from the figures of its step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.extensions.splits.canary import UNREADY_S, Baseline, Canary, Move, Verdict, verdict
from penstock.extensions.splits.figures import VersionFigures, bucket_of, figures_of, lower_s, total, upper_s

PLAN = Canary("2", steps=(1.0, 5.0, 100.0), step_s=60.0, max_errors=0.01, max_p99=1.2, min_samples=100, since=1_000.0)
OVER = 1_060.0


def figures(succeeded: int = 0, failed: int = 0, *, ms: int = 100, slow: int = 0, slow_ms: int = 1_000) -> VersionFigures:
    durations = {bucket_of(ms): succeeded - slow, bucket_of(slow_ms): slow}
    return VersionFigures({"succeeded": succeeded, "failed": failed}, durations)


GOOD = figures(10_000, 10)


def judged(
    own: VersionFigures,
    others: VersionFigures = GOOD,
    *,
    now: float = OVER,
    unready_s: float = 0.0,
    plan: Canary = PLAN,
) -> Verdict:
    return verdict(plan, own, others, unready_s=unready_s, now=now)


def test_enough_good_jobs_and_the_time_of_the_step_make_the_next_step() -> None:
    found = judged(figures(100))
    assert found.move is Move.UP
    assert "100 jobs, 0 % errors, p99 0.10" in found.reason


@pytest.mark.parametrize(
    ("own", "now", "why"),
    [
        (figures(99), OVER, "99 of 100 jobs"),
        (figures(100), OVER - 10.0, "lasts 10 s more"),
        (figures(), OVER + 1e6, "0 of 100 jobs"),
    ],
)
def test_a_step_waits_for_its_time_and_its_samples(own: VersionFigures, now: float, why: str) -> None:
    found = judged(own, now=now)
    assert found.move is Move.STAY
    assert why in found.reason


def test_a_clock_that_was_set_back_only_makes_a_step_longer() -> None:
    assert judged(figures(500), now=OVER - 3_600.0).move is Move.STAY


def test_too_many_errors_end_it_at_once_and_the_reason_has_the_numbers() -> None:
    found = judged(figures(90, 30), now=1_000.5)
    assert found.move is Move.BACK
    assert "30 of 120 jobs ended in an error" in found.reason
    assert "the other versions have 0.0999 % errors" in found.reason


@pytest.mark.parametrize(("failed", "move"), [(1, Move.STAY), (2, Move.BACK)])
def test_errors_that_break_the_bound_whatever_comes_need_no_more_samples(failed: int, move: Move) -> None:
    # Of 100 jobs 1.1 may fail: with two failed ones the other 98 cannot help any more.
    assert judged(figures(3, failed), now=1_001.0).move is move


def test_an_error_rate_that_all_versions_have_is_not_the_canarys_fault() -> None:
    assert judged(figures(800, 200), figures(8_000, 2_000)).move is Move.UP


@pytest.mark.parametrize("state", ["failed", "dead", "expired"])
def test_every_end_without_an_answer_is_an_error(state: str) -> None:
    assert judged(VersionFigures({"succeeded": 90, state: 30})).move is Move.BACK


def test_slow_jobs_beyond_one_in_a_hundred_end_it() -> None:
    assert judged(figures(1_000, slow=10)).move is Move.UP
    found = judged(figures(1_000, slow=11))
    assert found.move is Move.BACK
    assert "11 of 1000 jobs took longer than 0.12" in found.reason


def test_a_difference_below_what_the_clock_can_tell_is_none() -> None:
    assert judged(figures(500, ms=4), figures(5_000, ms=2)).move is Move.UP
    assert judged(figures(500, ms=12), figures(5_000, ms=2)).move is Move.BACK


def test_the_others_must_have_been_seen_before_anything_is_decided() -> None:
    found = judged(figures(90, 30), figures(99))
    assert found.move is Move.STAY
    assert judged(figures(120), figures(99)).reason == "99 of 100 jobs of the other versions have ended"


def test_at_the_last_step_the_others_are_those_of_the_step_before() -> None:
    plan = replace(PLAN, step=2, baseline=Baseline(5_000, 0.001, 0.1))
    assert judged(figures(100), figures(), plan=plan).move is Move.UP
    assert judged(figures(90, 30), figures(), plan=plan).move is Move.BACK
    assert judged(figures(200, slow=20), figures(), plan=plan).move is Move.BACK


def test_a_version_without_a_worker_ends_although_no_job_tells_of_it() -> None:
    assert judged(figures(), unready_s=UNREADY_S).move is Move.STAY
    found = judged(figures(), unready_s=UNREADY_S + 1.0)
    assert (found.move, found.reason) == (Move.BACK, "no worker has been ready to run version 2 for 11 s")


def test_the_baseline_of_a_verdict_is_what_it_compared_with() -> None:
    assert judged(figures(100)).baseline == Baseline(10_010, 10 / 10_010, GOOD.p99_s)


@pytest.mark.parametrize("milliseconds", [0, 1, 2, 3, 7, 100, 101, 60_000, 86_400_000])
def test_a_duration_lies_in_its_bucket(milliseconds: int) -> None:
    bucket = bucket_of(milliseconds)
    assert lower_s(bucket) <= milliseconds / 1e3 + 1e-12
    assert milliseconds / 1e3 <= upper_s(bucket)


def test_a_quantile_is_at_most_a_sixteenth_of_a_doubling_too_high() -> None:
    found = figures_of({"1,succeeded": 100, f"1,~{bucket_of(100)}": 98, f"1,~{bucket_of(900)}": 2})["1"]
    p50_s, p99_s = found.quantile_s(0.5), found.p99_s
    assert p50_s is not None
    assert p99_s is not None
    assert 0.1 <= p50_s < 0.1 * 2 ** (1 / 16)
    assert 0.9 <= p99_s < 0.9 * 2 ** (1 / 16)


def test_figures_are_those_of_each_version_and_add_up() -> None:
    found = figures_of({"1,succeeded": 3, "1,~5": 3, "2.0-a,failed": 2, "2.0-a,dead": 1})
    assert (found["1"].samples, found["2.0-a"].errors) == (3, 3)
    assert total(found.values()) == VersionFigures({"succeeded": 3, "failed": 2, "dead": 1}, {5: 3})
    assert VersionFigures().p99_s is None

"""How long a version without a ready slot is expected to take until it has one."""

from __future__ import annotations

import pytest

from penstock.broker.backlog import Backlog, SlotCapacity, after_start_s, eta_s
from penstock.gateway.models.starts import LONGEST_START_S, SlotStarts

KEY = ("m", "1")
NONE = SlotCapacity()
TWO = SlotCapacity(ready_slots=2, per_s=80.0, latency_s={4: 0.1}, full_per_s=80.0)


def scaled_to_none(*, start_s: float) -> SlotStarts:
    """Two slots were ready; later one took `start_s` from the first job that waited at second 100."""
    starts = SlotStarts()
    starts.known(KEY, TWO, 0.0, is_wanted=False)
    starts.known(KEY, NONE, 50.0, is_wanted=False)
    starts.known(KEY, NONE, 100.0, is_wanted=True)
    starts.known(KEY, TWO, 100.0 + start_s, is_wanted=True)
    return starts


def test_nothing_is_claimed_before_a_start_was_seen() -> None:
    found = SlotStarts().known(KEY, NONE, 5.0, is_wanted=True)
    assert found == SlotCapacity()
    assert eta_s(3, Backlog(depth=3), found, 5.0) is None
    assert Backlog(depth=3).drain_s(found, 5.0) == 5.0, "a guess"


def test_a_start_counts_from_the_first_job_that_waits_not_from_the_last_slot_that_went() -> None:
    found = scaled_to_none(start_s=40.0).known(KEY, NONE, 900.0, is_wanted=True)
    assert found == SlotCapacity(ready_slots=0, per_s=40.0, latency_s={4: 0.1}, full_per_s=40.0, start_s=40.0)


def test_what_is_left_of_a_start_shrinks_until_it_is_overdue() -> None:
    starts = scaled_to_none(start_s=40.0)
    left = [starts.known(KEY, NONE, now, is_wanted=True).start_s for now in (900.0, 915.0, 935.0, 2_000.0)]
    assert left == [40.0, 25.0, 10.0, 10.0]


def test_jobs_before_it_run_on_the_one_slot_that_comes() -> None:
    found = scaled_to_none(start_s=40.0).known(KEY, NONE, 900.0, is_wanted=True)
    assert eta_s(80, Backlog(depth=81), found, 900.0) == pytest.approx(40.0 + 80 / 40 + 0.1)
    assert Backlog(depth=80).drain_s(found, 900.0) == pytest.approx(42.1)


def test_starts_are_averaged_and_one_of_an_hour_was_a_fault() -> None:
    starts = scaled_to_none(start_s=40.0)
    starts.known(KEY, NONE, 200.0, is_wanted=True)
    starts.known(KEY, TWO, 220.0, is_wanted=True)
    assert starts.known(KEY, NONE, 300.0, is_wanted=False).start_s == 30.0
    starts.known(KEY, NONE, 400.0, is_wanted=True)
    starts.known(KEY, TWO, 401.0 + LONGEST_START_S, is_wanted=True)
    assert starts.known(KEY, NONE, 9_000.0, is_wanted=False).start_s == 30.0


def test_a_ready_slot_is_described_as_it_is() -> None:
    assert scaled_to_none(start_s=40.0).known(KEY, TWO, 900.0, is_wanted=True) is TWO
    assert after_start_s(5, TWO) == 0.0


def test_of_versions_that_are_gone_nothing_is_kept() -> None:
    starts = scaled_to_none(start_s=40.0)
    starts.forget_all_but(set())
    assert starts.known(KEY, NONE, 900.0, is_wanted=True) == SlotCapacity()

"""Who gives way on a device: memory, least recent use, and how long a model stays at least."""

from __future__ import annotations

import math
from typing import Any

import pytest

from penstock.extensions.autoscaling.worker.room import LEAST_STAY_S, MOST_STAY_S, Key, Tenant, gives_way, stay_s

NOW = 1_000.0
A, B, C = ("a", "1"), ("b", "1"), ("c", "1")


def tenant(key: Key, **fields: Any) -> Tenant:
    given: dict[str, Any] = {"slots": 1, "spare": 1, "memory_bytes": 40, "ready_at": 0.0, "used_at": 500.0, "start_s": 1.0}
    return Tenant(key, **(given | fields))


def leavers(needed: int, *tenants: Tenant, deadline_s: float = 3_600.0, now: float = NOW) -> Any:
    return gives_way(needed, 100, tenants, deadline_s=deadline_s, now=now)


def test_nobody_leaves_where_there_is_room() -> None:
    assert leavers(60) == leavers(60, tenant(A)) == {}


def test_the_least_recently_used_leaves() -> None:
    assert leavers(40, tenant(A, used_at=700.0), tenant(B, used_at=600.0)) == {B: 1}


def test_as_many_leave_as_are_needed_and_no_more() -> None:
    both = [tenant(A, used_at=700.0), tenant(B, used_at=600.0)]
    assert leavers(90, *both) == {A: 1, B: 1}
    assert leavers(50, tenant(A, slots=4, spare=3, memory_bytes=80)) == {A: 2}
    small = tenant(C, used_at=100.0, memory_bytes=10)
    assert leavers(50, small, tenant(A, memory_bytes=60)) == {A: 1}, "the small one alone does not make the room"
    assert leavers(20, small, tenant(A, memory_bytes=80)) == {C: 1}


def test_what_may_not_leave_stays() -> None:
    assert leavers(70, tenant(A, spare=0)) is None
    assert leavers(100, tenant(A), tenant(B, spare=0)) is None


def test_a_model_that_loads_or_is_young_stays() -> None:
    assert leavers(70, tenant(A, ready_at=math.inf)) is None
    assert leavers(70, tenant(A, ready_at=NOW - LEAST_STAY_S + 0.1)) is None
    assert leavers(70, tenant(A, ready_at=NOW - LEAST_STAY_S)) == {A: 1}


def test_who_leaves_already_is_waited_for_and_nobody_else_sent_off() -> None:
    assert leavers(70, tenant(A, is_leaving=True), tenant(B, memory_bytes=20)) is None


@pytest.mark.parametrize(
    ("start_s", "deadline_s", "stays_s"),
    [
        (0.5, 3_600.0, LEAST_STAY_S),
        (20.0, 3_600.0, 200.0),
        (300.0, 3_600.0, MOST_STAY_S),
        (20.0, 120.0, 40.0),
        (60.0, 60.0, 30.0),
    ],
)
def test_a_model_that_takes_long_to_load_stays_longer_unless_jobs_would_be_late(
    start_s: float, deadline_s: float, stays_s: float
) -> None:
    assert stay_s(start_s, deadline_s=deadline_s) == stays_s

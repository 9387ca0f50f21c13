"""What one worker process decides for one version, step by step."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.extensions.autoscaling.worker.policy import LEAST_REST_S, Reason, Target, VersionReading, VersionScaler
from penstock.extensions.autoscaling.worker.shares import HostSlots, shares
from penstock.model_spec import ScalingPolicy

ONE_TO_FOUR = ScalingPolicy(1, 4, goal_s=5.0)
IDLE = ScalingPolicy(0, 2, goal_s=5.0, idle_unload_s=60.0)


def scaler(policy: ScalingPolicy = ONE_TO_FOUR, *, deadline_s: float = 3_600.0) -> VersionScaler:
    return VersionScaler("here", policy, deadline_s, used_at=0.0)


def reading(slots: int = 1, policy: ScalingPolicy = ONE_TO_FOUR, **fields: Any) -> VersionReading:
    """Slots that do ten jobs per second and start in two seconds."""
    hosts = {"here": HostSlots(slots, policy.min_slots, policy.max_slots), **fields.pop("others", {})}
    given: dict[str, Any] = {"waiting": 0, "arrivals_per_s": 0.0, "ready": slots, "rate": 10.0 * slots, "start_s": 2.0}
    return VersionReading(**given | {"is_running": False, "slot_rate": 10.0} | fields, hosts=hosts)


def test_a_crowded_moment_starts_nothing() -> None:
    one = scaler()
    assert one.decide(reading(waiting=200), 10.0) is None
    assert one.decide(reading(waiting=10), 11.0) is None
    assert one.decide(reading(waiting=200), 12.0) is None, "the pressure begins anew"


def test_the_next_step_waits_until_the_last_one_has_had_its_effect() -> None:
    one = scaler(ScalingPolicy(1, 8, goal_s=5.0))
    crowded: dict[str, Any] = {"waiting": 500, "slot_rate": 0.0, "rate": 0.0}
    one.decide(reading(**crowded), 0.0)
    assert one.decide(reading(**crowded), 2.0) == Target(2, Reason.BACKLOG), "one more, for nobody knows what a slot does"
    assert one.decide(reading(2, **crowded), 3.0) is None
    assert one.decide(reading(2, **crowded), 4.0) == Target(3, Reason.BACKLOG)


def test_jobs_with_little_time_left_count_before_the_goal_is_reached() -> None:
    one = scaler()
    for now in (0.0, 1.0, 2.0):
        found = one.decide(reading(waiting=10, arrivals_per_s=10.0, due_in_s=0.5), now)
    assert found == Target(2, Reason.BACKLOG), "a second of backlog is too much for jobs that must end in half of one"
    patient = scaler()
    assert [patient.decide(reading(waiting=10, arrivals_per_s=10.0), now) for now in (0.0, 1.0, 2.0)] == [None] * 3


def test_work_that_is_over_before_a_slot_is_ready_starts_none() -> None:
    one = scaler()
    assert [one.decide(reading(waiting=90, start_s=30.0), now) for now in (0.0, 30.0, 60.0)] == [None] * 3
    assert one.decide(reading(waiting=90, start_s=30.0, arrivals_per_s=20.0), 61.0) == Target(4, Reason.BACKLOG)


def test_slots_leave_after_a_rest_down_to_what_the_work_needed_meanwhile() -> None:
    one = scaler()
    assert one.decide(reading(4, arrivals_per_s=1.0), 100.0) is None
    assert one.decide(reading(4, arrivals_per_s=13.0), 101.0) is None
    assert one.decide(reading(4), 100.0 + LEAST_REST_S) == Target(2, Reason.REST)


def test_a_version_below_its_bounds_is_brought_up_and_an_unloaded_one_only_for_jobs() -> None:
    assert scaler(ScalingPolicy(2, 4, 5.0)).decide(reading(1, ScalingPolicy(2, 4, 5.0)), 1.0) == Target(2, Reason.START)
    kept = ScalingPolicy(1, 2, 5.0, idle_unload_s=60.0)
    assert scaler(kept).decide(reading(0, kept), 1.0) is None
    assert scaler(kept).decide(reading(0, kept, waiting=1), 1.0) == Target(1, Reason.DEMAND)


def test_an_idle_version_is_unloaded_once_and_a_running_one_is_not_idle() -> None:
    one = scaler(IDLE)
    assert one.decide(reading(1, IDLE, is_running=True), 50.0) is None
    assert one.decide(reading(1, IDLE), 109.0) is None
    assert one.decide(reading(1, IDLE), 110.0) == Target(0, Reason.IDLE)
    assert one.decide(reading(0, IDLE), 111.0) is None
    assert one.decide(reading(0, IDLE, waiting=3), 112.0) == Target(1, Reason.DEMAND)


def test_a_version_that_another_process_has_is_not_loaded_here_too() -> None:
    other = {"there": HostSlots(1, 0, 2)}
    assert scaler(IDLE).decide(reading(0, IDLE, waiting=1, ready=1, rate=10.0, others=other), 1.0) is None


@pytest.mark.parametrize(
    ("needed", "now", "expected"),
    [
        (0, (0, 0, 0), (0, 0, 0)),
        (1, (0, 0, 0), (1, 0, 0)),
        (1, (0, 1, 0), (0, 1, 0)),
        (4, (0, 1, 0), (2, 1, 1)),
        (2, (2, 2, 2), (1, 1, 0)),
        (99, (0, 0, 0), (4, 4, 4)),
    ],
)
def test_shares_keep_what_is_there_and_are_even(needed: int, now: tuple[int, ...], expected: tuple[int, ...]) -> None:
    hosts = {name: HostSlots(count, 0, 4) for name, count in zip("abc", now, strict=True)}
    assert tuple(shares(needed, hosts).values()) == expected


def test_each_host_has_its_least_and_no_more_than_it_has_room_for() -> None:
    hosts = {"a": HostSlots(1, 1, 4), "b": HostSlots(2, 2, 2), "c": HostSlots(0, 1, 0)}
    assert shares(0, hosts) == {"a": 1, "b": 2, "c": 0}
    assert shares(7, hosts) == {"a": 4, "b": 2, "c": 0}

"""Bursts, quiet times and loads that take long, on one simulated worker and on several that scale by themselves."""

from __future__ import annotations

import pytest

from penstock.model_spec import ScalingPolicy
from tests.extensions.autoscaling.worker.many_hosts import SimulatedFleet

ONE_TO_FOUR = ScalingPolicy(1, 4, goal_s=5.0)


def test_a_burst_at_three_times_the_capacity_is_caught_up_with_and_its_slots_leave_after_it() -> None:
    fleet = SimulatedFleet(ONE_TO_FOUR, hosts=1, start_s=3.0, per_slot=10.0)
    fleet.run(60, arrivals=30.0)
    assert fleet.slots == 4
    fleet.run(30)
    assert fleet.waiting == 0
    fleet.run(60)
    assert (fleet.slots, fleet.starts) == (1, 3)
    assert set(fleet.reasons) == {"backlog", "rest"}


def test_slots_come_once_the_backlog_has_passed_the_goal_for_as_long_as_a_load_takes() -> None:
    fleet = SimulatedFleet(ONE_TO_FOUR, hosts=1, start_s=3.0, per_slot=10.0)
    while fleet.backlog_s <= 5.0:
        fleet.run(1, arrivals=30.0)
    passed_at = fleet.now
    while fleet.slots == 1:
        fleet.run(1, arrivals=30.0)
    assert fleet.now == passed_at + 3.0


def test_a_burst_that_ends_before_a_slot_could_help_starts_none() -> None:
    fleet = SimulatedFleet(ONE_TO_FOUR, hosts=1, start_s=60.0, per_slot=10.0)
    fleet.submit(500)
    fleet.run(120)
    assert (fleet.starts, fleet.waiting) == (0, 0.0), "50 s of work are over before a load of 60 s is"
    fleet.submit(5_000)
    fleet.run(120)
    assert fleet.starts > 0, "500 s of work are not"


@pytest.mark.parametrize("hosts", [2, 3, 7])
def test_several_hosts_answer_one_backlog_once(hosts: int) -> None:
    one = SimulatedFleet(ScalingPolicy(1, 6, goal_s=5.0), hosts=1, start_s=4.0, per_slot=10.0)
    several = SimulatedFleet(ScalingPolicy(0, 6, goal_s=5.0, idle_unload_s=600.0), hosts=hosts, start_s=4.0, per_slot=10.0)
    for fleet in (one, several):
        fleet.run(40, arrivals=25.0)
    assert 3 <= several.slots <= one.slots + 2
    assert several.waiting < 5.0 * 25.0
    several.run(200, arrivals=25.0)
    assert several.waiting == 0
    settled, starts = several.slots, several.starts
    several.run(300, arrivals=25.0)
    assert (several.slots, several.starts) == (settled, starts), "the same work needs the same slots"


def test_each_host_takes_its_share() -> None:
    fleet = SimulatedFleet(ScalingPolicy(1, 4, goal_s=5.0), hosts=3, start_s=2.0, per_slot=10.0)
    fleet.run(60, arrivals=70.0)
    counts = [host.slots for host in fleet.hosts]
    assert max(counts) - min(counts) <= 1
    assert 10 <= sum(counts) <= 12


def test_one_job_for_an_unloaded_model_loads_it_on_one_host_only() -> None:
    fleet = SimulatedFleet(ScalingPolicy(0, 2, goal_s=5.0, idle_unload_s=30.0), hosts=3, start_s=4.0, per_slot=10.0)
    fleet.run(100)
    fleet.submit(1)
    fleet.run(10)
    assert (fleet.starts, fleet.slots, fleet.waiting, fleet.reasons) == (1, 1, 0.0, ["demand"])
    fleet.run(60)
    assert (fleet.slots, fleet.reasons[-1]) == (0, "idle")


def test_a_host_without_room_leaves_its_share_to_the_others() -> None:
    fleet = SimulatedFleet(ScalingPolicy(0, 2, goal_s=5.0, idle_unload_s=600.0), hosts=2, start_s=4.0, per_slot=10.0)
    fleet.hosts[0].most = 0
    fleet.submit(10)
    fleet.run(10)
    assert [host.slots for host in fleet.hosts] == [0, 1]


def test_steady_work_keeps_the_slots_that_it_needs_for_an_hour() -> None:
    fleet = SimulatedFleet(ONE_TO_FOUR, hosts=1, start_s=3.0, per_slot=10.0)
    fleet.run(120, arrivals=19.0)
    settled, starts = fleet.slots, fleet.starts
    fleet.run(3_600, arrivals=19.0)
    assert (fleet.slots, fleet.starts) == (settled, starts)


def test_waves_of_a_minute_do_not_load_a_model_that_takes_half_a_minute_again_and_again() -> None:
    fleet = SimulatedFleet(ONE_TO_FOUR, hosts=1, start_s=30.0, per_slot=10.0)
    for _ in range(30):
        fleet.run(30, arrivals=20.0)
        fleet.run(30)
    assert fleet.starts <= 4, "a rest of three loads is longer than a wave"


def test_a_model_whose_jobs_must_end_soon_has_slots_for_that() -> None:
    patient = SimulatedFleet(ONE_TO_FOUR, hosts=1, start_s=1.0, per_slot=10.0)
    urgent = SimulatedFleet(ONE_TO_FOUR, hosts=1, start_s=1.0, per_slot=10.0, deadline_s=2.0)
    for fleet in (patient, urgent):
        fleet.submit(25)
        fleet.run(3, arrivals=12.0)
    assert (patient.slots, urgent.slots > 1) == (1, True)

from __future__ import annotations

from penstock.workers.slot.child.ending import DeviceHealth, Restarts


def test_restarts_wait_longer_each_time_until_a_batch_succeeds() -> None:
    restarts = Restarts()
    assert [restarts.on_failure() for _ in range(9)] == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    restarts.on_success()
    assert restarts.on_failure() == 0.0
    assert restarts.total == 10


def test_three_faults_within_a_minute_make_a_device_rest() -> None:
    health = DeviceHealth()
    assert [health.on_fault(at) for at in (0.0, 30.0, 59.0)] == [0.0, 0.0, 60.0]


def test_faults_that_lie_apart_are_borne() -> None:
    health = DeviceHealth()
    assert [health.on_fault(at) for at in (0.0, 40.0, 80.0, 120.0)] == [0.0] * 4


def test_a_fault_soon_after_a_rest_makes_the_next_one_longer_up_to_ten_minutes() -> None:
    health = DeviceHealth()
    health.on_fault(0.0)
    health.on_fault(0.0)
    at, rests = 0.0, []
    for _ in range(6):
        rests.append(health.on_fault(at))
        at += rests[-1] + 1.0
    assert rests == [60.0, 120.0, 240.0, 480.0, 600.0, 600.0]


def test_a_minute_without_a_fault_after_a_rest_clears_it() -> None:
    health = DeviceHealth()
    assert [health.on_fault(0.0) for _ in range(3)] == [0.0, 0.0, 60.0]
    assert [health.on_fault(at) for at in (121.0, 122.0, 123.0)] == [0.0, 0.0, 60.0]

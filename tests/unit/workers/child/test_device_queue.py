from __future__ import annotations

import time
from threading import Timer

from penstock.workers.child.device_queue import ONLINE_IN_A_ROW, DeviceQueue, DeviceTurns


def test_online_batches_go_first_and_a_micro_batch_has_every_ninth_turn() -> None:
    turns = DeviceTurns()
    taken = [turns.is_bulk_next(online=True, bulk=True) for _ in range(2 * (ONLINE_IN_A_ROW + 1))]
    assert taken == ([False] * ONLINE_IN_A_ROW + [True]) * 2


def test_who_waits_alone_goes() -> None:
    turns = DeviceTurns()
    assert turns.is_bulk_next(online=False, bulk=True)
    assert not turns.is_bulk_next(online=True, bulk=False)


def test_a_turn_alone_starts_the_count_anew() -> None:
    turns = DeviceTurns()
    for _ in range(ONLINE_IN_A_ROW):
        assert not turns.is_bulk_next(online=True, bulk=True)
    assert turns.is_bulk_next(online=False, bulk=True)
    assert not turns.is_bulk_next(online=True, bulk=True)


def test_everything_that_was_put_in_is_taken_once_and_in_order() -> None:
    queue: DeviceQueue[str] = DeviceQueue()
    queue.await_room()
    queue.put_bulk("rows")
    for name in ("a", "b"):
        queue.put(name)
    assert [queue.take() for _ in range(3)] == ["a", "b", "rows"]
    # There is room for the next micro-batch.
    queue.await_room()


def test_a_micro_batch_lets_the_batch_that_is_on_its_way_go_first() -> None:
    queue: DeviceQueue[str] = DeviceQueue()
    queue.await_room()
    queue.put_bulk("rows")
    late = Timer(0.02, queue.put, ["online"])
    # The last batch seems to end in the future, because two milliseconds would be too short for a test.
    queue.on_online_ended(time.monotonic() + 5.0, run_s=1.0)
    late.start()
    assert queue.take() == "online"


def test_where_batches_seldom_follow_closely_the_device_does_not_wait_for_them() -> None:
    queue: DeviceQueue[str] = DeviceQueue()
    for _ in range(20):
        queue.on_online_ended(time.monotonic() - 1.0, run_s=1.0)
        queue.put("online")
        assert queue.take() == "online"
    queue.await_room()
    queue.put_bulk("rows")
    # The next batch seems to come in a minute, so a wait for it would be noticed.
    queue.on_online_ended(time.monotonic() + 60.0, run_s=1.0)
    assert queue.take() == "rows"


def test_a_micro_batch_does_not_wait_when_no_batch_has_just_ended() -> None:
    queue: DeviceQueue[str] = DeviceQueue()
    queue.on_online_ended(time.monotonic() - 1.0, run_s=1.0)
    queue.await_room()
    queue.put_bulk("rows")
    assert queue.take() == "rows"

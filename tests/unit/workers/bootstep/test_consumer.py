from __future__ import annotations

from types import SimpleNamespace

from celery.worker.control import Panel

from penstock.workers.bootstep import consumer
from penstock.workers.bootstep.pool import DevicePool


class FollowedFleet:
    """Notes the consumers that it is to follow."""

    def __init__(self) -> None:
        self.followed: list[object] = []

    def follow(self, consumer: object) -> None:
        self.followed.append(consumer)


def test_who_asks_for_events_by_remote_control_need_not_wait_for_the_next_beat() -> None:
    pool = DevicePool.__new__(DevicePool)
    pool.fleet = fleet = FollowedFleet()  # type: ignore[assignment]
    asked = SimpleNamespace(pool=pool, event_dispatcher=SimpleNamespace(groups={"worker"}))
    answer = Panel.data["enable_events"](SimpleNamespace(consumer=asked))
    assert Panel.data["enable_events"] is consumer.enable_events
    assert answer == {"ok": "task events enabled"}
    assert asked.event_dispatcher.groups == {"worker", "task"}
    assert fleet.followed == [asked]

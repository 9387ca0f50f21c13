from __future__ import annotations

from penstock.workers.slot.restarts import Restarts


def test_restarts_wait_longer_each_time_until_a_batch_succeeds() -> None:
    restarts = Restarts()
    assert [restarts.on_failure() for _ in range(9)] == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    restarts.on_success()
    assert restarts.on_failure() == 0.0
    assert restarts.total == 10

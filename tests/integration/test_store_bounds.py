"""The largest calls: a store function never meets a limit of Lua, and no call grows with the number of jobs that are due."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from penstock.broker.store.sync import RedisStore
from tests.contract.dumps import RedisDump
from tests.contract.invariants import check_invariants
from tests.contract.model_queue import ModelQueue

OWNERS, EACH = ["a", "b", "c", "d", "e"], 1_000


@pytest.fixture
def queue(fresh_redis: str) -> Iterator[ModelQueue]:
    with redis.Redis.from_url(fresh_redis) as client:
        store = RedisStore(fresh_redis)
        yield ModelQueue(store, "m", RedisDump(client, "m").dump)
        store.close()


def late_flood(queue: ModelQueue) -> None:
    """Every owner's thousand jobs are past their deadline, and no worker is alive."""
    for owner in OWNERS:
        queue.store.submit([queue.new(owner=owner, deadline_s=0.0) for _ in range(EACH)])


def test_five_thousand_late_jobs_of_five_owners_expire_whole(queue: ModelQueue) -> None:
    late_flood(queue)
    reports = [queue.store.sweep(queue.model) for _ in range(6)]
    assert [(report.expired, report.more) for report in reports] == [(EACH, True)] * 5 + [(0, False)]
    check_invariants(queue.dump())
    assert queue.store.stats(queue.model).ended == {"expired": len(OWNERS) * EACH}

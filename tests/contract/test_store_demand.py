"""demand: what a worker asks each second, as the real store answers it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from penstock.broker.records import ClaimRequest, NewJob
from penstock.broker.store.sync import RedisStore
from penstock.job import Payload, new_job_id


@pytest.fixture
def store(redis_url: str) -> Iterator[RedisStore]:
    with closing(RedisStore(redis_url)) as made:
        yield made


def test_what_waits_is_counted_by_version_with_its_first_deadline(store: RedisStore) -> None:
    given = [("1", 50.0), ("1", 20.0), ("2", 90.0), ("1", 70.0)]
    payload = Payload("application/json", b"1")
    store.submit([NewJob(new_job_id("asked"), version, payload, deadline_s=deadline_s) for version, deadline_s in given])
    store.submit([NewJob(new_job_id("asked"), "1", payload, owner="ann", deadline_s=5.0, delay_s=3.0)])
    found = store.demand("asked", ["1", "2", "3"])
    assert (found.accepted, found.ended, found.leased, found.waiting) == (5, 0, 0, {"1": 3, "2": 1, "3": 0})
    assert found.due_in_s == {"1": pytest.approx(20.0, abs=2.0), "2": pytest.approx(90.0, abs=2.0)}
    store.claim(ClaimRequest("asked", "1", "w", "n", 2))
    found = store.demand("asked", ["1"])
    assert (found.leased, found.waiting, found.accepted) == (2, {"1": 1}, 5)
    assert store.demand("never", ["1"]).waiting == {"1": 0}

"""A purge cancels what waits, in bounded steps, and nothing else. On Redis alone: the store in memory serves no operator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from penstock.broker.store import ops
from penstock.broker.store.sync import RedisStore
from penstock.job import JobState
from tests.contract.dumps import RedisDump
from tests.contract.invariants import check_invariants
from tests.contract.model_queue import ModelQueue


@pytest.fixture
def queue(redis_url: str, model: str) -> Iterator[ModelQueue]:
    store = RedisStore(redis_url)
    with redis.Redis.from_url(redis_url) as client:
        made = ModelQueue(store, model, RedisDump(client, model).dump)
        yield made
        check_invariants(made.dump())
    store.close()


def purge(queue: ModelQueue, limit: int = 100) -> tuple[int, bool]:
    store: Any = queue.store
    found: tuple[int, bool] = store.run(ops.purge(queue.name, limit=limit))
    return found


def test_jobs_of_every_line_end_cancelled_and_what_runs_goes_on(queue: ModelQueue) -> None:
    running = queue.leased()
    waiting = [
        queue.submit(),
        queue.submit(owner="a"),
        queue.submit(owner="a", version="2"),
        queue.bulk(owner="b"),
        queue.submit(delay_s=60.0),
        queue.submit(delay_s=60.0, owner="b"),
    ]
    shard = queue.shard()
    assert purge(queue) == (6, False)
    assert {queue.read(job).state for job in waiting} == {JobState.CANCELLED}
    assert queue.read(shard).state is JobState.QUEUED
    assert queue.read(running.id).state is JobState.LEASED
    queue.finish(running)
    assert queue.read(running.id).state is JobState.SUCCEEDED


def test_a_suspect_is_purged_too_and_a_retry_that_waits(queue: ModelQueue) -> None:
    suspect, retried = queue.leased(), queue.leased(worker="w2")
    queue.store.sweep(queue.name, gone=["w1"])
    queue.retry(retried, worker="w2", delay_s=60.0)
    assert purge(queue) == (2, False)
    assert {queue.read(job.id).state for job in (suspect, retried)} == {JobState.CANCELLED}


def test_one_call_takes_a_bounded_step_and_the_next_goes_on(queue: ModelQueue) -> None:
    jobs = [queue.submit() for _ in range(5)]
    assert [purge(queue, limit=2) for _ in range(4)] == [(2, True), (2, True), (1, False), (0, False)]
    assert {queue.read(job).state for job in jobs} == {JobState.CANCELLED}
    assert queue.store.stats(queue.name).depth == 0

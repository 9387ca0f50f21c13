"""The ends of jobs that a split sent to their version are counted in the call that ends them, whoever makes it.

The twin in memory pushes nothing and counts nothing of this, so these tests are for Redis alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import redis

from penstock.broker.contract import CancelStatus
from penstock.broker.store import ops
from penstock.broker.store.ops import first_job
from penstock.broker.store.sync import RedisStore
from penstock.extensions.splits.figures import VersionFigures, figures_of, lower_s, upper_s
from penstock.extensions.splits.store import count_split, split_counts
from penstock.job import JobState
from tests.contract.model_queue import ModelQueue

pytestmark = pytest.mark.parametrize("store", ["redis"], indirect=True)


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as found:
        yield found


def redis_of(queue: ModelQueue) -> RedisStore:
    assert isinstance(queue.store, RedisStore)
    return queue.store


def figures(queue: ModelQueue, name: str = "s.0") -> dict[str, VersionFigures]:
    return figures_of(redis_of(queue).send(split_counts(queue.name, name)))


def test_a_job_counts_by_its_version_and_its_end(queue: ModelQueue) -> None:
    for _ in range(2):
        queue.finish(queue.leased(split="s.0"))
    queue.fail(queue.leased(split="s.0"))
    queue.submit(split="s.0", version="2")
    queue.finish(queue.take(version="2"))
    found = figures(queue)
    assert {version: dict(one.ended) for version, one in found.items()} == {
        "1": {"succeeded": 2, "failed": 1},
        "2": {"succeeded": 1},
    }
    assert sum(found["1"].durations.values()) == 2


def test_jobs_of_one_batch_are_counted_one_by_one(queue: ModelQueue) -> None:
    for _ in range(3):
        queue.submit(split="s.0")
    queue.submit(split="s.1")
    for job in queue.claim(limit=8).jobs:
        queue.finish(job)
    assert figures(queue)["1"].samples == 3
    assert figures(queue, "s.1")["1"].samples == 1


def test_a_duration_is_what_the_caller_waited(queue: ModelQueue) -> None:
    job, began = queue.leased(split="s.0"), time.monotonic()
    time.sleep(0.05)
    queue.finish(job)
    took_s = time.monotonic() - began
    [bucket] = figures(queue)["1"].durations
    assert upper_s(bucket) >= 0.05
    assert lower_s(bucket) <= took_s + 0.05


def test_the_wait_for_a_start_that_the_caller_asked_for_does_not_count(queue: ModelQueue) -> None:
    job = queue.submit(split="s.0", delay_s=0.3)
    time.sleep(0.31)
    redis_of(queue).sweep(queue.name)
    queue.finish(queue.take())
    assert queue.state(job) is JobState.SUCCEEDED
    [bucket] = figures(queue)["1"].durations
    assert lower_s(bucket) < 0.25


def test_a_job_that_goes_back_counts_once_at_its_end(queue: ModelQueue) -> None:
    job = queue.leased(split="s.0", max_attempts=3)
    queue.retry(job)
    assert figures(queue) == {}
    redis_of(queue).sweep(queue.name)
    queue.finish(queue.take())
    assert figures(queue)["1"].ended == {"succeeded": 1}


def test_jobs_that_the_store_ends_count_as_errors(queue: ModelQueue) -> None:
    queue.submit(split="s.0", deadline_s=0.01)
    time.sleep(0.02)
    redis_of(queue).sweep(queue.name)
    queue.crash(queue.leased(split="s.0", max_crashes=1))
    assert dict(figures(queue)["1"].ended) == {"expired": 1, "dead": 1}
    assert figures(queue)["1"].errors == 2


def test_a_cancelled_job_is_not_counted(queue: ModelQueue) -> None:
    assert redis_of(queue).cancel(queue.submit(split="s.0")) is CancelStatus.CANCELLED
    running = queue.leased(split="s.0")
    assert redis_of(queue).cancel(running.id) is CancelStatus.REQUESTED
    queue.finish(running)
    assert figures(queue) == {}


def test_a_job_counts_beside_those_who_wait_for_it(queue: ModelQueue, client: redis.Redis) -> None:
    with client.pubsub() as listener:
        listener.subscribe("ps:gateway:a", "ps:gateway:b")
        job = queue.leased(split="s.0", reply_to="ps:gateway:a")
        redis_of(queue).run(ops.watch(job.id, channel="ps:gateway:b", every_change=False))
        queue.finish(job)
        told = [next(one for one in listener.listen() if one["type"] == "message")["channel"] for _ in range(2)]
    assert sorted(told) == [b"ps:gateway:a", b"ps:gateway:b"]
    assert figures(queue)["1"].samples == 1


def test_a_job_of_no_split_leaves_no_counts(queue: ModelQueue, client: redis.Redis) -> None:
    queue.finish(queue.leased(reply_to="ps:gateway:a"))
    assert not client.keys(f"ps:{{{queue.name}}}:split:*")


def test_counts_are_gone_a_week_after_the_last(queue: ModelQueue, client: redis.Redis) -> None:
    queue.finish(queue.leased(split="s.0"))
    redis_of(queue).run(count_split(queue.name, "s", {"shadow,equal": 2}))
    redis_of(queue).run(count_split(queue.name, "s", {"shadow,equal": 1, "shadow,lost": 1}))
    assert redis_of(queue).send(split_counts(queue.name, "s")) == {"shadow,equal": 3, "shadow,lost": 1}
    for name in ("s", "s.0"):
        assert 0 < client.pttl(f"ps:{{{queue.name}}}:split:{name}") <= 7 * 86_400_000


def test_the_first_job_of_a_key_is_found_by_its_owner(queue: ModelQueue) -> None:
    job = queue.submit(owner="a", idempotency_key="k", fingerprint="f")
    assert redis_of(queue).send(first_job(queue.name, "a", "k")) == job
    assert redis_of(queue).send(first_job(queue.name, "b", "k")) is None


def test_a_repeat_gets_the_first_job_although_the_split_chose_another_version(queue: ModelQueue) -> None:
    first = queue.submit(version="1", split="s.0", idempotency_key="k", fingerprint="f")
    again = queue.put(queue.new(version="2", split="s.1", idempotency_key="k", fingerprint="f"))
    assert again.id == first
    assert queue.read(first).version == "1"

"""The largest calls: a store function never meets a limit of Lua, and no call grows with the number of jobs that are due."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
import redis

from penstock.broker.records import Ending, Settled
from penstock.broker.store.sync import RedisStore
from penstock.extensions.webhooks.contract import AttemptEnd, EventOutcome
from penstock.extensions.webhooks.webhook import Webhook
from penstock.job import JobState
from penstock.model_spec import MAX_BATCH_SIZE
from tests.contract.dumps import RedisDump
from tests.contract.hooked import HOOK, Deliverer
from tests.contract.invariants import check_invariants
from tests.contract.model_queue import OUTPUT, ModelQueue
from tests.integration.failing_library import FailingLibrary

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
    reports = [queue.store.sweep(queue.name) for _ in range(6)]
    assert [(report.expired, report.more) for report in reports] == [(EACH, True)] * 5 + [(0, False)]
    check_invariants(queue.dump())
    assert queue.store.stats(queue.name).ended == {"expired": len(OWNERS) * EACH}


def test_a_batch_at_the_bound_is_claimed_and_settled_in_one_call_each(queue: ModelQueue) -> None:
    jobs = queue.store.submit([queue.new() for _ in range(2 * MAX_BATCH_SIZE)])
    claim = queue.claim("w1", limit=5_000)
    assert [job.id for job in claim.jobs] == [job.id for job in jobs[:MAX_BATCH_SIZE]]
    endings = [Ending(job.id, job.token, JobState.SUCCEEDED, output=OUTPUT) for job in claim.jobs]
    assert set(queue.finish_all(endings)) == {Settled.OK}
    check_invariants(queue.dump())


def test_a_claim_ends_a_thousand_late_jobs_at_most_and_asks_to_be_repeated(queue: ModelQueue) -> None:
    late_flood(queue)
    claim = queue.claim("w1", limit=512)
    assert (claim.jobs, claim.expired, claim.retry_in_s) == ((), EACH, 0.0)
    check_invariants(queue.dump())


@pytest.mark.parametrize("more", [2_000, 3_000])
def test_a_sweep_calls_as_many_commands_however_many_jobs_are_due(fresh_redis: str, more: int) -> None:
    with closing(FailingLibrary(fresh_redis)) as library, redis.Redis.from_url(fresh_redis) as client:
        queue = ModelQueue(library.store, "m", RedisDump(client, "m").dump)
        queue.store.submit([queue.new(deadline_s=0.0) for _ in range(more)])
        library.arm()
        queue.store.sweep("m")
        # Per job: read the record, leave the line, give up the ticket, write the record; all else is gathered.
        assert library.count() < 4 * EACH + 50


def test_a_claim_reads_no_backlog_of_stock_messages(fresh_redis: str) -> None:
    with closing(FailingLibrary(fresh_redis)) as library, redis.Redis.from_url(fresh_redis) as client:
        queue = ModelQueue(library.store, "m", RedisDump(client, "m").dump)
        jobs = [queue.submit(), queue.submit()]
        # At the end from which tickets are taken.
        client.rpush("penstock.{m}", *(b"message %d" % n for n in range(20_000)))
        library.arm()
        claim = queue.claim("w1")
        assert library.count() < 60
        assert [job.id for job in claim.jobs] == jobs
        assert len(claim.messages) <= 16
        assert client.zcard("ps:{m}:foreign") <= len(jobs)
        for _ in range(3):
            assert len(queue.claim("w2").messages) <= 16
        check_invariants(queue.dump())


def test_a_take_looks_at_a_bounded_number_of_endpoints_and_the_next_one_goes_on(fresh_redis: str) -> None:
    with closing(FailingLibrary(fresh_redis)) as library, redis.Redis.from_url(fresh_redis) as client:
        queue = ModelQueue(library.store, "m", RedisDump(client, "m").dump)
        jobs = [queue.new(webhook=Webhook(f"https://h{number}.example/"), deadline_s=0.0) for number in range(250)]
        queue.store.submit(jobs)
        queue.store.sweep("m")
        deliverer, taken = Deliverer(queue), []
        for most in (100, 100, 50):
            library.arm()
            taken += deliverer.take(limit=256)
            # Per endpoint: its state, what is lost and under way, the event taken in five, when to look again.
            assert library.count() < 16 * most + 10
        assert {event.id for event in taken} == {job.id.serial for job in jobs}


def test_a_flood_of_old_events_of_an_endpoint_that_fails_is_given_up_in_parts(queue: ModelQueue) -> None:
    queue.store.submit([queue.new(webhook=HOOK, deadline_s=0.0) for _ in range(350)])
    queue.store.sweep(queue.name)
    deliverer = Deliverer(queue)
    deliverer.settle(deliverer.take_one(limit=1), AttemptEnd(EventOutcome.AGAIN, "500"))
    found = []
    for _ in range(4):
        taken = deliverer.take(give_up_s=0.0)
        found.append((len(taken), deliverer.outbox.counts().undelivered))
    assert found == [(1, 100), (0, 200), (0, 300), (0, 349)]


def test_more_jobs_may_be_forgotten_than_one_call_takes(queue: ModelQueue) -> None:
    jobs = []
    for _ in range(3):
        queue.store.submit([queue.new() for _ in range(500)])
        claim = queue.claim("w1", limit=500)
        queue.finish_all([Ending(job.id, job.token, JobState.SUCCEEDED, output=OUTPUT) for job in claim.jobs])
        jobs += [job.id for job in claim.jobs]
    assert queue.store.forget(jobs) == len(jobs) == 1_500
    check_invariants(queue.dump())

"""A record that was evicted or deleted by hand holds up no other job: it is passed over, cleared away and counted."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
import redis

from penstock.broker.contract import JobIndex
from penstock.broker.records import Settled, SubmitStatus
from penstock.broker.store.sync import RedisStore
from penstock.extensions.webhooks.contract import EventSettled
from penstock.extensions.webhooks.webhook import Webhook
from penstock.job import Call, JobId, JobState, Priority
from tests.contract.dumps import RedisDump
from tests.contract.hooked import HOOK, Deliverer, ended
from tests.contract.invariants import check_invariants
from tests.contract.model_queue import ModelQueue


@pytest.fixture
def client(fresh_redis: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(fresh_redis) as client:
        yield client


@pytest.fixture
def queue(fresh_redis: str, client: redis.Redis) -> Iterator[ModelQueue]:
    store = RedisStore(fresh_redis)
    yield ModelQueue(store, "m", RedisDump(client, "m").dump)
    store.close()


def evict(client: redis.Redis, *jobs: JobId) -> None:
    for job in jobs:
        assert client.delete(f"ps:{{m}}:job:{job.serial}") == 1


def test_lost_workers_get_their_other_jobs_back(queue: ModelQueue, client: redis.Redis) -> None:
    jobs = [queue.submit() for _ in range(4)]
    queue.claim("w1", lease_s=0.0)
    evict(client, jobs[0])
    report = queue.store.sweep("m")
    assert (report.requeued, report.gone) == (3, 1)
    check_invariants(queue.dump())
    assert [job.id for job in queue.claim("w2").jobs] == jobs[1:]


@pytest.mark.parametrize("deadline_s", [0.0, 1_000.0], ids=["late", "in time"])
@pytest.mark.parametrize("owner", ["", "a"])
def test_a_claim_takes_the_jobs_behind(queue: ModelQueue, client: redis.Redis, deadline_s: float, owner: str) -> None:
    gone, other = queue.submit(owner=owner, deadline_s=deadline_s), queue.submit(owner=owner)
    evict(client, gone)
    claim = queue.claim("w1")
    assert ([job.id for job in claim.jobs], claim.gone) == ([other], 1)
    check_invariants(queue.dump())


def test_a_claim_that_waits_for_company_is_not_held_up(queue: ModelQueue, client: redis.Redis) -> None:
    queue.leased("w2")
    gone, other = queue.submit(), queue.submit()
    evict(client, gone)
    assert [job.id for job in queue.claim("w1", enough=8, max_wait_s=60.0).jobs] == [other]


def test_a_suspect_and_a_shard_that_are_gone_are_passed_over(queue: ModelQueue, client: redis.Redis) -> None:
    crashed, after = queue.leased(), queue.submit()
    queue.crash(crashed)
    gone, shard = (queue.submit(call=Call.SHARD, priority=Priority.BULK) for _ in range(2))
    evict(client, crashed.id, gone)
    assert [job.id for job in queue.claim("w1").jobs] == [after]
    assert queue.take_shard("w1").id == shard
    check_invariants(queue.dump())


def test_a_sweep_goes_on_with_what_else_is_due(queue: ModelQueue, client: redis.Redis) -> None:
    retried, done, other = queue.leased(), queue.leased(result_ttl_s=0.0), queue.leased(result_ttl_s=0.0)
    queue.retry(retried)
    queue.finish(done)
    queue.finish(other)
    late, _ = queue.submit(deadline_s=0.0), queue.submit(deadline_s=0.0)
    evict(client, late, retried.id, done.id)
    report = queue.store.sweep("m")
    assert (report.expired, report.promoted, report.collected, report.gone) == (1, 0, 2, 2)
    check_invariants(queue.dump())


def test_reconcile_clears_what_is_left_and_counts_it(queue: ModelQueue, client: redis.Redis) -> None:
    leased, done = queue.leased("w1"), queue.leased("w1")
    queue.finish(done)
    waiting = queue.submit(owner="a")
    innocent = [queue.submit(), queue.submit(owner="a")]
    evict(client, waiting, leased.id, done.id)
    repair = queue.store.reconcile("m")
    assert (repair.gone, repair.orphans) == (3, 0)
    assert queue.store.stats("m").counters["gone"] == 3
    check_invariants(queue.dump())
    assert queue.store.reconcile("m").gone == 0
    assert {job.id for job in queue.claim("w1").jobs} == set(innocent)


def test_the_holder_of_a_job_that_is_gone_is_told_and_can_go_on(queue: ModelQueue, client: redis.Redis) -> None:
    gone, other = queue.leased(), queue.leased()
    evict(client, gone.id)
    assert queue.store.extend("m", "w1", lease_s=60.0, max_run_s=60.0).lost is False
    assert queue.finish(gone) is Settled.STALE
    assert queue.finish(other) is Settled.OK
    assert queue.store.extend("m", "w1", lease_s=60.0, max_run_s=0.0).lost is False
    assert queue.state(other.id) is JobState.SUCCEEDED


def test_the_event_of_a_job_that_is_gone_holds_up_no_other(queue: ModelQueue, client: redis.Redis) -> None:
    gone, other = ended(queue, owner="a"), ended(queue, owner="a")
    evict(client, gone)
    assert [event.id for event in Deliverer(queue).take()] == [other.serial]


def test_the_holder_of_the_event_of_a_job_that_is_gone_is_told_and_can_go_on(queue: ModelQueue, client: redis.Redis) -> None:
    gone, deliverer = ended(queue), Deliverer(queue)
    event = deliverer.take_one(lease_s=0.0)
    evict(client, gone)
    assert deliverer.settle(event) is EventSettled.STALE
    assert deliverer.outbox.take().next_in_s is None


def test_the_events_of_jobs_that_are_gone_do_not_count_against_their_owner(queue: ModelQueue, client: redis.Redis) -> None:
    one = Webhook(HOOK.url, max_undelivered=1)
    evict(client, queue.submit(owner="a", webhook=one))
    assert queue.put(queue.new(owner="a", webhook=one)).status is SubmitStatus.CREATED


def test_a_job_that_was_ended_by_functions_without_events_gets_its_event(queue: ModelQueue, client: redis.Redis) -> None:
    """While a deployment is renewed, workers of the version before end jobs that have a webhook."""
    job, deliverer = ended(queue, result_ttl_s=0.0), Deliverer(queue)
    client.hdel(f"ps:{{m}}:job:{job.serial}", "event", "event_number", "event_state", "event_since")
    assert [event.id for event in deliverer.take()] == []
    assert queue.store.sweep("m").collected == 0
    assert queue.store.reconcile("m").orphans == 1
    assert deliverer.take_one().event == "job.succeeded"
    check_invariants(queue.dump())


def test_figures_and_lists_are_told_without_it(queue: ModelQueue, client: redis.Redis) -> None:
    gone, other = queue.submit(), queue.submit()
    evict(client, gone)
    assert queue.store.stats("m").ready[0] == 2
    assert [job.id for job in queue.store.records(queue.store.newest("m"))] == [other]


LISTS = ("index:a", "inbox:a", "tagged:a", "tagged", "index:b", "tagged:b")


def listed(client: redis.Redis) -> dict[str, int]:
    return {name: client.zcard(f"ps:{{m}}:{name}") for name in LISTS}


@pytest.mark.parametrize("finder", ["reconcile", "sweep"])
def test_its_entries_leave_the_lists_of_owners_and_tags(queue: ModelQueue, client: redis.Redis, finder: str) -> None:
    """Only the record named its owner and tags: its entries stayed for ever, and each page of a list was shorter for them."""
    gone = [queue.leased(owner="a", tags=("x", "y")) for _ in range(6)]
    for job in gone[:3]:
        queue.fail(job)
    stays = [queue.submit(owner=owner, tags=("x",)) for owner in ("a", "b", "")]
    evict(client, *(job.id for job in gone))
    if finder == "sweep":
        queue.store.sweep("m", gone=["w1"])
    pages = [queue.store.reconcile("m", limit=4) for _ in range(40)]
    assert sum(page.gone for page in pages) == (6 if finder == "reconcile" else 3)
    assert listed(client) == {"index:a": 1, "inbox:a": 0, "tagged:a": 1, "tagged": 3, "index:b": 1, "tagged:b": 1}
    assert not client.exists("ps:{m}:strays")
    assert queue.store.newest("m", JobIndex.TAGGED, tag="x", limit=3) == stays[::-1]


def test_one_call_looks_at_no_more_entries_of_lists_than_records(queue: ModelQueue, client: redis.Redis) -> None:
    gone = [queue.submit(owner="a", tags=("x",)) for _ in range(30)]
    evict(client, *gone)
    left = [sum(listed(client).values())]
    while left[-1]:
        queue.store.reconcile("m", limit=10)
        left.append(sum(listed(client).values()))
    assert left[0] == 90
    assert all(0 <= before - after <= 10 for before, after in pairwise(left))


def walk(queue: ModelQueue, limit: int = 4) -> None:
    for _ in range(40):
        queue.store.reconcile("m", limit=limit)


def test_jobs_that_are_gone_do_not_count_as_open_for_ever(queue: ModelQueue, client: redis.Redis) -> None:
    """Only the record named the owner: each lost job took one from the owner's limit, so that after a month nothing passed."""
    done, held = queue.leased(owner="a"), queue.leased(owner="b")
    waits, delayed = queue.submit(owner="a"), queue.submit(owner="a", delay_s=60.0)
    queue.finish(done)
    lives = [queue.submit(owner=owner) for owner in ("a", "b")]
    evict(client, waits, delayed, done.id, held.id, queue.submit())
    walk(queue)
    stats = queue.store.stats("m")
    assert (stats.open, stats.planned) == ({"a": 1, "b": 1}, {})
    assert queue.put(queue.new(owner="a", max_open_jobs=2)).status is SubmitStatus.CREATED
    assert not client.exists("ps:{m}:lost", "ps:{m}:losing")
    assert queue.store.newest("m", JobIndex.ALL, owner="b") == lives[1:]


def test_a_job_that_is_gone_does_not_count_as_planned_although_others_are_delayed(
    queue: ModelQueue, client: redis.Redis
) -> None:
    # Regression: it was counted until nothing at all was delayed, and taken off the jobs that an owner has in line.
    gone, kept, _ = (queue.submit(owner="a", delay_s=60.0) for _ in range(3))
    queue.submit(delay_s=60.0)
    queue.submit(owner="a")
    retried = queue.take()
    queue.retry(retried, delay_s=60.0)
    evict(client, gone, retried.id)
    walk(queue, limit=100)
    stats = queue.store.stats("m")
    assert (stats.open, stats.planned) == ({"a": 2}, {"a": 2})
    queue.store.cancel(kept, owner="a")
    assert queue.store.stats("m").planned == {"a": 1}
    check_invariants(queue.dump())


def test_the_lists_of_an_owner_who_has_no_open_job_are_read_and_then_the_owner_is_forgotten(
    queue: ModelQueue, client: redis.Redis
) -> None:
    jobs = [queue.leased(owner="a", tags=("x",)) for _ in range(3)]
    for job in jobs:
        queue.fail(job)
    queue.submit(owner="b")
    assert queue.dump().open == {"b": 1}
    evict(client, *(job.id for job in jobs))
    walk(queue)
    assert (listed(client)["index:a"], listed(client)["inbox:a"], listed(client)["tagged:a"]) == (0, 0, 0)
    assert queue.dump().owners == {"b"}


def test_counts_without_a_job_are_trued_up(queue: ModelQueue, client: redis.Redis) -> None:
    client.hset("ps:{m}:planned", "a", 3)
    queue.store.reconcile("m")
    assert queue.store.stats("m").planned == {}


def test_a_job_of_which_nobody_knows_yet_that_it_is_gone_is_found_by_the_next_reading(
    queue: ModelQueue, client: redis.Redis
) -> None:
    for _ in range(4):
        queue.submit(delay_s=60.0)
    known, unknown = queue.leased("w1", owner="a"), queue.submit(owner="a")
    evict(client, known.id, unknown)
    queue.store.sweep("m", gone=["w1"])
    walk(queue)
    assert (queue.store.stats("m").open, listed(client)["index:a"]) == ({"a": 1}, 1)
    walk(queue, limit=100)
    assert (queue.store.stats("m").open.get("a", 0), listed(client)["index:a"]) == (0, 0)


def test_the_lists_of_an_ended_job_that_is_gone_are_cleared_when_a_sweep_collects_it(
    queue: ModelQueue, client: redis.Redis
) -> None:
    done = queue.leased(owner="a", tags=("x",), result_ttl_s=0.0)
    queue.finish(done)
    evict(client, done.id)
    assert queue.store.sweep("m").collected == 1
    walk(queue)
    assert listed(client) == dict.fromkeys(LISTS, 0)
    assert queue.store.stats("m").open.get("a", 0) == 0


def test_the_lists_are_left_alone_where_no_record_is_gone(queue: ModelQueue, client: redis.Redis) -> None:
    queue.submit(owner="a", tags=("x",))
    client.zadd("ps:{m}:tagged", {"x,00000000000000000000000000": 0})
    queue.store.reconcile("m")
    assert listed(client)["tagged"] == 2

"""Shards are jobs of many rows: they wait in a line of their own, are claimed singly, block nobody, and are never forgotten."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from penstock.broker.contract import CancelStatus, ReleaseReason
from penstock.broker.records import Settled, SubmitStatus
from penstock.broker.store.sync import RedisStore
from penstock.job import Call, JobState, Priority
from tests.contract.model_queue import ModelQueue
from tests.eventually import eventually


def test_shards_are_never_mixed_into_ordinary_batches(queue: ModelQueue) -> None:
    shard, bulk, job = queue.shard(), queue.bulk(), queue.submit()
    assert queue.place(shard) == "shards"
    claim = queue.claim()
    assert [taken.id for taken in claim.jobs] == [job, bulk]
    assert (claim.depth, claim.shards) == (0, 1)
    assert queue.claim(worker="w2").jobs == ()


def test_a_shard_is_taken_alone_and_only_by_who_asks_for_one(queue: ModelQueue) -> None:
    first, second = queue.shard(deadline_s=60.0), queue.shard(deadline_s=70.0)
    queue.submit()
    claim = queue.claim(shard=True)
    [taken] = claim.jobs
    assert (taken.id, taken.call, taken.priority, claim.reason) == (first, Call.SHARD, Priority.BULK, "bulk")
    assert (claim.depth, claim.shards) == (1, 1)
    assert queue.place(first) == "held:w1"
    assert queue.take_shard().id == second
    nothing = queue.claim(shard=True)
    assert (nothing.jobs, nothing.reason, nothing.retry_in_s, nothing.shards) == ((), "", None, 0)


def test_a_shard_is_bulk_whatever_was_said(queue: ModelQueue) -> None:
    shard = queue.submit(call=Call.SHARD, priority=Priority.INTERACTIVE)
    assert queue.read(shard).priority is Priority.BULK
    assert (queue.read(shard).call, queue.store.stats(queue.name).ready[9]) == (Call.SHARD, 1)


def test_a_claim_counts_the_shards_of_its_version(queue: ModelQueue) -> None:
    queue.shard()
    queue.shard(version="2")
    queue.submit(version="2")
    empty = queue.claim()
    assert (empty.jobs, empty.depth, empty.shards) == ((), 1, 1)
    assert queue.claim(shard=True).shards == 0
    assert queue.claim(shard=True).jobs == ()


def test_a_late_shard_ends_when_it_would_be_claimed(queue: ModelQueue) -> None:
    late, good = queue.shard(deadline_s=0.0), queue.shard()
    claim = queue.claim(shard=True)
    assert ([job.id for job in claim.jobs], claim.expired, [change.id for change in claim.changes]) == ([good], 1, [late])
    assert queue.state(late) is JobState.EXPIRED
    queue.shard(deadline_s=0.0)
    over = queue.claim(shard=True)
    assert (over.jobs, over.reason, over.expired, over.shards) == ((), "", 1, 0)


def test_a_late_shard_ends_also_when_nobody_claims_it(queue: ModelQueue) -> None:
    late = queue.shard(deadline_s=0.0)
    assert queue.store.sweep(queue.name).expired == 1
    assert queue.state(late) is JobState.EXPIRED


def test_a_waiting_shard_is_cancelled_at_once_and_a_running_one_is_asked(queue: ModelQueue) -> None:
    running, waiting = queue.shard(), queue.shard()
    taken = queue.take_shard()
    assert queue.store.cancel(waiting) is CancelStatus.CANCELLED
    assert queue.store.cancel(running) is CancelStatus.REQUESTED
    assert queue.finish(taken) is Settled.CANCELLED


def test_shards_of_all_owners_stand_in_one_line_and_count_for_their_quota(queue: ModelQueue) -> None:
    shards = [queue.shard(owner=owner) for owner in "aab"]
    assert queue.put(queue.new(owner="a", call=Call.SHARD, max_open_jobs=2)).status is SubmitStatus.QUOTA
    assert [queue.read(shard).position for shard in shards] == [0, 1, 2]
    assert queue.read(shards[2]).owner == "b"
    assert queue.dump().turns == {}
    assert [queue.take_shard().id for _ in shards] == shards


def test_a_shard_given_back_or_put_aside_stands_in_its_line_again(queue: ModelQueue) -> None:
    shard = queue.shard(owner="a")
    queue.release(queue.take_shard())
    assert queue.place(shard) == "shards"
    queue.retry(queue.take_shard())
    assert queue.place(shard) == "delayed"
    assert queue.store.sweep(queue.name).promoted == 1
    assert queue.place(shard) == "shards"
    assert queue.finish(queue.take_shard()) is Settled.OK


def test_the_shard_of_a_lost_worker_comes_back(queue: ModelQueue) -> None:
    shard = queue.shard()
    queue.take_shard(lease_s=0.0)
    assert queue.store.sweep(queue.name).requeued == 1
    assert queue.place(shard) == "shards"
    queue.take_shard(lease_s=0.0)
    queue.store.sweep(queue.name)
    assert queue.place(shard) == "solo"


def test_a_shard_that_crashed_a_child_comes_out_of_an_ordinary_claim_alone(queue: ModelQueue) -> None:
    shard = queue.shard()
    queue.crash(queue.take_shard())
    queue.submit()
    assert queue.place(shard) == "solo"
    assert queue.claim(shard=True).jobs == ()
    claim = queue.claim()
    assert ([(job.id, job.call) for job in claim.jobs], claim.reason) == ([(shard, Call.SHARD)], "solo")


def test_a_shard_that_took_too_long_is_taken_back(queue: ModelQueue) -> None:
    shard = queue.shard()
    queue.take_shard()
    assert queue.store.extend(queue.name, "w1", lease_s=60.0, max_run_s=0.0).overrun == (shard,)
    assert queue.place(shard) == "solo"


def test_a_shard_whose_rows_get_on_may_take_long(queue: ModelQueue) -> None:
    shard = queue.shard()
    queue.take_shard()
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        beat = queue.store.extend(queue.name, "w1", lease_s=60.0, max_run_s=0.1, progressed=[shard])
        assert (beat.lost, beat.overrun) == (False, ())
    eventually(lambda: queue.store.extend(queue.name, "w1", lease_s=60.0, max_run_s=0.1).overrun == (shard,))


def test_a_slot_with_shards_alone_is_idle(queue: ModelQueue) -> None:
    """If the slot did not count as idle, ordinary jobs would wait for a fuller batch for as long as a run lasts."""
    queue.shard()
    queue.take_shard("w1")
    queue.submit()
    assert queue.claim("w2", enough=3, max_wait_s=1_000.0).reason == "idle"
    queue.submit()
    assert queue.claim("w1", enough=3, max_wait_s=1_000.0).jobs == ()


def test_a_suspect_of_losses_runs_on_a_slot_that_holds_shards_alone(queue: ModelQueue) -> None:
    suspect = queue.submit()
    for _ in range(2):
        queue.take("w9", lease_s=0.0)
        queue.store.sweep(queue.name)
    queue.shard()
    queue.take_shard("w1")
    assert [job.id for job in queue.claim("w1").jobs] == [suspect]


def test_shards_do_not_take_the_turn_of_ordinary_bulk_jobs(queue: ModelQueue) -> None:
    queue.shard()
    for _ in range(20):
        queue.submit()
    assert {job.priority for _ in range(10) for job in queue.claim(limit=2).jobs} == {Priority.INTERACTIVE}
    assert queue.store.stats(queue.name).counters.get("bulk_turn", 0) == 0


def test_shards_count_where_all_that_waits_does(queue: ModelQueue) -> None:
    queue.shard()
    stats = queue.store.stats(queue.name)
    assert (stats.depth, stats.ready[9], queue.dump().tickets[9]) == (1, 1, 1)
    assert stats.oldest_age_s[9] >= 0.0
    assert queue.put(queue.new(), max_depth=1).status is SubmitStatus.FULL


def test_nothing_is_mended_while_shards_wait_and_run(queue: ModelQueue) -> None:
    for owner in ("", "a", "b"):
        queue.shard(owner=owner)
    queue.take_shard()
    repair = queue.store.reconcile(queue.name)
    assert (repair.scanned, repair.orphans, repair.tickets) == (3, 0, 0)


@pytest.mark.parametrize("reason", [ReleaseReason.DRAIN, ReleaseReason.UNSTARTED])
def test_a_shard_may_be_given_back_for_any_reason(queue: ModelQueue, reason: ReleaseReason) -> None:
    shard = queue.shard()
    assert queue.release(queue.take_shard(), reason) is Settled.OK
    assert (queue.place(shard), queue.read(shard).attempts) == ("shards", 0)


def wakes(queue: ModelQueue, *acts: Callable[[], object]) -> list[int]:
    """Return how often each act wakes the slots. The oracle wakes nobody."""
    if not isinstance(queue.store, RedisStore):
        pytest.skip("the oracle has no wake-ups")
    client, channel = queue.store._redis, f"ps:{{{queue.name}}}:wake"
    counts = []
    with client.pubsub() as heard:
        heard.ssubscribe(channel)
        heard.get_message(timeout=5.0)  # this first message says that the subscription is in place
        for act in acts:
            act()
            client.execute_command("SPUBLISH", channel, "end")
            words = iter(lambda: eventually(lambda: heard.get_message(timeout=1.0))["data"], b"end")
            counts.append(sum(1 for _ in words))
    return counts


def test_a_new_shard_wakes_slots_that_wait_for_more(queue: ModelQueue) -> None:
    queue.leased("w1")
    queue.submit()
    assert queue.claim("w2", enough=4, max_wait_s=1_000.0).jobs == ()
    assert wakes(queue, queue.shard, queue.shard) == [1, 1]


def test_a_slot_that_waits_for_more_jobs_is_not_woken_because_shards_stand_in_line(queue: ModelQueue) -> None:
    queue.leased("w1")
    queue.submit()
    for _ in range(5):
        queue.shard()
    assert queue.claim("w2", enough=4, max_wait_s=1_000.0).jobs == ()
    assert wakes(queue, queue.submit, queue.submit, queue.submit) == [0, 0, 1]


def test_a_shard_that_comes_back_wakes_slots(queue: ModelQueue) -> None:
    queue.shard()
    taken = queue.take_shard()
    assert queue.claim("w2", shard=True).jobs == ()
    assert wakes(queue, lambda: queue.release(taken)) == [1]


def test_who_asks_for_a_shard_in_vain_asks_for_no_wake_up(queue: ModelQueue) -> None:
    assert queue.claim(shard=True).jobs == ()
    assert wakes(queue, queue.submit) == [0]

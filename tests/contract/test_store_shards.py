"""Shards: jobs of many rows in a line of their own, claimed one by one, in no one's way and never forgotten."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from penstock.broker.contract import CancelStatus, ReleaseReason
from penstock.broker.records import Settled, SubmitStatus
from penstock.broker.store.sync import RedisStore
from penstock.job import Call, JobState, Priority
from tests.contract.desk import Desk
from tests.eventually import eventually


def test_shards_are_never_mixed_into_ordinary_batches(desk: Desk) -> None:
    shard, bulk, job = desk.shard(), desk.bulk(), desk.submit()
    assert desk.place(shard) == "shards"
    claim = desk.claim()
    assert [taken.id for taken in claim.jobs] == [job, bulk]
    assert (claim.depth, claim.shards) == (0, 1)
    assert desk.claim(worker="w2").jobs == ()


def test_a_shard_is_taken_alone_and_only_by_who_asks_for_one(desk: Desk) -> None:
    first, second = desk.shard(deadline_s=60.0), desk.shard(deadline_s=70.0)
    desk.submit()
    claim = desk.claim(shard=True)
    [taken] = claim.jobs
    assert (taken.id, taken.call, taken.priority, claim.reason) == (first, Call.SHARD, Priority.BULK, "bulk")
    assert (claim.depth, claim.shards) == (1, 1)
    assert desk.place(first) == "held:w1"
    assert desk.take_shard().id == second
    nothing = desk.claim(shard=True)
    assert (nothing.jobs, nothing.reason, nothing.retry_in_s, nothing.shards) == ((), "", None, 0)


def test_a_shard_is_bulk_whatever_was_said(desk: Desk) -> None:
    shard = desk.submit(call=Call.SHARD, priority=Priority.INTERACTIVE)
    assert desk.read(shard).priority is Priority.BULK
    assert (desk.read(shard).call, desk.store.stats(desk.model).ready[9]) == (Call.SHARD, 1)


def test_a_claim_counts_the_shards_of_its_version(desk: Desk) -> None:
    desk.shard()
    desk.shard(version="2")
    desk.submit(version="2")
    empty = desk.claim()
    assert (empty.jobs, empty.depth, empty.shards) == ((), 1, 1)
    assert desk.claim(shard=True).shards == 0
    assert desk.claim(shard=True).jobs == ()


def test_a_late_shard_ends_when_it_would_be_claimed(desk: Desk) -> None:
    late, good = desk.shard(deadline_s=0.0), desk.shard()
    claim = desk.claim(shard=True)
    assert ([job.id for job in claim.jobs], claim.expired, [change.id for change in claim.changes]) == ([good], 1, [late])
    assert desk.state(late) is JobState.EXPIRED
    desk.shard(deadline_s=0.0)
    over = desk.claim(shard=True)
    assert (over.jobs, over.reason, over.expired, over.shards) == ((), "", 1, 0)


def test_a_late_shard_ends_also_when_nobody_claims_it(desk: Desk) -> None:
    late = desk.shard(deadline_s=0.0)
    assert desk.store.sweep(desk.model).expired == 1
    assert desk.state(late) is JobState.EXPIRED


def test_a_waiting_shard_is_cancelled_at_once_and_a_running_one_is_asked(desk: Desk) -> None:
    running, waiting = desk.shard(), desk.shard()
    taken = desk.take_shard()
    assert desk.store.cancel(waiting) is CancelStatus.CANCELLED
    assert desk.store.cancel(running) is CancelStatus.REQUESTED
    assert desk.finish(taken) is Settled.CANCELLED


def test_shards_of_all_owners_stand_in_one_line_and_count_for_their_quota(desk: Desk) -> None:
    shards = [desk.shard(owner=owner) for owner in "aab"]
    assert desk.put(desk.new(owner="a", call=Call.SHARD, max_open_jobs=2)).status is SubmitStatus.QUOTA
    assert [desk.read(shard).position for shard in shards] == [0, 1, 2]
    assert desk.read(shards[2]).owner == "b"
    assert desk.dump().turns == {}
    assert [desk.take_shard().id for _ in shards] == shards


def test_a_shard_given_back_or_put_aside_stands_in_its_line_again(desk: Desk) -> None:
    shard = desk.shard(owner="a")
    desk.release(desk.take_shard())
    assert desk.place(shard) == "shards"
    desk.retry(desk.take_shard())
    assert desk.place(shard) == "delayed"
    assert desk.store.sweep(desk.model).promoted == 1
    assert desk.place(shard) == "shards"
    assert desk.finish(desk.take_shard()) is Settled.OK


def test_the_shard_of_a_lost_worker_comes_back(desk: Desk) -> None:
    shard = desk.shard()
    desk.take_shard(lease_s=0.0)
    assert desk.store.sweep(desk.model).requeued == 1
    assert desk.place(shard) == "shards"
    desk.take_shard(lease_s=0.0)
    desk.store.sweep(desk.model)
    assert desk.place(shard) == "solo"


def test_a_shard_that_crashed_a_child_comes_out_of_an_ordinary_claim_alone(desk: Desk) -> None:
    shard = desk.shard()
    desk.crash(desk.take_shard())
    desk.submit()
    assert desk.place(shard) == "solo"
    assert desk.claim(shard=True).jobs == ()
    claim = desk.claim()
    assert ([(job.id, job.call) for job in claim.jobs], claim.reason) == ([(shard, Call.SHARD)], "solo")


def test_a_shard_that_took_too_long_is_taken_back(desk: Desk) -> None:
    shard = desk.shard()
    desk.take_shard()
    assert desk.store.extend(desk.model, "w1", lease_s=60.0, max_run_s=0.0).overrun == (shard,)
    assert desk.place(shard) == "solo"


def test_a_shard_whose_rows_get_on_may_take_long(desk: Desk) -> None:
    shard = desk.shard()
    desk.take_shard()
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        beat = desk.store.extend(desk.model, "w1", lease_s=60.0, max_run_s=0.1, progressed=[shard])
        assert (beat.lost, beat.overrun) == (False, ())
    eventually(lambda: desk.store.extend(desk.model, "w1", lease_s=60.0, max_run_s=0.1).overrun == (shard,))


def test_only_a_shard_gets_more_time(desk: Desk) -> None:
    job = desk.leased()
    eventually(
        lambda: desk.store.extend(desk.model, "w1", lease_s=60.0, max_run_s=0.01, progressed=[job.id]).overrun == (job.id,)
    )


def test_a_slot_with_shards_alone_is_idle(desk: Desk) -> None:
    """Ordinary jobs would else wait for company for as long as a run lasts."""
    desk.shard()
    desk.take_shard("w1")
    desk.submit()
    assert desk.claim("w2", enough=3, max_wait_s=1_000.0).reason == "idle"
    desk.submit()
    assert desk.claim("w1", enough=3, max_wait_s=1_000.0).jobs == ()


def test_a_suspect_of_losses_runs_on_a_slot_that_holds_shards_alone(desk: Desk) -> None:
    suspect = desk.submit()
    for _ in range(2):
        desk.take("w9", lease_s=0.0)
        desk.store.sweep(desk.model)
    desk.shard()
    desk.take_shard("w1")
    assert [job.id for job in desk.claim("w1").jobs] == [suspect]


def test_shards_do_not_take_the_turn_of_ordinary_bulk_jobs(desk: Desk) -> None:
    desk.shard()
    for _ in range(20):
        desk.submit()
    assert {job.priority for _ in range(10) for job in desk.claim(limit=2).jobs} == {Priority.INTERACTIVE}
    assert desk.store.stats(desk.model).counters.get("bulk_turn", 0) == 0


def test_shards_count_where_all_that_waits_does(desk: Desk) -> None:
    desk.shard()
    stats = desk.store.stats(desk.model)
    assert (stats.depth, stats.ready[9], desk.dump().tickets[9]) == (1, 1, 1)
    assert stats.oldest_age_s[9] >= 0.0
    assert desk.put(desk.new(), max_depth=1).status is SubmitStatus.FULL


def test_nothing_is_mended_while_shards_wait_and_run(desk: Desk) -> None:
    for owner in ("", "a", "b"):
        desk.shard(owner=owner)
    desk.take_shard()
    repair = desk.store.reconcile(desk.model)
    assert (repair.scanned, repair.orphans, repair.tickets) == (3, 0, 0)


@pytest.mark.parametrize("reason", [ReleaseReason.DRAIN, ReleaseReason.TOO_BIG])
def test_a_shard_may_be_given_back_for_any_reason(desk: Desk, reason: ReleaseReason) -> None:
    shard = desk.shard()
    assert desk.release(desk.take_shard(), reason) is Settled.OK
    assert (desk.place(shard), desk.read(shard).attempts) == ("shards", 0)


def wakes(desk: Desk, *acts: Callable[[], object]) -> list[int]:
    """How often slots are woken by each. The memory store wakes nobody."""
    if not isinstance(desk.store, RedisStore):
        pytest.skip("the memory store has no wake-ups")
    client, channel = desk.store._redis, f"ps:{{{desk.model}}}:wake"
    counts = []
    with client.pubsub() as heard:
        heard.subscribe(channel)
        heard.get_message(timeout=5.0)  # the subscription stands
        for act in acts:
            act()
            client.publish(channel, "end")
            words = iter(lambda: eventually(lambda: heard.get_message(timeout=1.0))["data"], b"end")
            counts.append(sum(1 for _ in words))
    return counts


def test_a_new_shard_wakes_slots_that_wait_for_more(desk: Desk) -> None:
    desk.leased("w1")
    desk.submit()
    assert desk.claim("w2", enough=4, max_wait_s=1_000.0).jobs == ()
    assert wakes(desk, desk.shard, desk.shard) == [1, 1]


def test_a_slot_that_waits_for_more_jobs_is_not_woken_because_shards_stand_in_line(desk: Desk) -> None:
    desk.leased("w1")
    desk.submit()
    for _ in range(5):
        desk.shard()
    assert desk.claim("w2", enough=4, max_wait_s=1_000.0).jobs == ()
    assert wakes(desk, desk.submit, desk.submit, desk.submit) == [0, 0, 1]


def test_a_shard_that_comes_back_wakes_slots(desk: Desk) -> None:
    desk.shard()
    taken = desk.take_shard()
    assert desk.claim("w2", shard=True).jobs == ()
    assert wakes(desk, lambda: desk.release(taken)) == [1]


def test_who_asks_for_a_shard_in_vain_asks_for_no_wake_up(desk: Desk) -> None:
    assert desk.claim(shard=True).jobs == ()
    assert wakes(desk, desk.submit) == [0]

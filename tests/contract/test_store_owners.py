"""Owners: how many jobs one owner may have under way, and what the store remembers of an owner's collected job."""

from __future__ import annotations

from penstock.broker.contract import CancelStatus, ReleaseReason
from penstock.broker.records import SubmitStatus
from penstock.job import JobState
from tests.contract.model_queue import ModelQueue


def test_an_owner_at_its_quota_is_refused_and_others_are_not(queue: ModelQueue) -> None:
    for _ in range(2):
        assert queue.put(queue.new(owner="a", max_open_jobs=2)).status is SubmitStatus.CREATED
    assert queue.put(queue.new(owner="a", max_open_jobs=2)).status is SubmitStatus.QUOTA
    assert queue.put(queue.new(owner="b", max_open_jobs=2)).status is SubmitStatus.CREATED
    assert queue.put(queue.new()).status is SubmitStatus.CREATED
    assert queue.store.stats(queue.name).accepted == 4


def test_a_quota_counts_within_one_call_too(queue: ModelQueue) -> None:
    jobs = [queue.new(owner="a", max_open_jobs=3) for _ in range(5)]
    assert [answer.status for answer in queue.store.submit(jobs)] == [SubmitStatus.CREATED] * 3 + [SubmitStatus.QUOTA] * 2


def test_every_way_to_an_end_frees_a_place(queue: ModelQueue) -> None:
    finished, failed, dead = (queue.leased(owner="a", max_crashes=1) for _ in range(3))
    cancelled = queue.submit(owner="a")
    expired = queue.submit(owner="a", deadline_s=0.0)
    assert queue.put(queue.new(owner="a", max_open_jobs=5)).status is SubmitStatus.QUOTA
    queue.finish(finished)
    queue.fail(failed)
    queue.release(dead, reason=ReleaseReason.CRASHED)
    queue.store.cancel(cancelled, owner="a")
    queue.store.sweep(queue.name)
    ends = [queue.read(job).state for job in (finished.id, failed.id, dead.id, cancelled, expired)]
    assert ends == [JobState.SUCCEEDED, JobState.FAILED, JobState.DEAD, JobState.CANCELLED, JobState.EXPIRED]
    answers = [queue.put(queue.new(owner="a", max_open_jobs=5)).status for _ in range(6)]
    assert answers == [SubmitStatus.CREATED] * 5 + [SubmitStatus.QUOTA]


def test_a_job_that_goes_back_to_the_queue_still_counts(queue: ModelQueue) -> None:
    job = queue.leased(owner="a")
    queue.release(job, reason=ReleaseReason.DRAIN)
    assert queue.put(queue.new(owner="a", max_open_jobs=1)).status is SubmitStatus.QUOTA


def test_the_first_job_of_a_key_is_found_at_the_quota(queue: ModelQueue) -> None:
    first = queue.submit(owner="a", idempotency_key="k", fingerprint="f", max_open_jobs=1)
    again = queue.put(queue.new(owner="a", idempotency_key="k", fingerprint="f", max_open_jobs=1))
    assert (again.status, again.id) == (SubmitStatus.EXISTING, first)


def test_a_collected_job_is_remembered_with_its_owner(queue: ModelQueue) -> None:
    mine = queue.leased(owner="a", result_ttl_s=0.0)
    nobodys = queue.leased(result_ttl_s=0.0)
    assert queue.store.collected_owner(mine.id) is None
    queue.finish(mine)
    queue.finish(nobodys)
    queue.store.sweep(queue.name)
    assert queue.store.collected_owner(mine.id) == "a"
    assert queue.store.collected_owner(nobodys.id) == ""
    assert queue.store.cancel(mine.id, owner="a") is CancelStatus.MISSING


def test_nothing_is_kept_of_an_owner_whose_jobs_have_ended_and_were_collected(queue: ModelQueue) -> None:
    # Regression: each owner that ever came left an entry of 0 for ever, and each reading of the queue's figures sent them all.
    owners = [f"owner-{number}" for number in range(20)]
    for owner in owners:
        queue.finish(queue.leased(owner=owner, result_ttl_s=0.0))
        queue.store.cancel(queue.submit(owner=owner, delay_s=60.0, result_ttl_s=0.0), owner=owner)
    stays = queue.submit(owner="stays")
    dump = queue.dump()
    assert (dump.open, dump.planned, dump.owners) == ({"stays": 1}, {}, {*owners, "stays"})
    assert queue.store.sweep(queue.name).collected == 40
    assert queue.dump().owners == {"stays"}
    queue.store.cancel(stays, owner="stays")
    assert queue.dump().open == {}


def test_an_owner_with_a_job_left_is_known_until_it_is_collected(queue: ModelQueue) -> None:
    first, second = (queue.leased(owner="a", result_ttl_s=ttl_s) for ttl_s in (0.0, 1_000.0))
    queue.finish(first)
    queue.finish(second)
    assert queue.store.sweep(queue.name).collected == 1
    assert (queue.dump().open, queue.dump().owners) == ({}, {"a"})
    queue.submit(owner="a")
    assert queue.dump().open == {"a": 1}

"""Owners: how many jobs one of them may have under way, and what is left of a collected one."""

from __future__ import annotations

from penstock.broker.contract import CancelStatus, ReleaseReason
from penstock.broker.records import SubmitStatus
from penstock.job import JobState
from tests.contract.desk import Desk


def test_an_owner_at_its_quota_is_refused_and_others_are_not(desk: Desk) -> None:
    for _ in range(2):
        assert desk.put(desk.new(owner="a", max_open_jobs=2)).status is SubmitStatus.CREATED
    assert desk.put(desk.new(owner="a", max_open_jobs=2)).status is SubmitStatus.QUOTA
    assert desk.put(desk.new(owner="b", max_open_jobs=2)).status is SubmitStatus.CREATED
    assert desk.put(desk.new()).status is SubmitStatus.CREATED
    assert desk.store.stats(desk.model).accepted == 4


def test_a_quota_counts_within_one_call_too(desk: Desk) -> None:
    jobs = [desk.new(owner="a", max_open_jobs=3) for _ in range(5)]
    assert [answer.status for answer in desk.store.submit(jobs)] == [SubmitStatus.CREATED] * 3 + [SubmitStatus.QUOTA] * 2


def test_every_way_to_an_end_frees_a_place(desk: Desk) -> None:
    finished, failed, dead = (desk.leased(owner="a", max_crashes=1) for _ in range(3))
    cancelled = desk.submit(owner="a")
    expired = desk.submit(owner="a", deadline_s=0.0)
    assert desk.put(desk.new(owner="a", max_open_jobs=5)).status is SubmitStatus.QUOTA
    desk.finish(finished)
    desk.fail(failed)
    desk.release(dead, reason=ReleaseReason.CRASHED)
    desk.store.cancel(cancelled, owner="a")
    desk.store.sweep(desk.model)
    ends = [desk.read(job).state for job in (finished.id, failed.id, dead.id, cancelled, expired)]
    assert ends == [JobState.SUCCEEDED, JobState.FAILED, JobState.DEAD, JobState.CANCELLED, JobState.EXPIRED]
    answers = [desk.put(desk.new(owner="a", max_open_jobs=5)).status for _ in range(6)]
    assert answers == [SubmitStatus.CREATED] * 5 + [SubmitStatus.QUOTA]


def test_a_job_that_goes_back_to_the_queue_still_counts(desk: Desk) -> None:
    job = desk.leased(owner="a")
    desk.release(job, reason=ReleaseReason.DRAIN)
    assert desk.put(desk.new(owner="a", max_open_jobs=1)).status is SubmitStatus.QUOTA


def test_the_first_job_of_a_key_is_found_at_the_quota(desk: Desk) -> None:
    first = desk.submit(owner="a", idempotency_key="k", fingerprint="f", max_open_jobs=1)
    again = desk.put(desk.new(owner="a", idempotency_key="k", fingerprint="f", max_open_jobs=1))
    assert (again.status, again.id) == (SubmitStatus.EXISTING, first)


def test_a_collected_job_is_remembered_with_its_owner(desk: Desk) -> None:
    mine = desk.leased(owner="a", result_ttl_s=0.0)
    nobodys = desk.leased(result_ttl_s=0.0)
    assert desk.store.collected_owner(mine.id) is None
    desk.finish(mine)
    desk.finish(nobodys)
    desk.store.sweep(desk.model)
    assert desk.store.collected_owner(mine.id) == "a"
    assert desk.store.collected_owner(nobodys.id) == ""
    assert desk.store.cancel(mine.id, owner="a") is CancelStatus.MISSING

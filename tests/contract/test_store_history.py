"""What a record keeps of a job's way: how many stood before it, its attempts, its trace; what a step tells of others' ends."""

from __future__ import annotations

import time
from itertools import pairwise

from penstock.broker.contract import ReleaseReason
from penstock.broker.memory.model_queue import PAST_FIRST, PAST_LAST
from penstock.broker.records import Ending
from penstock.job import JobState, Priority
from penstock.job_id import JobId
from tests.contract.desk import OUTPUT, Desk
from tests.eventually import eventually

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def ends(desk: Desk, job: JobId) -> list[tuple[int, str]]:
    return [(tried.number, tried.end) for tried in desk.read(job).tries]


def test_a_job_knows_how_many_stood_before_it(desk: Desk) -> None:
    ids = [desk.submit() for _ in range(3)]
    assert [desk.read(id).queued_behind for id in ids] == [0, 1, 2]


def test_jobs_of_one_submit_stand_behind_each_other(desk: Desk) -> None:
    desk.submit()
    new = [desk.new() for _ in range(3)]
    desk.store.submit(new)
    assert [desk.read(job.id).queued_behind for job in new] == [1, 2, 3]


def test_only_those_that_go_first_stand_before_a_job(desk: Desk) -> None:
    bulk = desk.bulk()
    desk.submit(deadline_s=60.0)
    urgent = desk.submit(deadline_s=5.0)
    last = desk.bulk()
    assert [desk.read(id).queued_behind for id in (bulk, urgent, last)] == [0, 0, 3]


def test_a_job_that_was_never_claimed_has_no_attempts(desk: Desk) -> None:
    job = desk.submit(priority=Priority.BULK)
    desk.store.cancel(job)
    assert desk.read(job).tries == ()


def test_the_attempt_under_way_is_open_and_the_one_that_ended_the_job_tells_how(desk: Desk) -> None:
    job = desk.leased()
    [running] = desk.read(job.id).tries
    assert (running.number, running.worker, running.batch, running.ended_at, running.end) == (1, "w1", "nonce0", None, "")
    desk.finish(job)
    [ended] = desk.read(job.id).tries
    assert (ended.end, ended.ended_at) == ("succeeded", desk.read(job.id).finished_at)


def test_every_way_out_of_an_attempt_is_noted(desk: Desk) -> None:
    job = desk.leased()
    desk.release(job)
    desk.retry(desk.take(), delay_s=0.0)
    desk.store.sweep(desk.model)
    desk.take("w2")
    desk.store.sweep(desk.model, gone=["w2"])
    desk.crash(desk.take())
    desk.fail(desk.take())
    how = ["released", "retried", "worker_lost", "crashed", "failed"]
    assert ends(desk, job.id) == list(enumerate(how, 1))
    tries = desk.read(job.id).tries
    assert [tried.worker for tried in tries] == ["w1", "w1", "w2", "w1", "w1"]
    assert all((before.ended_at or 0.0) <= after.claimed_at for before, after in pairwise(tries))


def test_the_delay_of_a_retry_is_noted(desk: Desk) -> None:
    job = desk.leased()
    desk.retry(job, delay_s=12.5)
    assert [tried.delay_s for tried in desk.read(job.id).tries] == [12.5]


def test_a_job_given_up_after_a_crash_has_that_attempt_once(desk: Desk) -> None:
    job = desk.leased(max_crashes=1)
    desk.crash(job)
    assert desk.state(job.id) is JobState.DEAD
    assert ends(desk, job.id) == [(1, "crashed")]


def test_the_last_retry_that_was_allowed_ends_the_job_as_failed(desk: Desk) -> None:
    job = desk.leased(max_attempts=1)
    desk.retry(job)
    assert ends(desk, job.id) == [(1, "failed")]


def test_a_job_that_expires_with_its_worker_has_lost_that_attempt(desk: Desk) -> None:
    job = desk.leased(deadline_s=0.5)
    eventually(lambda: time.time() > job.deadline_at)
    desk.store.sweep(desk.model, gone=["w1"])
    assert ends(desk, job.id) == [(1, "worker_lost")]
    assert desk.state(job.id) is JobState.EXPIRED


def test_of_many_attempts_the_first_and_the_last_are_kept_and_the_others_summed_up(desk: Desk) -> None:
    job = desk.leased()
    for _ in range(PAST_FIRST + PAST_LAST + 3):
        desk.release(job)
        job = desk.take()
    record = desk.read(job.id)
    numbers = [tried.number for tried in record.tries]
    assert numbers == [1, 2, 3, *range(PAST_FIRST + 4, PAST_FIRST + PAST_LAST + 5)]
    assert record.left_out.count == 3
    assert record.left_out.spent_s >= 0.0


def test_a_place_in_the_batch_is_noted(desk: Desk) -> None:
    jobs = [desk.submit() for _ in range(3)]
    claimed = desk.claim().jobs
    desk.finish_all([Ending(job.id, job.token, JobState.SUCCEEDED, output=OUTPUT) for job in claimed])
    batches = [desk.read(id).batch for id in jobs]
    assert [batch and batch.place for batch in batches] == [1, 2, 3]


def test_a_trace_goes_with_the_job_to_its_worker_and_its_readers(desk: Desk) -> None:
    job = desk.leased(trace=f"{TRACE} a=1,b=2")
    assert job.trace == f"{TRACE} a=1,b=2"
    assert desk.read(job.id).trace == job.trace
    assert desk.leased().trace == ""


def test_a_sweep_names_the_jobs_it_took_back_with_the_batch_they_were_in(desk: Desk) -> None:
    job = desk.leased("w2", trace=TRACE)
    [change] = desk.store.sweep(desk.model, gone=["w2"]).changes
    assert (change.event, change.id, change.version, change.worker, change.batch) == ("lost", job.id, "1", "w2", "nonce0")
    assert change.trace == TRACE


def test_a_sweep_names_the_jobs_it_ended(desk: Desk) -> None:
    cancelled = desk.leased("w2", deadline_s=5.0)
    desk.store.cancel(cancelled.id)
    waiting = desk.submit(deadline_s=0.0)
    told = {(change.event, change.id, change.state) for change in desk.store.sweep(desk.model, gone=["w2"]).changes}
    assert told == {
        ("finished", waiting, JobState.EXPIRED),
        ("lost", cancelled.id, JobState.LEASED),
        ("finished", cancelled.id, JobState.CANCELLED),
    }


def test_a_claim_names_the_jobs_that_were_too_late(desk: Desk) -> None:
    late, good = desk.submit(deadline_s=0.0), desk.submit()
    claim = desk.claim()
    assert [job.id for job in claim.jobs] == [good]
    assert [(change.event, change.id, change.state) for change in claim.changes] == [("finished", late, JobState.EXPIRED)]


def test_what_the_holder_settles_is_told_to_nobody_else(desk: Desk) -> None:
    desk.finish(desk.leased())
    desk.release(desk.leased(), ReleaseReason.CRASHED)
    assert desk.store.sweep(desk.model).changes == ()

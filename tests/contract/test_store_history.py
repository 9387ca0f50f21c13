"""What a record keeps of a job's history (jobs ahead of it, attempts, trace), and which jobs a sweep or a claim reports."""

from __future__ import annotations

import time
from itertools import pairwise

from penstock.broker.contract import ReleaseReason
from penstock.broker.records import Ending
from penstock.job import JobId, JobState, Priority
from tests.contract.model_queue import OUTPUT, ModelQueue
from tests.eventually import eventually
from tests.oracle.record import PAST_FIRST, PAST_LAST

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def ends(queue: ModelQueue, job: JobId) -> list[tuple[int, str]]:
    return [(tried.number, tried.end) for tried in queue.read(job).tries]


def test_a_job_knows_how_many_stood_before_it(queue: ModelQueue) -> None:
    ids = [queue.submit() for _ in range(3)]
    assert [queue.read(id).queued_behind for id in ids] == [0, 1, 2]


def test_jobs_of_one_submit_stand_behind_each_other(queue: ModelQueue) -> None:
    queue.submit()
    new = [queue.new() for _ in range(3)]
    queue.store.submit(new)
    assert [queue.read(job.id).queued_behind for job in new] == [1, 2, 3]


def test_only_those_that_go_first_stand_before_a_job(queue: ModelQueue) -> None:
    bulk = queue.bulk()
    queue.submit(deadline_s=60.0)
    urgent = queue.submit(deadline_s=5.0)
    last = queue.bulk()
    assert [queue.read(id).queued_behind for id in (bulk, urgent, last)] == [0, 0, 3]


def test_a_job_that_was_never_claimed_has_no_attempts(queue: ModelQueue) -> None:
    job = queue.submit(priority=Priority.BULK)
    queue.store.cancel(job)
    assert queue.read(job).tries == ()


def test_the_attempt_under_way_is_open_and_the_one_that_ended_the_job_tells_how(queue: ModelQueue) -> None:
    job = queue.leased()
    [running] = queue.read(job.id).tries
    assert (running.number, running.worker, running.batch, running.ended_at, running.end) == (1, "w1", "nonce0", None, "")
    queue.finish(job)
    [ended] = queue.read(job.id).tries
    assert (ended.end, ended.ended_at) == ("succeeded", queue.read(job.id).finished_at)


def test_every_way_out_of_an_attempt_is_noted(queue: ModelQueue) -> None:
    job = queue.leased()
    queue.release(job)
    queue.retry(queue.take(), delay_s=0.0)
    queue.store.sweep(queue.name)
    queue.take("w2")
    queue.store.sweep(queue.name, gone=["w2"])
    queue.crash(queue.take())
    queue.fail(queue.take())
    how = ["released", "retried", "worker_lost", "crashed", "failed"]
    assert ends(queue, job.id) == list(enumerate(how, 1))
    tries = queue.read(job.id).tries
    assert [tried.worker for tried in tries] == ["w1", "w1", "w2", "w1", "w1"]
    assert all((before.ended_at or 0.0) <= after.claimed_at for before, after in pairwise(tries))


def test_the_delay_of_a_retry_is_noted(queue: ModelQueue) -> None:
    job = queue.leased()
    queue.retry(job, delay_s=12.5)
    assert [tried.delay_s for tried in queue.read(job.id).tries] == [12.5]


def test_a_job_given_up_after_a_crash_has_that_attempt_once(queue: ModelQueue) -> None:
    job = queue.leased(max_crashes=1)
    queue.crash(job)
    assert queue.state(job.id) is JobState.DEAD
    assert ends(queue, job.id) == [(1, "crashed")]


def test_the_last_retry_that_was_allowed_ends_the_job_as_failed(queue: ModelQueue) -> None:
    job = queue.leased(max_attempts=1)
    queue.retry(job)
    assert ends(queue, job.id) == [(1, "failed")]


def test_a_job_that_expires_with_its_worker_has_lost_that_attempt(queue: ModelQueue) -> None:
    job = queue.leased(deadline_s=0.5)
    eventually(lambda: time.time() > job.deadline_at)
    queue.store.sweep(queue.name, gone=["w1"])
    assert ends(queue, job.id) == [(1, "worker_lost")]
    assert queue.state(job.id) is JobState.EXPIRED


def test_of_many_attempts_the_first_and_the_last_are_kept_and_the_others_summed_up(queue: ModelQueue) -> None:
    job = queue.leased()
    for _ in range(PAST_FIRST + PAST_LAST + 3):
        queue.release(job)
        job = queue.take()
    record = queue.read(job.id)
    numbers = [tried.number for tried in record.tries]
    assert numbers == [1, 2, 3, *range(PAST_FIRST + 4, PAST_FIRST + PAST_LAST + 5)]
    assert record.left_out.count == 3
    assert record.left_out.spent_s >= 0.0


def test_a_place_in_the_batch_is_noted(queue: ModelQueue) -> None:
    jobs = [queue.submit() for _ in range(3)]
    claimed = queue.claim().jobs
    queue.finish_all([Ending(job.id, job.token, JobState.SUCCEEDED, output=OUTPUT) for job in claimed])
    batches = [queue.read(id).batch for id in jobs]
    assert [batch and batch.place for batch in batches] == [1, 2, 3]


def test_a_trace_goes_with_the_job_to_its_worker_and_its_readers(queue: ModelQueue) -> None:
    job = queue.leased(trace=f"{TRACE} a=1,b=2")
    assert job.trace == f"{TRACE} a=1,b=2"
    assert queue.read(job.id).trace == job.trace
    assert queue.leased().trace == ""


def test_a_sweep_names_the_jobs_it_took_back_with_the_batch_they_were_in(queue: ModelQueue) -> None:
    job = queue.leased("w2", trace=TRACE)
    [change] = queue.store.sweep(queue.name, gone=["w2"]).changes
    assert (change.event, change.id, change.version, change.worker, change.batch) == ("lost", job.id, "1", "w2", "nonce0")
    assert change.trace == TRACE


def test_a_sweep_names_the_jobs_it_ended(queue: ModelQueue) -> None:
    cancelled = queue.leased("w2", deadline_s=5.0)
    queue.store.cancel(cancelled.id)
    waiting = queue.submit(deadline_s=0.0)
    told = {(change.event, change.id, change.state) for change in queue.store.sweep(queue.name, gone=["w2"]).changes}
    assert told == {
        ("finished", waiting, JobState.EXPIRED),
        ("lost", cancelled.id, JobState.LEASED),
        ("finished", cancelled.id, JobState.CANCELLED),
    }


def test_a_claim_names_the_jobs_that_were_too_late(queue: ModelQueue) -> None:
    late, good = queue.submit(deadline_s=0.0), queue.submit()
    claim = queue.claim()
    assert [job.id for job in claim.jobs] == [good]
    assert [(change.event, change.id, change.state) for change in claim.changes] == [("finished", late, JobState.EXPIRED)]


def test_what_the_holder_settles_is_told_to_nobody_else(queue: ModelQueue) -> None:
    queue.finish(queue.leased())
    queue.release(queue.leased(), ReleaseReason.CRASHED)
    assert queue.store.sweep(queue.name).changes == ()

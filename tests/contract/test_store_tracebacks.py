"""Tracebacks that a worker keeps with a failed attempt: shown until another attempt or the job's end says otherwise."""

from __future__ import annotations

from penstock.broker.records import ClaimedJob, Ending, GiveBack, Settled
from penstock.job import JobId, JobState
from tests.contract.model_queue import ModelQueue

RAISED = "Traceback (most recent call last):\n  File \"model.py\", line 4\nKeyError: 'x'\n"


def fail(queue: ModelQueue, job: ClaimedJob, traceback: str = RAISED) -> Settled:
    ending = Ending(job.id, job.token, JobState.FAILED, error_code="handler_error", error_message="x", traceback=traceback)
    return queue.finish_all([ending])[0]


def retry(queue: ModelQueue, job: ClaimedJob, traceback: str = RAISED) -> Settled:
    items = [GiveBack(job.id, job.token)]
    said = {"code": "handler_error", "message": "x", "traceback": traceback}
    return queue.store.retry(items, worker="w1", delay_s=0.0, **said)[0]


def promoted(queue: ModelQueue) -> ClaimedJob:
    queue.store.sweep(queue.name)
    return queue.take()


def test_the_traceback_of_a_failed_job_is_kept_and_its_error_is_as_before(queue: ModelQueue) -> None:
    job = queue.leased()
    assert fail(queue, job) is Settled.OK
    assert queue.store.traceback(job.id) == RAISED
    error = queue.read(job.id).error
    assert error is not None
    assert (error.code, error.message) == ("handler_error", "x")


def test_a_job_without_a_traceback_has_none(queue: ModelQueue) -> None:
    failed, waiting = queue.leased(), queue.submit()
    queue.fail(failed)
    assert queue.store.traceback(failed.id) == queue.store.traceback(waiting) == ""
    assert queue.store.traceback(JobId("0" * 26, queue.name)) == ""


def test_a_job_that_is_tried_again_has_the_traceback_of_its_last_attempt(queue: ModelQueue) -> None:
    job = queue.leased()
    retry(queue, job)
    assert queue.store.traceback(job.id) == RAISED
    again = promoted(queue)
    assert queue.store.traceback(job.id) == ""
    retry(queue, again, "")
    assert queue.store.traceback(job.id) == ""
    fail(queue, promoted(queue), "the last")
    assert queue.store.traceback(job.id) == "the last"


def test_a_retry_at_the_limit_of_attempts_keeps_its_traceback(queue: ModelQueue) -> None:
    job = queue.leased(max_attempts=1)
    assert retry(queue, job) is Settled.DEAD
    assert queue.store.traceback(job.id) == RAISED


def test_a_job_that_succeeds_at_last_keeps_no_traceback(queue: ModelQueue) -> None:
    job = queue.leased()
    retry(queue, job)
    queue.finish(promoted(queue))
    assert queue.store.traceback(job.id) == ""


def test_a_worker_that_lost_its_job_keeps_no_traceback_with_it(queue: ModelQueue) -> None:
    job = queue.leased(lease_s=0.0)
    queue.store.sweep(queue.name)
    assert fail(queue, job) is Settled.STALE
    assert queue.store.traceback(job.id) == ""


def test_the_traceback_goes_with_its_job(queue: ModelQueue) -> None:
    job = queue.leased(result_ttl_s=0.0)
    fail(queue, job)
    assert queue.store.sweep(queue.name).collected == 1
    assert queue.store.traceback(job.id) == ""

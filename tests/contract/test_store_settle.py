"""finish, retry, release: a job gets one verdict, only from the holder of its token, and limits end what cannot succeed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.broker.contract import CancelStatus, ReleaseReason
from penstock.broker.records import ClaimedJob, Ending, Settled
from penstock.job import BatchRecord, JobState, Payload
from tests.contract.model_queue import OUTPUT, STAMP, ModelQueue
from tests.eventually import eventually

Settling = Callable[[ModelQueue, ClaimedJob], Settled]
SETTLINGS: list[Settling] = [ModelQueue.finish, ModelQueue.fail, ModelQueue.retry, ModelQueue.release, ModelQueue.crash]
settlings = pytest.mark.parametrize("settle", SETTLINGS, ids=lambda settle: settle.__name__)


# --- finish --------------------------------------------------------------------------------------------------------------


def test_a_finished_job_shows_its_output_and_its_batch(queue: ModelQueue) -> None:
    job = queue.leased()
    assert queue.finish(job) is Settled.OK
    found = queue.store.result(job.id)
    assert found is not None
    record, output = found
    assert (record.state, output, record.error) == (JobState.SUCCEEDED, OUTPUT, None)
    assert record.batch == BatchRecord("batch-1", 1, "idle", inference_s=0.25, worker="w1", place=1)
    assert record.started_at is not None
    assert record.finished_at is not None
    assert record.created_at <= record.started_at <= record.finished_at


def test_an_output_in_a_blob_is_named_not_held(queue: ModelQueue) -> None:
    job = queue.leased()
    queue.finish(job, output=Payload("image/png", blob="blobs/1.token"))
    assert queue.store.result(job.id) == (queue.read(job.id), Payload("image/png", b"", "blobs/1.token"))


def test_a_failed_job_shows_its_error_and_no_output(queue: ModelQueue) -> None:
    job = queue.leased()
    assert queue.fail(job, code="bad_input") is Settled.OK
    found = queue.store.result(job.id)
    assert found is not None
    assert (found[0].state, found[1]) == (JobState.FAILED, None)
    assert found[0].error is not None
    assert (found[0].error.code, found[0].error.message) == ("bad_input", "not a number")


def test_a_batch_is_settled_with_one_call_and_one_answer_per_item(queue: ModelQueue) -> None:
    queue.submit(deadline_s=10)
    queue.submit(deadline_s=20)
    queue.submit(deadline_s=30)
    good, bad, gone = queue.claim().jobs
    endings = [
        Ending(good.id, good.token, JobState.SUCCEEDED, output=OUTPUT),
        Ending(bad.id, bad.token, JobState.FAILED, error_code="bad_input", error_message="no"),
        Ending(gone.id, "0:nobody:none", JobState.SUCCEEDED, output=OUTPUT),
    ]
    assert queue.finish_all(endings) == [Settled.OK, Settled.OK, Settled.STALE]
    assert [queue.state(job.id) for job in (good, bad, gone)] == [JobState.SUCCEEDED, JobState.FAILED, JobState.LEASED]


def test_a_finish_repeated_after_a_lost_reply_is_answered_already(queue: ModelQueue) -> None:
    job = queue.leased()
    queue.finish(job)
    assert queue.finish(job, output=Payload("application/json", b"other")) is Settled.ALREADY
    assert queue.store.result(job.id) == (queue.read(job.id), OUTPUT)
    assert queue.store.stats(queue.name).ended == {"succeeded": 1}


def test_the_same_item_twice_in_one_finish_counts_once(queue: ModelQueue) -> None:
    job = queue.leased()
    ending = Ending(job.id, job.token, JobState.SUCCEEDED, output=OUTPUT)
    assert queue.finish_all([ending, ending]) == [Settled.OK, Settled.ALREADY]


def test_what_settles_a_finished_job_again_changes_nothing(queue: ModelQueue) -> None:
    job = queue.leased()
    queue.finish(job)
    before = queue.store.result(job.id)
    for settle in SETTLINGS:
        assert settle(queue, job) is Settled.ALREADY
    assert queue.store.result(job.id) == before


@settlings
def test_an_unknown_job_is_stale(queue: ModelQueue, settle: Settling) -> None:
    known = queue.leased(result_ttl_s=0.0)
    queue.finish(known)
    queue.store.sweep(queue.name)
    assert settle(queue, known) is Settled.STALE


@settlings
def test_a_zombie_writes_nothing_once_its_job_is_queued_again(queue: ModelQueue, settle: Settling) -> None:
    zombie = queue.leased(lease_s=0.0)
    queue.store.sweep(queue.name)
    assert settle(queue, zombie) is Settled.STALE
    assert (queue.state(zombie.id), queue.place(zombie.id)) == (JobState.QUEUED, "ready")


@settlings
def test_a_zombie_writes_nothing_while_another_worker_runs_its_job(queue: ModelQueue, settle: Settling) -> None:
    zombie = queue.leased(lease_s=0.0)
    queue.store.sweep(queue.name)
    current = queue.take("w2")
    assert settle(queue, zombie) is Settled.STALE
    assert (queue.state(zombie.id), queue.place(zombie.id)) == (JobState.LEASED, "held:w2")
    assert queue.finish(current, worker="w2") is Settled.OK


@settlings
def test_a_zombie_writes_nothing_after_another_worker_finished(queue: ModelQueue, settle: Settling) -> None:
    zombie = queue.leased(lease_s=0.0)
    queue.store.sweep(queue.name)
    queue.finish(queue.take("w2"), worker="w2")
    before = queue.store.result(zombie.id)
    assert settle(queue, zombie) is Settled.STALE
    assert queue.store.result(zombie.id) == before


@settlings
def test_an_empty_token_settles_nothing(queue: ModelQueue, settle: Settling) -> None:
    """A cleared token is empty, so the store must never accept an empty token as a match."""
    job = queue.leased()
    queue.release(job)
    empty = ClaimedJob(job.id, "", job.input, job.priority, job.created_at, job.deadline_at, 1, 0)
    assert settle(queue, empty) is Settled.STALE
    queue.store.cancel(job.id)
    assert settle(queue, empty) is Settled.STALE
    assert queue.state(job.id) is JobState.CANCELLED


@settlings
def test_refused_settlings_are_counted(queue: ModelQueue, settle: Settling) -> None:
    zombie = queue.leased(lease_s=0.0)
    queue.store.sweep(queue.name)
    settle(queue, zombie)
    assert queue.store.stats(queue.name).counters["stale"] == 1


@settlings
def test_a_job_whose_end_was_asked_for_ends_cancelled_whatever_its_run_says(queue: ModelQueue, settle: Settling) -> None:
    job = queue.leased()
    assert queue.store.cancel(job.id) is CancelStatus.REQUESTED
    assert settle(queue, job) is Settled.CANCELLED
    assert queue.store.result(job.id) == (queue.read(job.id), None)
    assert (queue.state(job.id), queue.read(job.id).batch) == (JobState.CANCELLED, None)


def test_a_repeated_finish_of_a_cancelled_job_is_answered_already(queue: ModelQueue) -> None:
    job = queue.leased()
    queue.store.cancel(job.id)
    queue.finish(job)
    assert queue.finish(job) is Settled.ALREADY


# --- retry ---------------------------------------------------------------------------------------------------------------


def test_a_retried_job_waits_out_its_delay(queue: ModelQueue) -> None:
    job = queue.leased()
    assert queue.retry(job, delay_s=60.0) is Settled.OK
    assert (queue.state(job.id), queue.place(job.id)) == (JobState.DELAYED, "delayed")
    assert queue.store.sweep(queue.name).promoted == 0
    assert queue.claim().jobs == ()


def test_a_retried_job_is_queued_again_when_its_time_has_come(queue: ModelQueue) -> None:
    job = queue.leased()
    queue.retry(job, delay_s=0.0)
    assert queue.store.sweep(queue.name).promoted == 1
    again = queue.take()
    assert (again.id, again.attempts) == (job.id, 2)


def test_a_retry_at_the_limit_of_attempts_fails_with_its_error(queue: ModelQueue) -> None:
    job = queue.leased(max_attempts=1)
    assert queue.retry(job) is Settled.DEAD
    record = queue.read(job.id)
    assert record.state is JobState.FAILED
    assert record.error is not None
    assert (record.error.code, record.error.message) == ("handler_error", "try again")
    assert queue.retry(job) is Settled.ALREADY


def test_a_job_is_run_as_often_as_it_may_be_and_not_once_more(queue: ModelQueue) -> None:
    queue.submit(max_attempts=3)
    answers = []
    for _ in range(3):
        answers.append(queue.retry(queue.take()))
        queue.store.sweep(queue.name)
    assert answers == [Settled.OK, Settled.OK, Settled.DEAD]
    assert queue.claim().jobs == ()


def test_a_success_after_a_retry_shows_no_error(queue: ModelQueue) -> None:
    job = queue.leased()
    queue.retry(job)
    queue.store.sweep(queue.name)
    queue.finish(queue.take())
    assert (queue.state(job.id), queue.read(job.id).error) == (JobState.SUCCEEDED, None)


# --- release -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", [ReleaseReason.DRAIN, ReleaseReason.UNSTARTED])
def test_a_released_job_goes_back_to_its_old_place_uncharged(queue: ModelQueue, reason: ReleaseReason) -> None:
    job = queue.leased(deadline_s=30.0)
    after = queue.submit(deadline_s=60.0)
    assert queue.release(job, reason) is Settled.OK
    assert (queue.state(job.id), queue.read(job.id).attempts) == (JobState.QUEUED, 0)
    assert [claimed.id for claimed in queue.claim().jobs] == [job.id, after]


def test_a_released_job_may_be_released_for_ever(queue: ModelQueue) -> None:
    queue.submit(max_attempts=1)
    for _ in range(3):
        assert queue.release(queue.take()) is Settled.OK


def test_a_job_whose_input_is_being_read_waits_aside_uncharged(queue: ModelQueue) -> None:
    """D150: however often it is looked for, that is no attempt."""
    first = queue.leased(max_attempts=1)
    for _ in range(3):
        assert queue.release(first, ReleaseReason.READING) is Settled.OK
        assert (queue.state(first.id), queue.read(first.id).attempts) == (JobState.DELAYED, 0)
        assert queue.claim().jobs == ()
        [first] = eventually(lambda: (queue.store.sweep(queue.name), queue.claim().jobs)[1])
    assert queue.finish(first) is Settled.OK
    assert queue.read(first.id).attempts == 1


def test_a_job_whose_end_was_asked_for_while_its_input_is_read_ends(queue: ModelQueue) -> None:
    job = queue.leased()
    queue.store.cancel(job.id)
    assert queue.release(job, ReleaseReason.READING) is Settled.CANCELLED
    assert queue.state(job.id) is JobState.CANCELLED


def test_a_crash_is_charged_and_the_next_run_is_alone(queue: ModelQueue) -> None:
    job = queue.leased()
    assert queue.crash(job) is Settled.OK
    record = queue.read(job.id)
    assert (record.state, record.attempts, record.crashes, queue.place(job.id)) == (JobState.QUEUED, 1, 1, "solo")


def test_a_job_that_crashes_too_often_is_given_up_as_poison(queue: ModelQueue) -> None:
    job = queue.leased(max_crashes=2)
    assert queue.crash(job) is Settled.OK
    again = queue.take()
    assert queue.crash(again) is Settled.DEAD
    record = queue.read(job.id)
    assert (record.state, record.crashes) == (JobState.DEAD, 2)
    assert record.error is not None
    assert record.error.code == "poison"
    assert queue.crash(again) is Settled.ALREADY


def test_a_crash_on_the_last_attempt_is_the_end(queue: ModelQueue) -> None:
    assert queue.crash(queue.leased(max_attempts=1, max_crashes=9)) is Settled.DEAD


def test_a_suspect_that_was_given_back_unrun_is_still_a_suspect(queue: ModelQueue) -> None:
    job = queue.leased()
    queue.crash(job)
    queue.release(queue.take())
    assert queue.place(job.id) == "solo"


def test_a_suspect_that_was_retried_is_still_a_suspect(queue: ModelQueue) -> None:
    job = queue.leased()
    queue.crash(job)
    queue.retry(queue.take())
    queue.store.sweep(queue.name)
    assert queue.place(job.id) == "solo"


def test_an_operation_on_many_items_answers_each_in_order(queue: ModelQueue) -> None:
    jobs = [queue.leased() for _ in range(3)]
    queue.release(jobs[1])
    endings = [Ending(job.id, job.token, JobState.SUCCEEDED, output=OUTPUT) for job in jobs]
    assert queue.store.finish(endings, worker="w1", stamp=STAMP) == [Settled.OK, Settled.STALE, Settled.OK]

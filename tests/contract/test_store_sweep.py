"""sweep, extend, reconcile: no job stays with a worker that is gone, no job outlives its deadline, and nothing is left over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.broker.contract import CancelStatus
from penstock.broker.records import ClaimedJob, Ending, LeaseRenewal, Settled, SweepReport
from penstock.job import JobState, Payload, new_serial
from tests.contract.model_queue import OUTPUT, ModelQueue


def test_a_sweep_of_an_empty_model_does_nothing(queue: ModelQueue) -> None:
    assert queue.store.sweep(queue.name) == SweepReport()


def test_a_live_lease_is_left_alone(queue: ModelQueue) -> None:
    job = queue.leased(lease_s=60.0)
    assert queue.store.sweep(queue.name) == SweepReport()
    assert queue.finish(job) is Settled.OK


# --- leases taken back ---------------------------------------------------------------------------------------------------


def test_the_jobs_of_an_expired_lease_are_queued_again(queue: ModelQueue) -> None:
    job = queue.leased("w1", lease_s=0.0)
    report = queue.store.sweep(queue.name)
    assert (report.requeued, report.workers_lost) == (1, ("w1",))
    record = queue.read(job.id)
    assert (record.state, record.attempts, record.crashes, queue.place(job.id)) == (JobState.QUEUED, 1, 0, "ready")
    assert queue.store.stats(queue.name).counters["redelivered:worker_lost"] == 1


def test_a_job_taken_back_has_no_token_left(queue: ModelQueue) -> None:
    job = queue.leased(lease_s=0.0)
    queue.store.sweep(queue.name)
    assert queue.dump().jobs[job.id.serial].token == ""


def test_a_worker_that_is_gone_loses_its_jobs_before_its_lease_ends(queue: ModelQueue) -> None:
    gone, alive = queue.leased("w1", lease_s=60.0), queue.leased("w2", lease_s=60.0)
    report = queue.store.sweep(queue.name, gone=["w1", "stranger"])
    assert (report.requeued, report.workers_lost) == (1, ("w1",))
    assert (queue.state(gone.id), queue.state(alive.id)) == (JobState.QUEUED, JobState.LEASED)


def test_all_jobs_of_a_lost_worker_come_back(queue: ModelQueue) -> None:
    for _ in range(5):
        queue.submit()
    assert len(queue.claim(lease_s=0.0).jobs) == 5
    assert queue.store.sweep(queue.name).requeued == 5
    assert queue.store.stats(queue.name).leased == 0


def lose(queue: ModelQueue, times: int) -> None:
    """Claim the one job and lose its worker, `times` times."""
    for _ in range(times):
        queue.take(lease_s=0.0)
        queue.store.sweep(queue.name)


def test_a_lost_worker_costs_its_jobs_no_attempt(queue: ModelQueue) -> None:
    job = queue.submit(max_attempts=1)
    lose(queue, 1)
    again = queue.take()
    assert (again.id, again.attempts, queue.retry(again)) == (job, 2, Settled.DEAD)


def test_a_job_that_lost_two_workers_runs_alone(queue: ModelQueue) -> None:
    job = queue.submit()
    lose(queue, 1)
    assert queue.place(job) == "ready"
    lose(queue, 1)
    assert queue.place(job) == "solo"


def test_a_job_that_loses_worker_after_worker_is_given_up(queue: ModelQueue) -> None:
    job = queue.submit()
    lose(queue, 9)
    queue.take(lease_s=0.0)
    assert queue.store.sweep(queue.name).dead == 1
    record = queue.read(job)
    assert (record.state, record.error and record.error.code) == (JobState.DEAD, "worker_lost")


def lose_elsewhere(queue: ModelQueue) -> None:
    """Lose a worker that held a job of another version, so that the new suspect does not compete with the test's own job."""
    other = queue.submit(version="2")
    queue.claim("elsewhere", version="2", lease_s=0.0)
    queue.store.sweep(queue.name)
    queue.store.cancel(other)


def test_a_storm_that_takes_the_workers_of_others_too_is_not_held_against_a_job(queue: ModelQueue) -> None:
    job = queue.submit()
    for _ in range(12):
        lose(queue, 1)
        lose_elsewhere(queue)
    assert (queue.state(job), queue.dump().jobs[job.serial].in_a_row) == (JobState.QUEUED, 1)
    queue.finish(queue.take())
    assert queue.state(job) is JobState.SUCCEEDED


def test_two_jobs_that_each_lose_worker_after_worker_do_not_excuse_each_other_for_ever(queue: ModelQueue) -> None:
    job = queue.submit()
    for _ in range(24):
        lose(queue, 1)
        lose_elsewhere(queue)
    assert queue.state(job) is JobState.QUEUED
    lose(queue, 1)
    assert queue.state(job) is JobState.DEAD


def test_what_two_workers_lost_at_once_counts_in_a_row_for_the_jobs_of_both(queue: ModelQueue) -> None:
    """The slots of one process die together, and nothing shows which of the slots held the culprit."""
    jobs = [queue.submit(), queue.submit()]
    for _ in range(9):
        for worker in ("w1", "w2"):
            queue.take(worker, lease_s=0.0)
        assert queue.store.sweep(queue.name).requeued == 2
    assert [queue.dump().jobs[job.serial].in_a_row for job in jobs] == [9, 9]


def test_a_job_that_takes_its_worker_down_each_time_ends_without_its_neighbours(queue: ModelQueue) -> None:
    jobs = [queue.submit() for _ in range(8)]
    poison = jobs[3]
    for _ in range(40):
        claim = queue.claim(limit=4)
        if poison in [job.id for job in claim.jobs]:
            queue.store.sweep(queue.name, gone=["w1"])
        elif claim.jobs:
            queue.finish_all([Ending(job.id, job.token, JobState.SUCCEEDED, output=OUTPUT) for job in claim.jobs])
    losses = {job: queue.dump().jobs[job.serial].losses for job in jobs}
    assert (losses.pop(poison), max(losses.values())) == (10, 2)
    assert queue.state(poison) is JobState.DEAD
    assert {queue.state(job) for job in losses} == {JobState.SUCCEEDED}


def test_a_lost_job_that_was_to_be_cancelled_is_cancelled(queue: ModelQueue) -> None:
    job = queue.leased(lease_s=0.0)
    queue.store.cancel(job.id)
    assert queue.store.sweep(queue.name).cancelled == 1
    assert queue.state(job.id) is JobState.CANCELLED


def test_a_lost_suspect_is_still_a_suspect(queue: ModelQueue) -> None:
    job = queue.leased()
    queue.crash(job)
    queue.take(lease_s=0.0)
    queue.store.sweep(queue.name)
    assert queue.place(job.id) == "solo"


def test_a_lost_job_past_its_deadline_is_expired(queue: ModelQueue) -> None:
    job = leased_then_late(queue)
    report = queue.store.sweep(queue.name, gone=["w1"])
    assert (report.expired, queue.state(job.id)) == (1, JobState.EXPIRED)


def test_a_running_job_past_its_deadline_may_still_finish(queue: ModelQueue) -> None:
    job = leased_then_late(queue)
    assert queue.store.sweep(queue.name).expired == 0
    assert queue.finish(job) is Settled.OK


def leased_then_late(queue: ModelQueue) -> ClaimedJob:
    """Return a job that was claimed in time and whose deadline has passed since."""
    from tests.eventually import eventually

    job = queue.leased(deadline_s=0.5)
    eventually(lambda: queue.store.stats(queue.name).now >= job.deadline_at)
    return job


# --- promote, expire, collect --------------------------------------------------------------------------------------------


def test_a_waiting_job_past_its_deadline_is_expired(queue: ModelQueue) -> None:
    late, bulk, live = queue.submit(deadline_s=0.0), queue.bulk(deadline_s=0.0), queue.submit()
    assert queue.store.sweep(queue.name).expired == 2
    assert [queue.state(job) for job in (late, bulk, live)] == [JobState.EXPIRED, JobState.EXPIRED, JobState.QUEUED]


def test_a_waiting_suspect_past_its_deadline_is_expired(queue: ModelQueue) -> None:
    job = leased_then_late(queue)
    queue.crash(job)
    assert queue.store.sweep(queue.name).expired == 1
    assert queue.state(job.id) is JobState.EXPIRED


@pytest.mark.parametrize("delay_s", [0.0, 60.0])
def test_a_delayed_job_past_its_deadline_is_expired(queue: ModelQueue, delay_s: float) -> None:
    job = leased_then_late(queue)
    queue.retry(job, delay_s=delay_s)
    report = queue.store.sweep(queue.name)
    assert (report.expired, report.promoted, queue.state(job.id)) == (1, 0, JobState.EXPIRED)


def test_an_expired_job_is_not_expired_twice(queue: ModelQueue) -> None:
    queue.submit(deadline_s=0.0)
    queue.store.sweep(queue.name)
    assert queue.store.sweep(queue.name) == SweepReport()


def test_a_result_is_kept_until_its_time_is_over(queue: ModelQueue) -> None:
    job = queue.leased(result_ttl_s=60.0)
    queue.finish(job)
    assert queue.store.sweep(queue.name).collected == 0
    assert queue.store.collected_owner(job.id) is None


def test_a_collected_job_leaves_nothing_but_a_tombstone(queue: ModelQueue) -> None:
    job = queue.leased(result_ttl_s=0.0)
    queue.finish(job)
    assert queue.store.sweep(queue.name).collected == 1
    assert (queue.store.read(job.id), queue.store.result(job.id), queue.listed()) == (None, None, [])
    assert queue.store.collected_owner(job.id) == ""


def test_a_forgotten_job_leaves_nothing_but_a_tombstone(queue: ModelQueue) -> None:
    """The tombstone says that the job had ended in this store's past: its input may go."""
    job, other = queue.leased(), queue.leased()
    queue.finish(job)
    queue.finish(other)
    assert queue.store.forget([job.id]) == 1
    assert queue.store.read(job.id) is None
    assert queue.store.collected_owner(job.id) == ""
    assert queue.store.read(other.id) is not None
    assert queue.store.forget([job.id]) == 0


def test_only_what_succeeded_is_forgotten(queue: ModelQueue) -> None:
    """A failed job waits to be replayed, and a job that has not ended must never disappear."""
    failed, running = queue.leased(), queue.leased()
    queue.fail(failed)
    waiting = queue.submit()
    jobs = [failed.id, running.id, waiting]
    assert queue.store.forget(jobs) == 0
    assert None not in [queue.store.read(job) for job in jobs]


def with_blob(queue: ModelQueue, owner: str = "") -> ClaimedJob:
    """A claimed job whose input is a blob: its own, or that of the job whose serial is `owner`."""
    job = queue.new(result_ttl_s=0.0)
    queue.put(replace(job, input=Payload("image/png", blob=f"{owner or job.id.serial}.in")))
    return queue.take()


def test_the_blobs_of_a_collected_job_are_named_for_deletion(queue: ModelQueue) -> None:
    job = with_blob(queue)
    queue.finish(job, output=Payload("image/png", blob=f"{job.id.serial}.out"))
    assert set(queue.store.sweep(queue.name).blobs) == {f"{job.id.serial}.in", f"{job.id.serial}.out"}


def test_a_job_that_was_given_a_blob_does_not_delete_it(queue: ModelQueue) -> None:
    """A stage of a pipeline reads what the stage before has written, and may end first."""
    job = with_blob(queue, owner=new_serial())
    queue.finish(job, output=Payload("image/png", blob=f"{new_serial()}.out"))
    report = queue.store.sweep(queue.name)
    assert (report.collected, report.blobs) == (1, ())


def test_a_live_job_is_never_collected_whatever_its_result_would_be_kept_for(queue: ModelQueue) -> None:
    queue.submit(result_ttl_s=0.0)
    queue.leased(result_ttl_s=0.0)
    assert queue.store.sweep(queue.name) == SweepReport()


def test_a_sweep_does_at_most_its_limit_of_the_due_work(queue: ModelQueue) -> None:
    for _ in range(5):
        job = queue.leased()
        queue.retry(job, delay_s=0.0)
    assert queue.store.sweep(queue.name, limit=2).promoted == 2
    assert queue.store.sweep(queue.name, limit=10).promoted == 3


# --- extend --------------------------------------------------------------------------------------------------------------


def test_a_beat_keeps_what_the_worker_holds(queue: ModelQueue) -> None:
    job = queue.leased("w1", lease_s=0.0)
    assert queue.store.extend(queue.name, "w1", lease_s=60.0, max_run_s=60.0) == LeaseRenewal()
    assert queue.store.sweep(queue.name) == SweepReport()
    assert queue.finish(job) is Settled.OK


def test_a_beat_of_one_worker_keeps_nothing_of_another(queue: ModelQueue) -> None:
    job = queue.leased("w1", lease_s=0.0)
    queue.leased("w2")
    queue.store.extend(queue.name, "w2", lease_s=60.0, max_run_s=60.0)
    queue.store.sweep(queue.name)
    assert queue.state(job.id) is JobState.QUEUED


def test_a_worker_whose_lease_was_taken_back_is_told(queue: ModelQueue) -> None:
    queue.leased("w1", lease_s=0.0)
    queue.store.sweep(queue.name)
    assert queue.store.extend(queue.name, "w1", lease_s=60.0, max_run_s=60.0).lost


def test_a_stranger_is_told_that_it_holds_nothing(queue: ModelQueue) -> None:
    assert queue.store.extend(queue.name, "w9", lease_s=60.0, max_run_s=60.0).lost


def test_a_beat_names_the_jobs_to_be_cancelled(queue: ModelQueue) -> None:
    job, other = queue.leased(), queue.leased()
    queue.store.cancel(job.id)
    assert queue.store.extend(queue.name, "w1", lease_s=60.0, max_run_s=60.0) == LeaseRenewal(cancelled=(job.id,))
    assert queue.state(other.id) is JobState.LEASED


def test_a_job_that_runs_too_long_is_taken_back_as_crashed(queue: ModelQueue) -> None:
    job = queue.leased()
    beat = queue.store.extend(queue.name, "w1", lease_s=60.0, max_run_s=0.0)
    assert (beat.lost, beat.overrun) == (False, (job.id,))
    record = queue.read(job.id)
    assert (record.state, record.crashes, queue.place(job.id)) == (JobState.QUEUED, 1, "solo")
    assert queue.finish(job) is Settled.STALE


def test_a_job_that_runs_too_long_too_often_is_dead(queue: ModelQueue) -> None:
    job = queue.leased(max_crashes=1)
    queue.store.extend(queue.name, "w1", lease_s=60.0, max_run_s=0.0)
    assert queue.state(job.id) is JobState.DEAD


def test_a_job_that_runs_too_long_and_was_to_be_cancelled_is_cancelled(queue: ModelQueue) -> None:
    job = queue.leased()
    queue.store.cancel(job.id)
    beat = queue.store.extend(queue.name, "w1", lease_s=60.0, max_run_s=0.0)
    assert (beat.overrun, queue.state(job.id)) == ((job.id,), JobState.CANCELLED)


# --- reconcile -----------------------------------------------------------------------------------------------------------


def test_a_sound_store_needs_no_repair(queue: ModelQueue) -> None:
    queue.submit()
    queue.bulk()
    queue.crash(queue.leased())
    queue.retry(queue.leased(), delay_s=60.0)
    queue.finish(queue.leased())
    queue.leased()
    assert queue.store.cancel(queue.submit()) is CancelStatus.CANCELLED
    repair = queue.store.reconcile(queue.name)
    assert (repair.cursor, repair.scanned, repair.orphans, repair.tickets) == ("0", 7, 0, 0)

"""sweep, extend, reconcile: nothing stays with a worker that is gone, nothing outlives its deadline, nothing lies around."""

from __future__ import annotations

import pytest

from penstock.broker.contract import CancelStatus
from penstock.broker.records import ClaimedJob, Ending, LeaseRenewal, Settled, SweepReport
from penstock.job import JobState, Payload
from tests.contract.desk import OUTPUT, Desk


def test_a_sweep_of_an_empty_model_does_nothing(desk: Desk) -> None:
    assert desk.store.sweep(desk.model) == SweepReport()


def test_a_live_lease_is_left_alone(desk: Desk) -> None:
    job = desk.leased(lease_s=60.0)
    assert desk.store.sweep(desk.model) == SweepReport()
    assert desk.finish(job) is Settled.OK


# --- leases taken back ---------------------------------------------------------------------------------------------------


def test_the_jobs_of_an_expired_lease_are_queued_again(desk: Desk) -> None:
    job = desk.leased("w1", lease_s=0.0)
    report = desk.store.sweep(desk.model)
    assert (report.requeued, report.workers_lost) == (1, ("w1",))
    record = desk.read(job.id)
    assert (record.state, record.attempts, record.crashes, desk.place(job.id)) == (JobState.QUEUED, 1, 0, "ready")
    assert desk.store.stats(desk.model).counters["redelivered:worker_lost"] == 1


def test_a_job_taken_back_has_no_token_left(desk: Desk) -> None:
    job = desk.leased(lease_s=0.0)
    desk.store.sweep(desk.model)
    assert desk.dump().jobs[job.id.serial].token == ""


def test_a_worker_that_is_gone_loses_its_jobs_before_its_lease_ends(desk: Desk) -> None:
    gone, alive = desk.leased("w1", lease_s=60.0), desk.leased("w2", lease_s=60.0)
    report = desk.store.sweep(desk.model, gone=["w1", "stranger"])
    assert (report.requeued, report.workers_lost) == (1, ("w1",))
    assert (desk.state(gone.id), desk.state(alive.id)) == (JobState.QUEUED, JobState.LEASED)


def test_all_jobs_of_a_lost_worker_come_back(desk: Desk) -> None:
    for _ in range(5):
        desk.submit()
    assert len(desk.claim(lease_s=0.0).jobs) == 5
    assert desk.store.sweep(desk.model).requeued == 5
    assert desk.store.stats(desk.model).leased == 0


def lose(desk: Desk, times: int) -> None:
    """The one job is claimed, and its worker lost, that often."""
    for _ in range(times):
        desk.take(lease_s=0.0)
        desk.store.sweep(desk.model)


def test_a_lost_worker_costs_its_jobs_no_attempt(desk: Desk) -> None:
    job = desk.submit(max_attempts=1)
    lose(desk, 1)
    again = desk.take()
    assert (again.id, again.attempts, desk.retry(again)) == (job, 2, Settled.DEAD)


def test_a_job_that_lost_two_workers_runs_alone(desk: Desk) -> None:
    job = desk.submit()
    lose(desk, 1)
    assert desk.place(job) == "ready"
    lose(desk, 1)
    assert desk.place(job) == "solo"


def test_a_job_that_loses_worker_after_worker_is_given_up(desk: Desk) -> None:
    job = desk.submit()
    lose(desk, 9)
    desk.take(lease_s=0.0)
    assert desk.store.sweep(desk.model).dead == 1
    record = desk.read(job)
    assert (record.state, record.error and record.error.code) == (JobState.DEAD, "worker_lost")


def lose_elsewhere(desk: Desk) -> None:
    """A worker that held another job is lost. Of another version, so that its suspects do not meet the test's."""
    other = desk.submit(version="2")
    desk.claim("elsewhere", version="2", lease_s=0.0)
    desk.store.sweep(desk.model)
    desk.store.cancel(other)


def test_a_storm_that_takes_the_workers_of_others_too_is_not_held_against_a_job(desk: Desk) -> None:
    job = desk.submit()
    for _ in range(12):
        lose(desk, 1)
        lose_elsewhere(desk)
    assert (desk.state(job), desk.dump().jobs[job.serial].in_a_row) == (JobState.QUEUED, 1)
    desk.finish(desk.take())
    assert desk.state(job) is JobState.SUCCEEDED


def test_two_jobs_that_each_lose_worker_after_worker_do_not_excuse_each_other_for_ever(desk: Desk) -> None:
    job = desk.submit()
    for _ in range(24):
        lose(desk, 1)
        lose_elsewhere(desk)
    assert desk.state(job) is JobState.QUEUED
    lose(desk, 1)
    assert desk.state(job) is JobState.DEAD


def test_what_two_workers_lost_at_once_counts_in_a_row_for_the_jobs_of_both(desk: Desk) -> None:
    """Slots of one process die together; which of them held the culprit does not show."""
    jobs = [desk.submit(), desk.submit()]
    for _ in range(9):
        for worker in ("w1", "w2"):
            desk.take(worker, lease_s=0.0)
        assert desk.store.sweep(desk.model).requeued == 2
    assert [desk.dump().jobs[job.serial].in_a_row for job in jobs] == [9, 9]


def test_a_job_that_takes_its_worker_down_each_time_ends_without_its_neighbours(desk: Desk) -> None:
    jobs = [desk.submit() for _ in range(8)]
    poison = jobs[3]
    for _ in range(40):
        claim = desk.claim(limit=4)
        if poison in [job.id for job in claim.jobs]:
            desk.store.sweep(desk.model, gone=["w1"])
        elif claim.jobs:
            desk.finish_all([Ending(job.id, job.token, JobState.SUCCEEDED, output=OUTPUT) for job in claim.jobs])
    losses = {job: desk.dump().jobs[job.serial].losses for job in jobs}
    assert (losses.pop(poison), max(losses.values())) == (10, 2)
    assert desk.state(poison) is JobState.DEAD
    assert {desk.state(job) for job in losses} == {JobState.SUCCEEDED}


def test_a_lost_job_that_was_to_be_cancelled_is_cancelled(desk: Desk) -> None:
    job = desk.leased(lease_s=0.0)
    desk.store.cancel(job.id)
    assert desk.store.sweep(desk.model).cancelled == 1
    assert desk.state(job.id) is JobState.CANCELLED


def test_a_lost_suspect_is_still_a_suspect(desk: Desk) -> None:
    job = desk.leased()
    desk.crash(job)
    desk.take(lease_s=0.0)
    desk.store.sweep(desk.model)
    assert desk.place(job.id) == "solo"


def test_a_lost_job_past_its_deadline_is_expired(desk: Desk) -> None:
    job = leased_then_late(desk)
    report = desk.store.sweep(desk.model, gone=["w1"])
    assert (report.expired, desk.state(job.id)) == (1, JobState.EXPIRED)


def test_a_running_job_past_its_deadline_may_still_finish(desk: Desk) -> None:
    job = leased_then_late(desk)
    assert desk.store.sweep(desk.model).expired == 0
    assert desk.finish(job) is Settled.OK


def leased_then_late(desk: Desk) -> ClaimedJob:
    """A job that was claimed in time and whose deadline has passed since."""
    from tests.eventually import eventually

    job = desk.leased(deadline_s=0.5)
    eventually(lambda: desk.store.stats(desk.model).now >= job.deadline_at)
    return job


# --- promote, expire, collect --------------------------------------------------------------------------------------------


def test_a_waiting_job_past_its_deadline_is_expired(desk: Desk) -> None:
    late, bulk, live = desk.submit(deadline_s=0.0), desk.bulk(deadline_s=0.0), desk.submit()
    assert desk.store.sweep(desk.model).expired == 2
    assert [desk.state(job) for job in (late, bulk, live)] == [JobState.EXPIRED, JobState.EXPIRED, JobState.QUEUED]


def test_a_waiting_suspect_past_its_deadline_is_expired(desk: Desk) -> None:
    job = leased_then_late(desk)
    desk.crash(job)
    assert desk.store.sweep(desk.model).expired == 1
    assert desk.state(job.id) is JobState.EXPIRED


@pytest.mark.parametrize("delay_s", [0.0, 60.0])
def test_a_delayed_job_past_its_deadline_is_expired(desk: Desk, delay_s: float) -> None:
    job = leased_then_late(desk)
    desk.retry(job, delay_s=delay_s)
    report = desk.store.sweep(desk.model)
    assert (report.expired, report.promoted, desk.state(job.id)) == (1, 0, JobState.EXPIRED)


def test_an_expired_job_is_not_expired_twice(desk: Desk) -> None:
    desk.submit(deadline_s=0.0)
    desk.store.sweep(desk.model)
    assert desk.store.sweep(desk.model) == SweepReport()


def test_a_result_is_kept_until_its_time_is_over(desk: Desk) -> None:
    job = desk.leased(result_ttl_s=60.0)
    desk.finish(job)
    assert desk.store.sweep(desk.model).collected == 0
    assert desk.store.was_collected(job.id) is False


def test_a_collected_job_leaves_nothing_but_a_tombstone(desk: Desk) -> None:
    job = desk.leased(result_ttl_s=0.0)
    desk.finish(job)
    assert desk.store.sweep(desk.model).collected == 1
    assert (desk.store.read(job.id), desk.store.result(job.id), desk.store.jobs(desk.model)) == (None, None, [])
    assert desk.store.was_collected(job.id) is True
    assert desk.dump().outbox == set()


def test_a_forgotten_job_leaves_nothing_at_all(desk: Desk) -> None:
    job, other = desk.leased(), desk.leased()
    desk.finish(job)
    desk.finish(other)
    assert desk.store.forget([job.id]) == 1
    assert desk.store.read(job.id) is None
    assert desk.store.was_collected(job.id) is False
    assert desk.store.read(other.id) is not None
    assert desk.store.forget([job.id]) == 0
    assert desk.dump().outbox == {other.id.serial}


def test_only_what_succeeded_is_forgotten(desk: Desk) -> None:
    """A failed one waits to be replayed, and a job without an end must never disappear."""
    failed, running = desk.leased(), desk.leased()
    desk.fail(failed)
    waiting = desk.submit()
    jobs = [failed.id, running.id, waiting]
    assert desk.store.forget(jobs) == 0
    assert None not in [desk.store.read(job) for job in jobs]


def test_the_blobs_of_a_collected_job_are_named_for_deletion(desk: Desk) -> None:
    job = desk.leased(result_ttl_s=0.0, input=Payload("image/png", blob="in/1"))
    desk.finish(job, output=Payload("image/png", blob="out/1"))
    assert set(desk.store.sweep(desk.model).blobs) == {"in/1", "out/1"}


def test_a_live_job_is_never_collected_whatever_its_result_would_be_kept_for(desk: Desk) -> None:
    desk.submit(result_ttl_s=0.0)
    desk.leased(result_ttl_s=0.0)
    assert desk.store.sweep(desk.model) == SweepReport()


def test_a_sweep_does_at_most_its_limit_of_the_due_work(desk: Desk) -> None:
    for _ in range(5):
        job = desk.leased()
        desk.retry(job, delay_s=0.0)
    assert desk.store.sweep(desk.model, limit=2).promoted == 2
    assert desk.store.sweep(desk.model, limit=10).promoted == 3


# --- extend --------------------------------------------------------------------------------------------------------------


def test_a_beat_keeps_what_the_worker_holds(desk: Desk) -> None:
    job = desk.leased("w1", lease_s=0.0)
    assert desk.store.extend(desk.model, "w1", lease_s=60.0, max_run_s=60.0) == LeaseRenewal()
    assert desk.store.sweep(desk.model) == SweepReport()
    assert desk.finish(job) is Settled.OK


def test_a_beat_of_one_worker_keeps_nothing_of_another(desk: Desk) -> None:
    job = desk.leased("w1", lease_s=0.0)
    desk.leased("w2")
    desk.store.extend(desk.model, "w2", lease_s=60.0, max_run_s=60.0)
    desk.store.sweep(desk.model)
    assert desk.state(job.id) is JobState.QUEUED


def test_a_worker_whose_lease_was_taken_back_is_told(desk: Desk) -> None:
    desk.leased("w1", lease_s=0.0)
    desk.store.sweep(desk.model)
    assert desk.store.extend(desk.model, "w1", lease_s=60.0, max_run_s=60.0).lost


def test_a_stranger_is_told_that_it_holds_nothing(desk: Desk) -> None:
    assert desk.store.extend(desk.model, "w9", lease_s=60.0, max_run_s=60.0).lost


def test_a_beat_names_the_jobs_to_be_cancelled(desk: Desk) -> None:
    job, other = desk.leased(), desk.leased()
    desk.store.cancel(job.id)
    assert desk.store.extend(desk.model, "w1", lease_s=60.0, max_run_s=60.0) == LeaseRenewal(cancelled=(job.id,))
    assert desk.state(other.id) is JobState.LEASED


def test_a_job_that_runs_too_long_is_taken_back_as_crashed(desk: Desk) -> None:
    job = desk.leased()
    beat = desk.store.extend(desk.model, "w1", lease_s=60.0, max_run_s=0.0)
    assert (beat.lost, beat.overrun) == (False, (job.id,))
    record = desk.read(job.id)
    assert (record.state, record.crashes, desk.place(job.id)) == (JobState.QUEUED, 1, "solo")
    assert desk.finish(job) is Settled.STALE


def test_a_job_that_runs_too_long_too_often_is_dead(desk: Desk) -> None:
    job = desk.leased(max_crashes=1)
    desk.store.extend(desk.model, "w1", lease_s=60.0, max_run_s=0.0)
    assert desk.state(job.id) is JobState.DEAD


def test_a_job_that_runs_too_long_and_was_to_be_cancelled_is_cancelled(desk: Desk) -> None:
    job = desk.leased()
    desk.store.cancel(job.id)
    beat = desk.store.extend(desk.model, "w1", lease_s=60.0, max_run_s=0.0)
    assert (beat.overrun, desk.state(job.id)) == ((job.id,), JobState.CANCELLED)


# --- reconcile -----------------------------------------------------------------------------------------------------------


def test_a_sound_store_needs_no_repair(desk: Desk) -> None:
    desk.submit()
    desk.bulk()
    desk.crash(desk.leased())
    desk.retry(desk.leased(), delay_s=60.0)
    desk.finish(desk.leased())
    desk.leased()
    assert desk.store.cancel(desk.submit()) is CancelStatus.CANCELLED
    repair = desk.store.reconcile(desk.model)
    assert (repair.cursor, repair.scanned, repair.orphans, repair.tickets) == ("0", 7, 0, 0)

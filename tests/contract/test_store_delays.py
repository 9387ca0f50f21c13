"""Jobs that are submitted with a delay: put aside, never run before their start, and then jobs like all others."""

from __future__ import annotations

import pytest

from penstock.broker.contract import CancelStatus
from penstock.broker.records import SubmitStatus
from penstock.job import Call, JobId, JobState
from tests.contract.model_queue import ModelQueue
from tests.eventually import eventually


def promoted(queue: ModelQueue, **changes: object) -> JobId:
    """Return a job whose delay is over and that a sweep has queued."""
    job = queue.submit(delay_s=0.02, **changes)
    eventually(lambda: queue.store.sweep(queue.name).promoted == 1)
    return job


def test_a_job_with_a_delay_is_stored_and_put_aside(queue: ModelQueue) -> None:
    new = queue.new(delay_s=60.0, deadline_s=90.0, owner="alice")
    answer = queue.put(new)
    job = queue.read(new.id)
    assert (answer.status, answer.depth, job.state, queue.place(new.id)) == (
        SubmitStatus.CREATED,
        0,
        JobState.DELAYED,
        "delayed",
    )
    assert job.not_before == pytest.approx(job.created_at + 60.0)
    assert job.deadline_at == pytest.approx(job.created_at + 90.0)
    assert (job.position, job.queued_behind, job.attempts) == (None, 0, 0)
    assert [found.id for found in queue.listed()] == [new.id]


def test_a_delayed_job_whose_time_has_come_is_counted_until_a_sweep_queues_it(queue: ModelQueue) -> None:
    """With no worker alive nobody sweeps, and whoever starts workers must learn of it."""
    queue.submit(delay_s=60.0)
    queue.submit(delay_s=0.02)
    eventually(lambda: queue.store.stats(queue.name).due == 1)
    assert queue.store.sweep(queue.name).promoted == 1
    found = queue.store.stats(queue.name)
    assert (found.due, found.delayed, found.depth) == (0, 1, 1)


def test_a_job_is_not_run_before_its_start(queue: ModelQueue) -> None:
    queue.submit(delay_s=60.0)
    assert queue.store.sweep(queue.name).promoted == 0
    assert queue.claim().jobs == ()


def test_a_job_runs_once_its_delay_is_over_and_has_waited_since_then(queue: ModelQueue) -> None:
    job = promoted(queue)
    record = queue.read(job)
    assert (record.state, queue.place(job), record.position) == (JobState.QUEUED, "ready", 0)
    claimed = queue.take()
    assert claimed.id == job
    assert claimed.created_at == record.not_before
    started = queue.read(job).started_at
    assert started is not None
    assert record.not_before is not None
    assert started >= record.not_before
    queue.finish(claimed)
    assert queue.state(job) is JobState.SUCCEEDED


def test_an_owner_gets_a_turn_when_the_delay_is_over(queue: ModelQueue) -> None:
    other = queue.submit(owner="bob")
    job = promoted(queue, owner="alice")
    assert {claimed.id for claimed in queue.claim().jobs} == {other, job}


def test_a_shard_with_a_delay_goes_to_the_line_of_shards(queue: ModelQueue) -> None:
    job = promoted(queue, call=Call.SHARD)
    assert queue.place(job) == "shards"


def test_jobs_with_a_delay_do_not_stand_before_others(queue: ModelQueue) -> None:
    jobs = [queue.new(delay_s=60.0), queue.new(), queue.new(delay_s=60.0), queue.new()]
    answers = queue.store.submit(jobs)
    assert [answer.depth for answer in answers] == [2] * 4
    assert [queue.read(job.id).position for job in jobs] == [None, 0, None, 1]
    assert queue.read(jobs[3].id).queued_behind == 1
    stats = queue.store.stats(queue.name)
    assert (stats.depth, stats.delayed, stats.accepted) == (2, 2, 4)


def test_jobs_with_a_delay_count_all_that_wait_and_those_of_now_do_not_count_later_ones(queue: ModelQueue) -> None:
    later = [queue.new(delay_s=60.0) for _ in range(4)]
    answers = queue.store.submit([queue.new(), *later], max_depth=4)
    assert [answer.status for answer in answers] == [SubmitStatus.CREATED] * 4 + [SubmitStatus.FULL]
    assert queue.put(queue.new(delay_s=60.0), max_depth=4).status is SubmitStatus.FULL
    assert queue.put(queue.new(), max_depth=4).status is SubmitStatus.CREATED


def test_a_job_with_a_delay_is_an_open_job_of_its_owner(queue: ModelQueue) -> None:
    queue.submit(delay_s=60.0, owner="alice", max_open_jobs=1)
    assert queue.put(queue.new(owner="alice", max_open_jobs=1)).status is SubmitStatus.QUOTA


def test_an_owners_jobs_that_wait_for_their_start_are_counted_apart(queue: ModelQueue) -> None:
    """They are open jobs, and stand before nobody: no estimate of a wait may count them."""

    def counts() -> tuple[dict[str, int], dict[str, int]]:
        stats = queue.store.stats(queue.name)
        return stats.open, stats.planned

    queue.submit(owner="a")
    queue.submit(delay_s=60.0)
    cancelled, kept = queue.submit(owner="a", delay_s=60.0), queue.submit(owner="b", delay_s=60.0)
    queue.submit(owner="b", delay_s=60.0, deadline_s=0.0)
    assert counts() == ({"a": 2, "b": 2}, {"a": 1, "b": 2})
    queue.store.cancel(cancelled, owner="a")
    assert queue.store.sweep(queue.name).expired == 1
    assert counts() == ({"a": 1, "b": 1}, {"b": 1})
    queue.store.cancel(kept, owner="b")
    job = promoted(queue, owner="b")
    assert counts() == ({"a": 1, "b": 1}, {})
    [retried] = [claimed for claimed in queue.claim().jobs if claimed.id == job]
    queue.retry(retried, delay_s=60.0)
    assert counts() == ({"a": 1, "b": 1}, {})


def test_a_retry_is_no_start(queue: ModelQueue) -> None:
    planned = queue.submit(owner="a", delay_s=60.0)
    had_delay = promoted(queue, owner="a")
    queue.retry(queue.take(), delay_s=60.0)
    assert queue.store.stats(queue.name).planned == {"a": 1}
    queue.store.cancel(had_delay, owner="a")
    assert queue.store.stats(queue.name).planned == {"a": 1}
    queue.store.cancel(planned, owner="a")
    assert queue.store.stats(queue.name).planned == {}


def test_a_repeat_finds_the_job_that_waits_for_its_start(queue: ModelQueue) -> None:
    new = queue.new(delay_s=60.0, idempotency_key="k", fingerprint="f")
    queue.put(new)
    assert queue.put(new).status is SubmitStatus.EXISTING
    repeat = queue.new(delay_s=60.0, idempotency_key="k", fingerprint="f")
    assert (queue.put(repeat).id, queue.store.stats(queue.name).delayed) == (new.id, 1)


def test_a_job_that_waits_for_its_start_is_cancelled_at_once(queue: ModelQueue) -> None:
    job = queue.submit(delay_s=60.0)
    assert queue.store.cancel(job) is CancelStatus.CANCELLED
    assert (queue.state(job), queue.store.stats(queue.name).delayed) == (JobState.CANCELLED, 0)


def test_a_job_whose_deadline_comes_before_its_start_expires_then(queue: ModelQueue) -> None:
    job = queue.submit(delay_s=1_000.0, deadline_s=0.0)
    assert queue.store.sweep(queue.name).expired == 1
    assert queue.state(job) is JobState.EXPIRED


def test_a_retry_of_a_job_that_had_a_delay_is_like_any_other(queue: ModelQueue) -> None:
    job = promoted(queue)
    queue.retry(queue.take())
    assert queue.store.sweep(queue.name).promoted == 1
    assert queue.take().id == job


def test_the_age_of_a_queue_does_not_count_delays(queue: ModelQueue) -> None:
    """The job that had a delay is the oldest by its id, and mostly has waited for a shorter time than the one behind it."""
    first = queue.submit(delay_s=0.3)
    second = queue.submit()
    eventually(lambda: queue.store.sweep(queue.name).promoted == 1)
    stats = queue.store.stats(queue.name)
    started, created = queue.read(first).not_before, queue.read(second).created_at
    assert started is not None
    assert stats.oldest_age_s[0] == pytest.approx(stats.now - min(started, created), abs=0.001)
    queue.store.cancel(second)
    stats = queue.store.stats(queue.name)
    assert stats.oldest_age_s[0] == pytest.approx(stats.now - started, abs=0.001)

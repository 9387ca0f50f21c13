"""cancel, read, list, stats, registry: what callers ask about a job, and the one thing that callers may do to a job."""

from __future__ import annotations

import time

import pytest

from penstock.broker.contract import CancelStatus, JobIndex
from penstock.broker.records import KeptInput, Settled, SubmitStatus
from penstock.job import LATE_BAND, Call, JobState, Payload
from penstock.model_spec import ModelInfo, SlotInfo, VersionInfo, WorkerInfo
from tests.contract.model_queue import ModelQueue
from tests.eventually import eventually

# --- cancel --------------------------------------------------------------------------------------------------------------


def test_a_waiting_job_is_cancelled_at_once(queue: ModelQueue) -> None:
    job = queue.submit()
    assert queue.store.cancel(job) is CancelStatus.CANCELLED
    record = queue.read(job)
    assert (record.state, record.attempts, queue.place(job)) == (JobState.CANCELLED, 0, "")
    assert record.error is not None
    assert record.error.code == "cancelled"
    assert queue.claim().jobs == ()


def test_a_waiting_suspect_is_cancelled_at_once(queue: ModelQueue) -> None:
    job = queue.leased()
    queue.crash(job)
    assert queue.store.cancel(job.id) is CancelStatus.CANCELLED
    assert queue.claim().jobs == ()


def test_a_delayed_job_is_cancelled_at_once(queue: ModelQueue) -> None:
    job = queue.leased()
    queue.retry(job, delay_s=0.0)
    assert queue.store.cancel(job.id) is CancelStatus.CANCELLED
    assert queue.store.sweep(queue.name).promoted == 0
    assert queue.state(job.id) is JobState.CANCELLED


def test_a_job_that_stepped_aside_is_cancelled_at_once(queue: ModelQueue) -> None:
    tight = queue.submit(deadline_s=5.0)
    queue.submit(deadline_s=60.0)
    queue.claim(limit=1, min_slack_s=10.0)
    assert queue.store.cancel(tight) is CancelStatus.CANCELLED
    assert queue.store.stats(queue.name).ready == {0: 0, LATE_BAND: 0, 9: 0}


def test_a_running_job_is_only_asked_to_end(queue: ModelQueue) -> None:
    job = queue.leased()
    assert queue.store.cancel(job.id) is CancelStatus.REQUESTED
    assert queue.store.cancel(job.id) is CancelStatus.REQUESTED
    record = queue.read(job.id)
    assert (record.state, record.cancel_requested) == (JobState.LEASED, True)


def test_a_final_job_cannot_be_cancelled(queue: ModelQueue) -> None:
    job = queue.leased()
    queue.finish(job)
    assert queue.store.cancel(job.id) is CancelStatus.FINAL
    assert queue.state(job.id) is JobState.SUCCEEDED


def test_a_cancelled_job_cannot_be_cancelled_again(queue: ModelQueue) -> None:
    job = queue.submit()
    queue.store.cancel(job)
    assert queue.store.cancel(job) is CancelStatus.FINAL


def test_the_job_of_another_owner_does_not_exist(queue: ModelQueue) -> None:
    job = queue.submit(owner="alice")
    assert queue.store.cancel(job, owner="bob") is CancelStatus.MISSING
    assert queue.store.cancel(job) is CancelStatus.MISSING
    assert queue.state(job) is JobState.QUEUED
    assert queue.store.cancel(job, owner="alice") is CancelStatus.CANCELLED


def test_an_unknown_job_cannot_be_cancelled(queue: ModelQueue) -> None:
    assert queue.store.cancel(queue.new_id()) is CancelStatus.MISSING


# --- read ----------------------------------------------------------------------------------------------------------------


def test_an_unknown_job_reads_as_nothing(queue: ModelQueue) -> None:
    unknown = queue.new_id()
    assert (queue.store.read(unknown), queue.store.result(unknown)) == (None, None)
    assert queue.store.collected_owner(unknown) is None


def test_a_queued_job_knows_how_many_stand_before_it(queue: ModelQueue) -> None:
    bulk, second, first = queue.bulk(), queue.submit(deadline_s=60.0), queue.submit(deadline_s=30.0)
    assert [queue.read(job).position for job in (first, second, bulk)] == [0, 1, 2]
    running = queue.take()
    assert (queue.read(running.id).position, queue.read(second).position) == (None, 0)


def test_a_live_job_has_no_result_yet(queue: ModelQueue) -> None:
    job = queue.leased()
    assert queue.store.result(job.id) == (queue.read(job.id), None)


def test_jobs_are_listed_newest_first_page_by_page(queue: ModelQueue) -> None:
    ids = [queue.submit() for _ in range(5)]
    page = queue.listed(JobIndex.ALL, limit=2)
    assert [job.id for job in page] == [ids[4], ids[3]]
    rest = queue.listed(JobIndex.ALL, before=page[-1].id.serial)
    assert [job.id for job in rest] == [ids[2], ids[1], ids[0]]
    assert queue.listed(JobIndex.ALL, before=ids[0].serial) == []


def test_an_owners_jobs_are_found_without_reading_those_of_others(queue: ModelQueue) -> None:
    # Regression: the list of an owner was picked from the records of all owners, up to 5,000 per call.
    mine = [queue.submit(owner="ann") for _ in range(2)]
    others = [queue.submit(owner="bob"), queue.submit()]
    assert queue.store.newest(queue.name, owner="ann") == mine[::-1]
    assert queue.store.newest(queue.name, owner="ann", before=mine[1].serial) == mine[:1]
    assert queue.store.newest(queue.name) == [*others[::-1], *mine[::-1]]
    assert queue.store.newest(queue.name, owner="eve") == []
    assert queue.store.newest(queue.name, JobIndex.INBOX, owner="ann") == []


def test_what_is_collected_leaves_the_lists_of_its_owner(queue: ModelQueue) -> None:
    failed = queue.leased(owner="ann", result_ttl_s=0.0)
    queue.fail(failed)
    assert queue.store.newest(queue.name, JobIndex.INBOX, owner="ann") == [failed.id]
    queue.store.sweep(queue.name)
    for index in JobIndex:
        assert queue.store.newest(queue.name, index, owner="ann") == []


def test_records_come_in_the_order_asked_for_without_those_that_are_gone(queue: ModelQueue) -> None:
    first, second = queue.submit(), queue.submit()
    asked = [second, queue.new_id(), first]
    assert [job.id for job in queue.store.records(asked)] == [second, first]


def test_every_state_is_listed(queue: ModelQueue) -> None:
    queue.finish(queue.leased())
    queue.retry(queue.leased(), delay_s=60.0)
    queue.leased()
    queue.submit()
    states = [job.state for job in queue.listed(JobIndex.ALL)]
    assert states == [JobState.QUEUED, JobState.LEASED, JobState.DELAYED, JobState.SUCCEEDED]


# --- input, inbox, replay ------------------------------------------------------------------------------------------------

LARGE = Payload("application/json", b'"' + b"x" * 200 + b'"')


@pytest.mark.parametrize(
    "given", [Payload("text/plain", b""), Payload("application/json", b"7"), LARGE, Payload("image/png", blob="x.in")]
)
def test_what_a_job_was_given_is_there_while_it_lives_and_after_it_failed(queue: ModelQueue, given: Payload) -> None:
    job = queue.leased(input=given, call=Call.EXPLAIN)
    assert queue.store.input(job.id) == KeptInput(given, Call.EXPLAIN)
    queue.fail(job)
    assert queue.store.input(job.id) == KeptInput(given, Call.EXPLAIN)


@pytest.mark.parametrize("given", [Payload("application/json", b"7"), LARGE])
def test_the_input_of_a_job_that_succeeded_or_was_cancelled_is_gone(queue: ModelQueue, given: Payload) -> None:
    done = queue.leased(input=given)
    queue.finish(done)
    dropped = queue.submit(input=given)
    queue.store.cancel(dropped)
    assert (queue.store.input(done.id), queue.store.input(dropped)) == (None, None)
    assert queue.store.input(queue.new_id()) is None


def test_the_inbox_holds_what_failed_was_given_up_or_expired_newest_first(queue: ModelQueue) -> None:
    failed = queue.leased()
    queue.fail(failed)
    dead = queue.leased(max_crashes=1)
    queue.crash(dead)
    late = queue.submit(deadline_s=0.0)
    queue.store.sweep(queue.name)
    queue.finish(queue.leased())
    queue.store.cancel(queue.submit())
    queue.submit()
    assert [job.id for job in queue.listed(JobIndex.INBOX)] == [late, dead.id, failed.id]
    assert [job.id for job in queue.listed(JobIndex.INBOX, before=late.serial, limit=1)] == [dead.id]
    assert queue.store.stats(queue.name).inbox == 3


def test_a_replay_and_its_origin_name_each_other_and_the_inbox_is_done_with_it(queue: ModelQueue) -> None:
    old = queue.leased()
    queue.fail(old)
    new = queue.submit(replay_of=old.id)
    assert (queue.read(new).replay_of, queue.read(old.id).replayed_as) == (old.id, new)
    assert (queue.read(new).replayed_as, queue.read(old.id).replay_of) == (None, None)
    assert queue.listed(JobIndex.INBOX) == []
    again = queue.submit(replay_of=old.id)
    assert queue.read(old.id).replayed_as == again


def test_a_dismissed_job_leaves_the_inbox_and_keeps_its_record(queue: ModelQueue) -> None:
    failed, other = queue.leased(owner="ann"), queue.leased(owner="ann")
    queue.fail(failed)
    queue.fail(other)
    assert queue.store.dismiss([failed.id, queue.new_id()]) == 1
    assert queue.store.dismiss([failed.id]) == 0
    assert queue.store.newest(queue.name, JobIndex.INBOX) == [other.id]
    assert queue.store.newest(queue.name, JobIndex.INBOX, owner="ann") == [other.id]
    assert queue.state(failed.id) is JobState.FAILED
    assert queue.submit(replay_of=failed.id)


def test_a_replay_that_is_not_stored_leaves_its_origin_in_the_inbox(queue: ModelQueue) -> None:
    old = queue.leased()
    queue.fail(old)
    queue.submit()
    assert queue.put(queue.new(replay_of=old.id), max_depth=1).status is SubmitStatus.FULL
    assert ([job.id for job in queue.listed(JobIndex.INBOX)], queue.read(old.id).replayed_as) == ([old.id], None)


def test_a_replay_of_a_job_that_was_collected_meanwhile_is_a_job_like_others(queue: ModelQueue) -> None:
    old = queue.leased(result_ttl_s=0.0)
    queue.fail(old)
    assert queue.store.sweep(queue.name).collected == 1
    new = queue.submit(replay_of=old.id)
    assert (queue.state(new), queue.listed(JobIndex.INBOX)) == (JobState.QUEUED, [])


# --- stats ---------------------------------------------------------------------------------------------------------------


def test_the_stats_of_an_unknown_model_are_zero(queue: ModelQueue) -> None:
    stats = queue.store.stats(queue.name)
    assert (stats.depth, stats.leased, stats.delayed, stats.accepted, stats.ended) == (0, 0, 0, 0, {})
    assert stats.ready == {0: 0, LATE_BAND: 0, 9: 0}


def test_the_stats_count_every_place(queue: ModelQueue) -> None:
    queue.finish(queue.leased())
    queue.retry(queue.leased(), delay_s=60.0)
    queue.crash(queue.leased())
    queue.claim(limit=1)
    queue.leased("w2")
    queue.submit()
    queue.bulk()
    stats = queue.store.stats(queue.name)
    assert (stats.ready, stats.solo, stats.delayed, stats.leased) == ({0: 1, LATE_BAND: 0, 9: 1}, 0, 1, 2)
    assert (stats.depth, stats.accepted, stats.ended) == (2, 6, {"succeeded": 1})


def test_the_age_of_a_queue_is_that_of_its_oldest_job_wherever_it_stands(queue: ModelQueue) -> None:
    oldest = queue.submit(deadline_s=900.0)
    eventually(lambda: queue.store.stats(queue.name).oldest_age_s[0] > 0.005)
    for _ in range(20):
        queue.submit(deadline_s=60.0)
    stats = queue.store.stats(queue.name)
    assert stats.oldest_age_s[0] == pytest.approx(stats.now - queue.read(oldest).created_at, abs=0.001)


def test_a_deep_queue_of_equal_deadlines_knows_its_oldest_job_too(queue: ModelQueue) -> None:
    oldest = queue.submit()
    queue.store.submit([queue.new() for _ in range(600)])
    stats = queue.store.stats(queue.name)
    assert stats.oldest_age_s[0] == pytest.approx(stats.now - queue.read(oldest).created_at, abs=0.001)


def test_a_suspect_counts_with_its_age_too(queue: ModelQueue) -> None:
    job = queue.leased()
    queue.crash(job)
    stats = queue.store.stats(queue.name)
    assert stats.solo == 1
    assert stats.oldest_age_s[0] == pytest.approx(stats.now - queue.read(job.id).created_at, abs=0.001)


def test_the_stats_tell_why_jobs_came_back(queue: ModelQueue) -> None:
    queue.crash(queue.leased())
    queue.release(queue.take())
    queue.leased("w2", lease_s=0.0)
    queue.store.sweep(queue.name)
    counters = queue.store.stats(queue.name).counters
    assert {name: n for name, n in counters.items() if name.startswith("redelivered")} == {
        "redelivered:crashed": 1,
        "redelivered:given_back": 1,
        "redelivered:worker_lost": 1,
    }


def test_the_stats_show_how_long_the_next_job_has_waited(queue: ModelQueue) -> None:
    job = queue.submit()
    stats = queue.store.stats(queue.name)
    assert stats.oldest_age_s[0] == pytest.approx(stats.now - queue.read(job).created_at, abs=0.001)
    assert (stats.oldest_age_s[LATE_BAND], stats.oldest_age_s[9]) == (0.0, 0.0)


# --- registry ------------------------------------------------------------------------------------------------------------


def test_an_announced_model_is_known_and_may_be_announced_again(queue: ModelQueue) -> None:
    first = ModelInfo(queue.name, versions={"1": None})
    filled = ModelInfo(queue.name, versions={"1": VersionInfo(input_schema={"type": "number"}, accepts=("image/png",))})
    for info in (first, filled):
        queue.store.announce_model(info)
        assert [known for known in queue.store.models() if known.name == queue.name] == [info]


def test_a_worker_is_known_while_it_keeps_announcing_itself(queue: ModelQueue) -> None:
    slot = SlotInfo(queue.name, "1", "ready", cores=(0, 1), latency_s={8: 0.02})
    info = WorkerInfo(name=f"worker-{queue.name}", host="here", pid=1, started_at=1.0, slots=(slot,))
    queue.store.announce_worker(info)
    [known] = [worker for worker in queue.store.workers() if worker.name == info.name]
    assert (known.slots, known.host, known.pid, known.seen_at > 1.0) == ((slot,), "here", 1, True)
    queue.store.announce_worker(info, ttl_s=0.0)
    assert info.name not in [worker.name for worker in queue.store.workers()]


@pytest.mark.parametrize("ahead_s", [-3_600.0, -20.0, 20.0, 3_600.0])
def test_a_worker_whose_clock_is_off_is_known_as_long_as_any_other(
    queue: ModelQueue, monkeypatch: pytest.MonkeyPatch, ahead_s: float
) -> None:
    """Regression: entries expired by the worker's clock, so that to gateways a worker 20 s behind did not exist."""
    info = WorkerInfo(name=f"worker-{queue.name}", host="here", pid=1, started_at=1.0)
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda at=time.time: at() + ahead_s)
        queue.store.announce_worker(info)
    [known] = [worker for worker in queue.store.workers() if worker.name == info.name]
    assert abs(known.seen_at - queue.store.stats(queue.name).now) < 60.0
    queue.store.announce_worker(info, ttl_s=0.0)
    assert info.name not in [worker.name for worker in queue.store.workers()]


def test_a_worker_that_leaves_is_forgotten_at_once(queue: ModelQueue) -> None:
    info = WorkerInfo(name=f"worker-{queue.name}", host="here", pid=1, started_at=1.0)
    queue.store.announce_worker(info)
    queue.store.withdraw_worker(info.name)
    assert info.name not in [worker.name for worker in queue.store.workers()]


def test_models_of_like_names_do_not_share_jobs(queue: ModelQueue) -> None:
    job = queue.submit()
    other = job._replace(model=f"{job.model}x")
    assert queue.store.read(other) is None
    assert queue.store.cancel(other) is CancelStatus.MISSING
    assert queue.finish(queue.take()) is Settled.OK

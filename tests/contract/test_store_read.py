"""cancel, read, list, stats, registry: what callers ask about a job, and the one thing they may do to it."""

from __future__ import annotations

import pytest

from penstock.broker.contract import CancelStatus
from penstock.broker.records import KeptInput, Settled, SubmitStatus
from penstock.job import LATE_BAND, Call, JobState, Payload
from penstock.job_id import JobId, new_job_id
from penstock.model_spec import ModelInfo, SlotInfo, VersionInfo, WorkerInfo
from tests.contract.desk import Desk
from tests.eventually import eventually

# --- cancel --------------------------------------------------------------------------------------------------------------


def test_a_waiting_job_is_cancelled_at_once(desk: Desk) -> None:
    job = desk.submit()
    assert desk.store.cancel(job) is CancelStatus.CANCELLED
    record = desk.read(job)
    assert (record.state, record.attempts, desk.place(job)) == (JobState.CANCELLED, 0, "")
    assert record.error is not None
    assert record.error.code == "cancelled"
    assert desk.claim().jobs == ()


def test_a_waiting_suspect_is_cancelled_at_once(desk: Desk) -> None:
    job = desk.leased()
    desk.crash(job)
    assert desk.store.cancel(job.id) is CancelStatus.CANCELLED
    assert desk.claim().jobs == ()


def test_a_delayed_job_is_cancelled_at_once(desk: Desk) -> None:
    job = desk.leased()
    desk.retry(job, delay_s=0.0)
    assert desk.store.cancel(job.id) is CancelStatus.CANCELLED
    assert desk.store.sweep(desk.model).promoted == 0
    assert desk.state(job.id) is JobState.CANCELLED


def test_a_job_that_stepped_aside_is_cancelled_at_once(desk: Desk) -> None:
    tight = desk.submit(deadline_s=5.0)
    desk.submit(deadline_s=60.0)
    desk.claim(limit=1, min_slack_s=10.0)
    assert desk.store.cancel(tight) is CancelStatus.CANCELLED
    assert desk.store.stats(desk.model).ready == {0: 0, LATE_BAND: 0, 9: 0}


def test_a_running_job_is_only_asked_to_end(desk: Desk) -> None:
    job = desk.leased()
    assert desk.store.cancel(job.id) is CancelStatus.REQUESTED
    assert desk.store.cancel(job.id) is CancelStatus.REQUESTED
    record = desk.read(job.id)
    assert (record.state, record.cancel_requested) == (JobState.LEASED, True)


def test_a_final_job_cannot_be_cancelled(desk: Desk) -> None:
    job = desk.leased()
    desk.finish(job)
    assert desk.store.cancel(job.id) is CancelStatus.FINAL
    assert desk.state(job.id) is JobState.SUCCEEDED


def test_a_cancelled_job_cannot_be_cancelled_again(desk: Desk) -> None:
    job = desk.submit()
    desk.store.cancel(job)
    assert desk.store.cancel(job) is CancelStatus.FINAL


def test_the_job_of_another_owner_does_not_exist(desk: Desk) -> None:
    job = desk.submit(owner="alice")
    assert desk.store.cancel(job, owner="bob") is CancelStatus.MISSING
    assert desk.store.cancel(job) is CancelStatus.MISSING
    assert desk.state(job) is JobState.QUEUED
    assert desk.store.cancel(job, owner="alice") is CancelStatus.CANCELLED


def test_an_unknown_job_cannot_be_cancelled(desk: Desk) -> None:
    assert desk.store.cancel(new_job_id(desk.model)) is CancelStatus.MISSING


# --- read ----------------------------------------------------------------------------------------------------------------


def test_an_unknown_job_reads_as_nothing(desk: Desk) -> None:
    unknown = new_job_id(desk.model)
    assert (desk.store.read(unknown), desk.store.result(unknown)) == (None, None)
    assert desk.store.was_collected(unknown) is False


def test_a_queued_job_knows_how_many_stand_before_it(desk: Desk) -> None:
    bulk, second, first = desk.bulk(), desk.submit(deadline_s=60.0), desk.submit(deadline_s=30.0)
    assert [desk.read(job).position for job in (first, second, bulk)] == [0, 1, 2]
    running = desk.take()
    assert (desk.read(running.id).position, desk.read(second).position) == (None, 0)


def test_a_live_job_has_no_result_yet(desk: Desk) -> None:
    job = desk.leased()
    assert desk.store.result(job.id) == (desk.read(job.id), None)


def test_jobs_are_listed_newest_first_page_by_page(desk: Desk) -> None:
    ids = [desk.submit() for _ in range(5)]
    page = desk.store.jobs(desk.model, limit=2)
    assert [job.id for job in page] == [ids[4], ids[3]]
    rest = desk.store.jobs(desk.model, before=page[-1].id.serial)
    assert [job.id for job in rest] == [ids[2], ids[1], ids[0]]
    assert desk.store.jobs(desk.model, before=ids[0].serial) == []


def test_every_state_is_listed(desk: Desk) -> None:
    desk.finish(desk.leased())
    desk.retry(desk.leased(), delay_s=60.0)
    desk.leased()
    desk.submit()
    states = [job.state for job in desk.store.jobs(desk.model)]
    assert states == [JobState.QUEUED, JobState.LEASED, JobState.DELAYED, JobState.SUCCEEDED]


# --- input, inbox, replay ------------------------------------------------------------------------------------------------

LARGE = Payload("application/json", b'"' + b"x" * 200 + b'"')


@pytest.mark.parametrize(
    "given", [Payload("text/plain", b""), Payload("application/json", b"7"), LARGE, Payload("image/png", blob="x.in")]
)
def test_what_a_job_was_given_is_there_while_it_lives_and_after_it_failed(desk: Desk, given: Payload) -> None:
    job = desk.leased(input=given, call=Call.EXPLAIN)
    assert desk.store.input(job.id) == KeptInput(given, Call.EXPLAIN)
    desk.fail(job)
    assert desk.store.input(job.id) == KeptInput(given, Call.EXPLAIN)


@pytest.mark.parametrize("given", [Payload("application/json", b"7"), LARGE])
def test_the_input_of_a_job_that_succeeded_or_was_cancelled_is_gone(desk: Desk, given: Payload) -> None:
    done = desk.leased(input=given)
    desk.finish(done)
    dropped = desk.submit(input=given)
    desk.store.cancel(dropped)
    assert (desk.store.input(done.id), desk.store.input(dropped)) == (None, None)
    assert desk.store.input(new_job_id(desk.model)) is None


def test_the_inbox_holds_what_failed_was_given_up_or_expired_newest_first(desk: Desk) -> None:
    failed = desk.leased()
    desk.fail(failed)
    dead = desk.leased(max_crashes=1)
    desk.crash(dead)
    late = desk.submit(deadline_s=0.0)
    desk.store.sweep(desk.model)
    desk.finish(desk.leased())
    desk.store.cancel(desk.submit())
    desk.submit()
    assert [job.id for job in desk.store.inbox(desk.model)] == [late, dead.id, failed.id]
    assert [job.id for job in desk.store.inbox(desk.model, before=late.serial, limit=1)] == [dead.id]
    assert desk.store.stats(desk.model).inbox == 3


def test_a_replay_and_its_origin_name_each_other_and_the_inbox_is_done_with_it(desk: Desk) -> None:
    old = desk.leased()
    desk.fail(old)
    new = desk.submit(replay_of=old.id)
    assert (desk.read(new).replay_of, desk.read(old.id).replayed_as) == (old.id, new)
    assert (desk.read(new).replayed_as, desk.read(old.id).replay_of) == (None, None)
    assert desk.store.inbox(desk.model) == []
    again = desk.submit(replay_of=old.id)
    assert desk.read(old.id).replayed_as == again


def test_a_replay_that_is_not_stored_leaves_its_origin_in_the_inbox(desk: Desk) -> None:
    old = desk.leased()
    desk.fail(old)
    desk.submit()
    assert desk.put(desk.new(replay_of=old.id), max_depth=1).status is SubmitStatus.FULL
    assert ([job.id for job in desk.store.inbox(desk.model)], desk.read(old.id).replayed_as) == ([old.id], None)


def test_a_replay_of_a_job_that_was_collected_meanwhile_is_a_job_like_others(desk: Desk) -> None:
    old = desk.leased(result_ttl_s=0.0)
    desk.fail(old)
    assert desk.store.sweep(desk.model).collected == 1
    new = desk.submit(replay_of=old.id)
    assert (desk.state(new), desk.store.inbox(desk.model)) == (JobState.QUEUED, [])


# --- stats ---------------------------------------------------------------------------------------------------------------


def test_the_stats_of_an_unknown_model_are_zero(desk: Desk) -> None:
    stats = desk.store.stats(desk.model)
    assert (stats.depth, stats.leased, stats.delayed, stats.accepted, stats.ended) == (0, 0, 0, 0, {})
    assert stats.ready == {0: 0, LATE_BAND: 0, 9: 0}


def test_the_stats_count_every_place(desk: Desk) -> None:
    desk.finish(desk.leased())
    desk.retry(desk.leased(), delay_s=60.0)
    desk.crash(desk.leased())
    desk.claim(limit=1)
    desk.leased("w2")
    desk.submit()
    desk.bulk()
    stats = desk.store.stats(desk.model)
    assert (stats.ready, stats.solo, stats.delayed, stats.leased) == ({0: 1, LATE_BAND: 0, 9: 1}, 0, 1, 2)
    assert (stats.depth, stats.accepted, stats.ended) == (2, 6, {"succeeded": 1})


def test_the_age_of_a_queue_is_that_of_its_oldest_job_wherever_it_stands(desk: Desk) -> None:
    oldest = desk.submit(deadline_s=900.0)
    eventually(lambda: desk.store.stats(desk.model).oldest_age_s[0] > 0.005)
    for _ in range(20):
        desk.submit(deadline_s=60.0)
    stats = desk.store.stats(desk.model)
    assert stats.oldest_age_s[0] == pytest.approx(stats.now - desk.read(oldest).created_at, abs=0.001)


def test_a_deep_queue_of_equal_deadlines_knows_its_oldest_job_too(desk: Desk) -> None:
    oldest = desk.submit()
    desk.store.submit([desk.new() for _ in range(600)])
    stats = desk.store.stats(desk.model)
    assert stats.oldest_age_s[0] == pytest.approx(stats.now - desk.read(oldest).created_at, abs=0.001)


def test_a_suspect_counts_with_its_age_too(desk: Desk) -> None:
    job = desk.leased()
    desk.crash(job)
    stats = desk.store.stats(desk.model)
    assert stats.solo == 1
    assert stats.oldest_age_s[0] == pytest.approx(stats.now - desk.read(job.id).created_at, abs=0.001)


def test_the_stats_tell_why_jobs_came_back(desk: Desk) -> None:
    desk.crash(desk.leased())
    desk.release(desk.take())
    desk.leased("w2", lease_s=0.0)
    desk.store.sweep(desk.model)
    counters = desk.store.stats(desk.model).counters
    assert {name: n for name, n in counters.items() if name.startswith("redelivered")} == {
        "redelivered:crashed": 1,
        "redelivered:given_back": 1,
        "redelivered:worker_lost": 1,
    }


def test_the_stats_show_how_long_the_next_job_has_waited(desk: Desk) -> None:
    job = desk.submit()
    stats = desk.store.stats(desk.model)
    assert stats.oldest_age_s[0] == pytest.approx(stats.now - desk.read(job).created_at, abs=0.001)
    assert (stats.oldest_age_s[LATE_BAND], stats.oldest_age_s[9]) == (0.0, 0.0)


# --- registry ------------------------------------------------------------------------------------------------------------


def test_an_announced_model_is_known_and_may_be_announced_again(desk: Desk) -> None:
    first = ModelInfo(desk.model, versions={"1": None})
    filled = ModelInfo(desk.model, versions={"1": VersionInfo(input_schema={"type": "number"}, accepts=("image/png",))})
    for info in (first, filled):
        desk.store.announce_model(info)
        assert [known for known in desk.store.models() if known.name == desk.model] == [info]


def test_a_worker_is_known_while_it_keeps_announcing_itself(desk: Desk) -> None:
    slot = SlotInfo(desk.model, "1", "ready", cores=(0, 1), latency_s={8: 0.02})
    info = WorkerInfo(name=f"worker-{desk.model}", host="here", pid=1, started_at=1.0, slots=(slot,))
    desk.store.announce_worker(info)
    [known] = [worker for worker in desk.store.workers() if worker.name == info.name]
    assert (known.slots, known.host, known.pid, known.seen_at > 1.0) == ((slot,), "here", 1, True)
    desk.store.announce_worker(info, ttl_s=0.0)
    assert info.name not in [worker.name for worker in desk.store.workers()]


def test_a_worker_that_leaves_is_forgotten_at_once(desk: Desk) -> None:
    info = WorkerInfo(name=f"worker-{desk.model}", host="here", pid=1, started_at=1.0)
    desk.store.announce_worker(info)
    desk.store.withdraw_worker(info.name)
    assert info.name not in [worker.name for worker in desk.store.workers()]


def test_models_of_like_names_do_not_share_jobs(desk: Desk) -> None:
    job = desk.submit()
    other = JobId(job.serial, f"{desk.model}x")
    assert desk.store.read(other) is None
    assert desk.store.cancel(other) is CancelStatus.MISSING
    assert desk.finish(desk.take()) is Settled.OK

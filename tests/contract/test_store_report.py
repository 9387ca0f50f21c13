"""report and follow: how far a running job is, and what it has yielded so far, from the holder of its token alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock.broker.records import PUSHED_BYTES, ClaimedJob, Push, Report, Reported, Settled
from penstock.broker.store import ops
from penstock.broker.store.replies import parse_pushes
from penstock.broker.store.sync import RedisStore
from penstock.job import JobId, JobState, StreamPart
from tests.contract.model_queue import OUTPUT, ModelQueue


def say(queue: ModelQueue, job: ClaimedJob, *chunks: bytes, before: int = 0) -> Reported:
    [answer] = queue.store.report([Report(job.id, job.token, before=before, chunks=chunks)])
    return answer


def stream(queue: ModelQueue, job: JobId, **seen: Any) -> StreamPart:
    found = queue.store.follow(job, **seen)
    assert found is not None, f"{job} is not stored"
    return found.stream


def note(queue: ModelQueue, job: ClaimedJob, fraction: float, text: str) -> Reported:
    [answer] = queue.store.report([Report(job.id, job.token, fraction, text)])
    return answer


def seen(queue: ModelQueue, job: ClaimedJob) -> tuple[float, str] | None:
    progress = queue.read(job.id).progress
    return (progress.fraction, progress.note) if progress else None


def test_progress_stands_in_the_record_and_the_last_report_counts(queue: ModelQueue) -> None:
    job = queue.leased()
    assert seen(queue, job) is None
    assert note(queue, job, 0.25, "step 1, of 4") is Reported.OK
    assert note(queue, job, 0.5, "step 2, of 4") is Reported.OK
    assert seen(queue, job) == (0.5, "step 2, of 4")


def test_progress_stays_in_the_record_of_an_ended_job(queue: ModelQueue) -> None:
    job = queue.leased()
    note(queue, job, 0.5, "half")
    queue.finish(job)
    assert seen(queue, job) == (0.5, "half")


def test_progress_of_an_attempt_that_was_lost_is_not_shown(queue: ModelQueue) -> None:
    job = queue.leased()
    note(queue, job, 0.5, "half")
    queue.release(job)
    assert seen(queue, job) is None
    again = queue.take("w2")
    assert seen(queue, again) is None
    note(queue, again, 0.1, "from the start")
    assert seen(queue, again) == (0.1, "from the start")


def test_who_does_not_hold_the_job_reports_nothing(queue: ModelQueue) -> None:
    zombie = queue.leased("w1")
    queue.release(zombie)
    holder = queue.take("w2")
    say(queue, holder, b'"a"')
    assert say(queue, zombie, b'"x"') is Reported.STALE
    assert note(queue, zombie, 0.9, "nearly done") is Reported.STALE
    assert stream(queue, holder.id) == StreamPart("2.0", (b'"a"',))
    assert seen(queue, holder) is None


def test_an_ended_job_takes_no_report(queue: ModelQueue) -> None:
    job = queue.leased()
    queue.finish(job)
    assert say(queue, job, b"1") is Reported.STALE
    assert stream(queue, job.id) == StreamPart()


def test_one_call_reports_for_many_jobs_and_each_gets_its_answer(queue: ModelQueue) -> None:
    first, second, gone = queue.leased(), queue.leased(), queue.leased()
    queue.finish(gone)
    reports = [Report(job.id, job.token, 0.5, "half", chunks=(b"1",)) for job in (first, gone, second)]
    assert queue.store.report(reports) == [Reported.OK, Reported.STALE, Reported.OK]
    assert stream(queue, second.id) == StreamPart("1.0", (b"1",))


def test_a_report_says_that_the_end_was_asked_for(queue: ModelQueue) -> None:
    job = queue.leased()
    queue.store.cancel(job.id)
    assert say(queue, job, b"1") is Reported.CANCELLED
    assert stream(queue, job.id) == StreamPart("1.0", (b"1",))
    assert queue.finish(job) is Settled.CANCELLED


def test_chunks_come_in_order_from_where_the_reader_is(queue: ModelQueue) -> None:
    job = queue.leased()
    say(queue, job, b"1", b"2")
    say(queue, job, b"3", before=2)
    assert stream(queue, job.id) == StreamPart("1.0", (b"1", b"2", b"3"))
    assert stream(queue, job.id, mark="1.0", seen=2) == StreamPart("1.0", (b"3",), before=2)
    assert stream(queue, job.id, mark="1.0", seen=1, limit=1) == StreamPart("1.0", (b"2",), before=1)
    assert stream(queue, job.id, mark="1.0", seen=3) == StreamPart("1.0", before=3)


def test_a_report_repeated_after_a_lost_reply_appends_nothing_twice(queue: ModelQueue) -> None:
    job = queue.leased()
    say(queue, job, b"1", b"2")
    assert say(queue, job, b"1", b"2") is Reported.OK
    say(queue, job, b"2", b"3", before=1)
    assert stream(queue, job.id) == StreamPart("1.0", (b"1", b"2", b"3"))


@pytest.mark.parametrize("chunks", [(b"4",), ()], ids=["more chunks", "its end"])
def test_an_attempt_of_whose_stream_the_store_lost_a_part_is_over(queue: ModelQueue, chunks: tuple[bytes, ...]) -> None:
    """A power cut with `everysec` undid the third chunk: the fourth was appended behind the second, and no reader knew."""
    job = queue.leased()
    say(queue, job, b"1", b"2")
    assert say(queue, job, *chunks, before=3) is Reported.STALE
    assert (queue.state(job.id), queue.finish(job)) == (JobState.QUEUED, Settled.STALE)
    assert stream(queue, job.id) == StreamPart("1.0", (b"1", b"2"))
    again = queue.take("w2")
    say(queue, again, b"1")
    assert stream(queue, job.id, mark="1.0", seen=3) == StreamPart("2.0", (b"1",))
    assert queue.read(job.id).attempts == 1


def test_an_attempt_whose_stream_vanished_is_over(queue: ModelQueue) -> None:
    job = queue.leased()
    assert say(queue, job, b"4", before=3) is Reported.STALE
    assert stream(queue, job.id) == StreamPart()


def test_a_cancelled_job_whose_stream_has_a_gap_ends_cancelled(queue: ModelQueue) -> None:
    job = queue.leased()
    queue.store.cancel(job.id)
    assert say(queue, job, b"4", before=3) is Reported.STALE
    assert queue.state(job.id) is JobState.CANCELLED


def test_an_empty_report_of_a_whole_stream_changes_nothing(queue: ModelQueue) -> None:
    job = queue.leased()
    say(queue, job, b"1", b"2")
    assert say(queue, job, before=2) is Reported.OK
    assert stream(queue, job.id) == StreamPart("1.0", (b"1", b"2"))


def test_a_reader_who_saw_more_than_the_store_has_reads_from_the_start(queue: ModelQueue) -> None:
    job = queue.leased()
    say(queue, job, b"1", b"2")
    assert stream(queue, job.id, mark="1.0", seen=3) == StreamPart("1.0", (b"1", b"2"))


def test_the_first_chunk_of_the_next_attempt_restarts_the_stream(queue: ModelQueue) -> None:
    job = queue.leased()
    say(queue, job, b"1", b"2")
    queue.crash(job)
    assert stream(queue, job.id).chunks == (b"1", b"2")
    again = queue.take("w2")
    say(queue, again, b"7")
    assert stream(queue, job.id, mark="1.0", seen=2) == StreamPart("2.0", (b"7",))


def test_a_stream_may_begin_anew_within_an_attempt(queue: ModelQueue) -> None:
    job = queue.leased()
    say(queue, job, b"1", b"2")
    queue.store.report([Report(job.id, job.token, restarts=1, chunks=(b"7",))])
    assert stream(queue, job.id, mark="1.0", seen=2) == StreamPart("1.1", (b"7",))


def test_a_stream_outlives_the_run_and_ends_with_the_record(queue: ModelQueue) -> None:
    kept, over = queue.leased(), queue.leased(result_ttl_s=0.0)
    for job in (kept, over):
        say(queue, job, b"1")
        queue.finish(job, output=OUTPUT)
    queue.store.sweep(queue.name)
    assert stream(queue, kept.id) == StreamPart("1.0", (b"1",))
    assert queue.store.follow(over.id) is None
    queue.store.forget([kept.id])
    assert queue.store.follow(kept.id) is None


def test_a_job_that_shows_signs_of_life_may_run_long(queue: ModelQueue) -> None:
    job = queue.leased()
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        beat = queue.store.extend(queue.name, "w1", lease_s=60.0, max_run_s=0.1, progressed=[job.id])
        assert (beat.lost, beat.overrun) == (False, ())


def pushed(queue: ModelQueue, job: ClaimedJob, act: Callable[[], object]) -> Push:
    """The push to a gateway that watches every change."""
    if not isinstance(queue.store, RedisStore):
        pytest.skip("the store in memory pushes nothing")
    channel = f"ps:gateway:{job.id}"
    queue.store.run(ops.watch(job.id, channel=channel, every_change=True))
    with queue.store._redis.pubsub() as listener:
        listener.subscribe(channel)
        assert listener.get_message(timeout=5.0)
        act()
        message = listener.get_message(timeout=5.0)
        assert message is not None
        [push] = parse_pushes(message["data"])
        return push


def test_the_job_of_another_owner_is_read_and_not_watched(queue: ModelQueue) -> None:
    if not isinstance(queue.store, RedisStore):
        pytest.skip("the store in memory pushes nothing")
    job = queue.submit(owner="alice")
    found = [queue.store.run(ops.watch(job, channel="c", every_change=True, owner=owner)) for owner in ("bob", "", "alice")]
    assert found == [queue.read(job)] * 3
    others = queue.submit(owner="alice")
    queue.store.run(ops.watch(others, channel="c", every_change=True, owner="bob"))
    assert queue.store._redis.hget(f"ps:{{{others.queue}}}:job:{others.serial}", "watch") is None


def test_small_chunks_travel_in_the_push_and_say_where_they_stand(queue: ModelQueue) -> None:
    job = queue.leased()
    say(queue, job, b"1", b"2")
    push = pushed(queue, job, lambda: say(queue, job, b"3", b"", before=2))
    assert push.stream == StreamPart("1.0", (b"3", b""), before=2)


def test_large_chunks_do_not_travel_in_the_push(queue: ModelQueue) -> None:
    job = queue.leased()
    assert pushed(queue, job, lambda: say(queue, job, b"x" * PUSHED_BYTES)).stream == StreamPart("1.0")


def test_a_push_with_more_news_than_chunks_is_a_change(queue: ModelQueue) -> None:
    job = queue.leased()
    both = Report(job.id, job.token, 0.5, "half", chunks=(b"1",))
    assert pushed(queue, job, lambda: queue.store.report([both])).stream is None


def test_a_push_after_a_request_to_cancel_is_a_change(queue: ModelQueue) -> None:
    job = queue.leased()
    queue.store.cancel(job.id)
    assert pushed(queue, job, lambda: say(queue, job, b"1")).stream is None

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.jobs.timeline import STAGES, Timeline, timeline
from penstock.gateway.jobs.views import timeline_view
from penstock.job import Attempt, BatchRecord, Job, JobError, JobId, JobState, LeftOut, Priority
from penstock.model_spec import SlotLocation

ID = JobId("0" * 26, "m")
BATCH = BatchRecord(
    "b1", 8, "full", 0.25, 2.0, 0.125, "w1", batch_wait_s=0.5, decode_s=0.125, device_wait_s=1.0, place=3
)  # fmt: skip


def a_job(state: JobState = JobState.SUCCEEDED, **changes: Any) -> Job:
    plain: dict[str, Any] = {"deadline_at": 4_000.0, "created_at": 100.0, "attempts": 1}
    return Job(ID, state, "1", Priority.INTERACTIVE, **{**plain, **changes})


def tried(number: int, claimed_at: float, ended_at: float | None, end: str = "", *, delay_s: float = 0.0) -> Attempt:
    return Attempt(number, "w1", "b1", claimed_at, ended_at, end, delay_s)


def timeline_of(job: Job, *, now: float = 1_000.0) -> Timeline:
    return timeline(job, now=now, locations={})


def seconds(job: Job, *, now: float = 1_000.0) -> dict[str, float]:
    return {stage.name: stage.seconds for stage in timeline_of(job, now=now).stages}


def normal(**changes: Any) -> Job:
    """A job that waited 4 s and then spent 5 s in a batch whose stages took 4 s."""
    ended = {"started_at": 104.0, "finished_at": 109.0, "batch": BATCH, "tries": (tried(1, 104.0, 109.0, "succeeded"),)}
    return a_job(**{**ended, **changes})


def test_the_stages_of_a_normal_job_are_its_wait_and_those_of_its_batch() -> None:
    assert seconds(normal()) == {
        "queue": 4.0,
        "batch_wait": 0.5,
        "decode": 0.125,
        "preprocess": 0.25,
        "device_wait": 1.0,
        "inference": 2.0,
        "postprocess": 0.125,
        "store": 1.0,
    }


def test_the_longest_stage_is_named_in_a_sentence() -> None:
    found = timeline_of(normal(queued_behind=812))
    assert (found.slowest, found.summary) == ("queue", "waited 4.0 s behind 812 jobs")
    assert timeline_of(normal(created_at=104.0)).summary == "ran 2.0 s on the device, in a batch of 8"


def test_a_job_alone_in_the_queue_waited_for_a_worker() -> None:
    assert timeline_of(normal()).summary == "waited 4.0 s for a worker to take it"
    assert timeline_of(normal(queued_behind=1)).summary == "waited 4.0 s behind 1 job"


def test_the_batch_is_a_note_of_its_run() -> None:
    notes = {stage.name: stage.note for stage in timeline_of(normal(queued_behind=5)).stages}
    assert notes["inference"] == "3 of 8, released: full"
    assert notes["queue"] == "behind 5 jobs"


def test_an_attempt_that_died_is_lost_time_and_what_lies_between_is_queue() -> None:
    job = normal(
        created_at=100.0,
        tries=(tried(1, 101.0, 103.5, "worker_lost"), tried(2, 104.0, 109.0, "succeeded")),
    )
    found = seconds(job)
    assert (found["queue"], found["lost"]) == (1.5, 2.5)
    assert {stage.name: stage.note for stage in timeline_of(job).stages}["lost"] == "1 worker lost"


def test_the_pause_before_a_retry_is_named_and_what_comes_late_is_queue() -> None:
    job = normal(tries=(tried(1, 100.0, 101.0, "retried", delay_s=2.0), tried(2, 104.0, 109.0, "succeeded")))
    found = seconds(job)
    assert (found["lost"], found["delay"], found["queue"]) == (1.0, 2.0, 1.0)


def test_a_pause_that_a_cancel_cut_short_counts_as_long_as_it_lasted() -> None:
    job = a_job(JobState.CANCELLED, finished_at=101.5, tries=(tried(1, 100.0, 101.0, "retried", delay_s=60.0),))
    assert seconds(job) == {"queue": 0.0, "delay": 0.5, "lost": 1.0}


def test_a_suspect_ran_alone_after_its_crashes() -> None:
    solo = BatchRecord("b1", 1, "solo", inference_s=4.5, place=1)
    job = normal(batch=solo, created_at=103.0, tries=(tried(1, 103.0, 103.5, "crashed"), tried(2, 104.0, 109.0, "succeeded")))
    assert timeline_of(job).summary == "ran 4.5 s alone after 1 crash"


def test_a_job_that_nobody_took_waited_until_its_end() -> None:
    expired = a_job(JobState.EXPIRED, finished_at=130.0, queued_behind=812)
    assert timeline_of(expired).summary == "waited 30 s behind 812 jobs, until its deadline passed"
    assert timeline_of(a_job(JobState.CANCELLED, finished_at=130.0)).summary.endswith("until it was cancelled")


def test_a_cancelled_run_brought_nothing() -> None:
    job = a_job(JobState.CANCELLED, finished_at=109.0, tries=(tried(1, 101.0, 109.0, "cancelled"),))
    assert seconds(job) == {"queue": 1.0, "lost": 8.0}
    assert timeline_of(job).summary == "lost 8.0 s in attempts that brought no result (1 output dropped)"


def test_a_job_given_up_at_its_last_retry_has_lost_all_its_runs() -> None:
    error = JobError("handler_error", "no")
    job = a_job(JobState.FAILED, finished_at=103.0, error=error, tries=(tried(1, 101.0, 103.0, "failed"),))
    assert seconds(job) == {"queue": 1.0, "lost": 2.0}


def test_a_job_that_waits_or_runs_is_told_up_to_now() -> None:
    waiting = a_job(JobState.QUEUED, attempts=0, queued_behind=2)
    assert seconds(waiting, now=107.0) == {"queue": 7.0}
    assert timeline_of(waiting, now=107.0).summary == "has waited 7.0 s behind 2 jobs"
    running = a_job(JobState.LEASED, tries=(tried(1, 102.0, None),))
    assert seconds(running, now=107.0) == {"queue": 2.0, "run": 5.0}
    assert timeline_of(running, now=107.0).summary == "has been running for 5.0 s"


def test_a_clock_behind_the_stores_makes_no_time_negative() -> None:
    assert seconds(a_job(JobState.LEASED, tries=(tried(1, 102.0, None),)), now=50.0) == {"queue": 2.0, "run": 0.0}


def test_attempts_that_are_not_kept_still_count() -> None:
    job = normal(created_at=90.0, left_out=LeftOut(4, spent_s=6.0, delay_s=1.0))
    found = seconds(job)
    assert (found["lost"], found["delay"], found["queue"]) == (6.0, 1.0, 7.0)
    assert {stage.name: stage.note for stage in timeline_of(job).stages}["lost"] == "4 more"


def test_a_batch_measured_longer_than_the_store_saw_shares_what_there_was() -> None:
    # The job took 2 ms: the store counts whole milliseconds, the worker microseconds.
    job = normal(created_at=107.0, started_at=107.0, tries=(tried(1, 107.0, 109.0, "succeeded"),))
    found = seconds(job)
    assert sum(found.values()) == pytest.approx(2.0)
    assert found["inference"] == pytest.approx(1.0)


moments = st.floats(0.0, 1_000.0, allow_nan=False)
durations = st.one_of(st.just(0.0), st.floats(0.0, 100.0), st.floats(0.0, 0.01))
ends = st.sampled_from(["released", "retried", "crashed", "worker_lost"])


@st.composite
def histories(draw: st.DrawFn) -> Job:
    """Draw a job as the store may hold it: consecutive attempts, an end of any kind, a batch measured by another clock."""
    now = draw(moments)
    created_at, tries, number = now, list[Attempt](), 0
    for end in draw(st.lists(ends, max_size=8)):
        number += draw(st.integers(1, 4))
        claimed_at = now + draw(durations)
        now = claimed_at + draw(durations)
        tries.append(tried(number, claimed_at, now, end, delay_s=draw(durations) if end == "retried" else 0.0))
    left_out = LeftOut(draw(st.integers(0, 9)), draw(durations), draw(durations)) if len(tries) == 8 else LeftOut()
    state = draw(st.sampled_from(JobState))
    ran = state is JobState.LEASED or (state.final and draw(st.booleans()))
    if ran:
        claimed_at = now + draw(durations)
        now = claimed_at + draw(durations)
        end = state.public if state.final else ""
        tries.append(tried(number + 1, claimed_at, now if state.final else None, end))
    batch = draw(st.none() | st.builds(_batch, st.lists(durations, min_size=6, max_size=6))) if ran and state.final else None
    finished_at = now + (0.0 if ran else draw(durations)) if state.final else None
    return a_job(
        state, created_at=created_at, finished_at=finished_at, tries=tuple(tries), left_out=left_out, batch=batch,
        queued_behind=draw(st.integers(0, 1_000)),
    )  # fmt: skip


def _batch(times: Sequence[float]) -> BatchRecord:
    before, during, after, waited, decoded, queued = times
    return BatchRecord("b", 4, "full", before, during, after, "w1", waited, decoded, queued, 2)


@given(histories(), st.floats(0.0, 3_000.0))
def test_the_stages_of_every_history_add_up_to_the_whole(job: Job, now: float) -> None:
    found = timeline_of(job, now=now)
    view = timeline_view(found)
    assert sum(stage["seconds"] for stage in view["stages"]) == pytest.approx(view["total_s"], rel=0.02, abs=2e-5)
    assert all(stage["seconds"] >= 0.0 and 0.0 <= stage["share"] <= 1.0001 for stage in view["stages"])
    assert [stage.name for stage in found.stages] == [name for name in STAGES if name in {s.name for s in found.stages}]
    assert found.slowest in {stage.name for stage in found.stages}
    assert found.summary


def test_the_view_names_the_worker_the_device_and_the_provider_where_they_are_known() -> None:
    location = SlotLocation("w", "penstock@here", "cuda:0", "CUDAExecutionProvider")
    view = timeline_view(timeline(normal(trace=f"00-{'a' * 32}-{'b' * 16}-01"), now=0.0, locations={"w1": location}))
    assert view["attempts"] == [
        {
            "attempt": 1,
            "worker": "penstock@here",
            "claimed_at": "1970-01-01T00:01:44.000Z",
            "ended_at": "1970-01-01T00:01:49.000Z",
            "end": "succeeded",
            "batch": "b1",
        }
    ]
    assert view["batch"] == {
        "id": "b1", "size": 8, "place": 3, "reason": "full", "device": "cuda:0", "provider": "CUDAExecutionProvider",
    }  # fmt: skip
    assert view["trace_id"] == "a" * 32
    unknown = timeline_view(timeline_of(normal()))
    assert (unknown["attempts"][0]["worker"], unknown["batch"]["device"], unknown["trace_id"]) == ("w1", None, None)


def test_a_job_that_waits_for_its_start_is_delayed_and_not_queued() -> None:
    waits = a_job(JobState.DELAYED, not_before=700.0, attempts=0)
    assert seconds(waits, now=600.0) == {"queue": 0.0, "delay": 500.0}
    assert timeline_of(waits, now=600.0).summary == "waited 8 min 20 s for its start"


def test_the_delay_of_a_job_is_no_time_in_the_queue() -> None:
    found = seconds(normal(not_before=103.0))
    assert (found["queue"], found["delay"]) == (1.0, 3.0)

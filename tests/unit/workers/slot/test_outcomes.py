from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.broker.records import ClaimedJob
from penstock.errors import InternalError
from penstock.job import JobId, JobState, Payload, Priority
from penstock.model_spec import Limits
from penstock.workers.ipc.frames import INPUT_READING_CODE, BatchDone, Failed, Outcome, Output
from penstock.workers.slot.batch import Batch, blob_name, decide, fail, is_too_large, retry_delay_s, sift_unread, unrun_stamp

GOOD = Output("application/json", b"1")


def job(number: int, *, attempts: int = 1) -> ClaimedJob:
    id = JobId(f"{number:026d}", "m")
    return ClaimedJob(id, f"{attempts}:w:n", Payload("application/json", b"1"), Priority.INTERACTIVE, 0.0, 10.0, attempts, 0)


def batch(*jobs: ClaimedJob) -> Batch:
    return Batch(jobs, "full", "w", "nonce", claimed_at=1.0)


def done(*outcomes: Outcome) -> BatchDone:
    return BatchDone(1, list(outcomes), 1.0, 1.1, 0.007, 0.1, 0.02, decode_s=0.003)


def test_every_job_gets_its_own_outcome_in_order() -> None:
    ended, _ = decide(batch(job(1), job(2)), done(GOOD, Failed("refused", "no")))
    assert [ending.state for ending in ended.endings] == [JobState.SUCCEEDED, JobState.FAILED]
    assert ended.endings[0].output == Payload("application/json", b"1")
    assert (ended.endings[1].error_code, ended.endings[1].error_message) == ("refused", "no")


def test_an_outcome_that_may_be_tried_again_is_retried_and_not_ended() -> None:
    outcomes = done(GOOD, Failed("busy", "later", retryable=True))
    ended, [retry] = decide(batch(job(1), job(2, attempts=3)), outcomes, jitter=lambda: 0.5)
    assert len(ended.endings) == 1
    assert (retry.item.id.serial, retry.delay_s, retry.code) == (f"{2:026d}", 2.0, "busy")


def test_the_delay_doubles_up_to_a_minute_and_is_spread_over_its_whole_length() -> None:
    assert [retry_delay_s(attempt, 1.0) for attempt in (1, 2, 3, 7, 50)] == [1.0, 2.0, 4.0, 60.0, 60.0]
    assert retry_delay_s(3, 0.0) == 0.0


@pytest.mark.parametrize("name", ["busy", "ConnectionResetError", "ConnectionError", "OSError", "Exception"])
def test_the_settings_name_what_is_tried_again_by_code_by_exception_or_by_its_base(name: str) -> None:
    kinds = ("ConnectionResetError", "ConnectionError", "OSError", "Exception")
    outcomes = done(Failed("busy", "later", kinds=kinds), Failed("bad_image", "no"))
    ended, retries = decide(batch(job(1), job(2)), outcomes, Limits(retry_on=(name,)))
    assert [retry.code for retry in retries] == ["busy"]
    assert [ending.error_code for ending in ended.endings] == ["bad_image"]


def test_nothing_is_tried_again_that_neither_the_handler_nor_the_settings_name() -> None:
    _, retries = decide(
        batch(job(1)), done(Failed("busy", "later", kinds=("OSError",))), Limits(retry_on=("other", "ValueError"))
    )
    assert retries == []


def test_delays_are_those_of_the_settings() -> None:
    limits = Limits(retry_delay_s=10.0)
    assert [retry_delay_s(attempt, 1.0, limits) for attempt in (1, 2, 3, 4, 5)] == [10.0, 20.0, 40.0, 60.0, 60.0]


def test_a_first_delay_of_more_than_a_minute_is_kept() -> None:
    assert [retry_delay_s(attempt, 1.0, Limits(retry_delay_s=90.0)) for attempt in (1, 2)] == [90.0, 90.0]


def test_the_stamp_describes_the_batch() -> None:
    stamp = decide(batch(job(1)), done(GOOD))[0].stamp
    assert (stamp.id, stamp.size, stamp.reason) == ("nonce", 1, "full")
    assert (stamp.decode_s, stamp.preprocess_s, stamp.inference_s, stamp.postprocess_s) == (0.003, 0.007, 0.1, 0.02)


def test_when_a_job_came_in_is_known_on_the_clock_of_this_machine_whatever_its_wall_clock_says() -> None:
    # By the clock of Redis the job came 2.5 s before the claim, and the claim was at 100.0 on this machine.
    came = replace(job(1), created_at=5_000.0)
    claimed = replace(batch(came), claimed_at=100.0, leased_at=5_002.5)
    assert claimed.accepted_at(came) == 97.5


def test_the_ended_part_of_a_batch_has_the_jobs_that_ended_and_no_others() -> None:
    ended, _ = decide(batch(job(1), job(2)), done(Failed("busy", "later", retryable=True), GOOD))
    assert ended.jobs == (job(2),)
    assert [ending.id for ending in ended.endings] == [job(2).id]


def test_items_whose_files_have_not_arrived_leave_their_batch() -> None:
    unread = Failed(INPUT_READING_CODE, "not arrived")
    ran, outcomes, rest = sift_unread(batch(job(1), job(2), job(3)), done(unread, GOOD, unread))
    assert (ran.jobs, outcomes.outcomes, rest.jobs) == ((job(2),), [GOOD], (job(1), job(3)))
    assert decide(ran, outcomes)[0].stamp.size == 1
    for whole in (done(GOOD, GOOD, GOOD), done(unread, GOOD)):
        ran, outcomes, rest = sift_unread(batch(job(1), job(2), job(3)), whole)
        assert (ran.size, outcomes, rest.jobs) == (3, whole, ())


def test_a_wrong_number_of_outcomes_settles_nothing() -> None:
    with pytest.raises(InternalError, match="2 items and came back with 1 outcomes"):
        decide(batch(job(1), job(2)), done(GOOD))


def test_only_outputs_above_the_inline_limit_go_to_the_blob_store() -> None:
    small, large = Output("image/png", b"x" * 100), Output("image/png", b"x" * 101)
    endings = decide(batch(job(1), job(2)), done(small, large))[0].endings
    assert [is_too_large(ending, 100) for ending in endings] == [False, True]
    failed = fail(batch(job(1)), [job(1)], "timeout", "too long", unrun_stamp(batch(job(1))))
    assert not is_too_large(failed.endings[0], 0)


def test_two_runs_of_a_job_write_their_outputs_under_different_names() -> None:
    first, second = (decide(batch(job(1, attempts=n)), done(GOOD))[0].endings[0] for n in (1, 2))
    assert blob_name(first) != blob_name(second)
    assert blob_name(first).startswith(f"{1:026d}.")
    assert blob_name(first).endswith(".out")

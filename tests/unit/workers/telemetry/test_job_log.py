from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.broker.contract import ReleaseReason
from penstock.broker.records import BatchStamp, Change, ClaimedJob, Ending, GiveBack, Settled
from penstock.job import JobId, JobState, Payload, Priority
from penstock.logs import JobLines
from penstock.model_spec import ModelSpec
from penstock.workers.slot.batch import Batch, Release, Retry
from penstock.workers.telemetry.job_log import WorkerJobLog

SPEC = ModelSpec("m", "m.py")
ID = JobId("0" * 26, "m")
TRACE = f"00-{'a' * 32}-{'b' * 16}-01"
BATCH = Batch(
    (ClaimedJob(ID, "1:w:nonce", Payload("application/json"), Priority.INTERACTIVE, 90.0, 200.0, 1, 0, trace=TRACE),),
    "idle", "w", "nonce", claimed_at=50.0, leased_at=100.0,
)  # fmt: skip
SAME = {"job_id": str(ID), "model": "m", "version": "1", "batch_id": "nonce", "trace_id": "a" * 32}


def ended(state: JobState, code: str = "") -> Batch:
    endings = (Ending(ID, "1:w:nonce", state, error_code=code),)
    return replace(BATCH, endings=endings, stamp=BatchStamp("nonce", 1, "idle", inference_s=0.5))


def release(reason: ReleaseReason, detail: str = "") -> Release:
    return Release((GiveBack(ID, "1:w:nonce", TRACE),), "w", reason, detail)


RETRY = Retry(GiveBack(ID, "1:w:nonce", TRACE), "w", 1.5, "busy", "later")


def logged(lines: JobLines, *calls: tuple[str, Any]) -> list[dict[str, Any]]:
    """Return the log lines at this setting after the observer received these events."""
    log = WorkerJobLog(lines)
    with capture_logs() as found:
        for name, arguments in calls:
            getattr(log, f"on_{name}")(*arguments)
    return [dict(entry) for entry in found]


def settled(state: JobState, answer: Settled = Settled.OK, code: str = "") -> tuple[str, Any]:
    return "settled", (SPEC, ended(state, code), [answer], 0.0)


def given_back(debt: Retry | Release, answer: Settled = Settled.OK) -> tuple[str, Any]:
    return "given_back", (SPEC, debt, [answer])


def test_a_claim_and_an_end_tell_job_batch_and_trace() -> None:
    claimed, ended = logged(JobLines.ALL, ("claimed", (SPEC, BATCH)), settled(JobState.SUCCEEDED))
    assert SAME.items() <= claimed.items()
    assert (claimed["event"], claimed["age_s"], claimed["size"]) == ("job_claimed", 10.0, 1)
    assert SAME.items() <= ended.items()
    assert (ended["event"], ended["state"], ended["inference_s"]) == ("job_finished", "succeeded", 0.5)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (settled(JobState.FAILED, code="oom"), [("job_finished", "failed")]),
        (settled(JobState.SUCCEEDED, Settled.CANCELLED), [("job_finished", "cancelled")]),
        (settled(JobState.SUCCEEDED, Settled.STALE), []),
        (given_back(RETRY), [("job_retried", None)]),
        (given_back(RETRY, Settled.DEAD), [("job_finished", "failed")]),
        (given_back(release(ReleaseReason.DRAIN)), [("job_released", None)]),
        (given_back(release(ReleaseReason.READING)), []),
        (given_back(release(ReleaseReason.READING), Settled.CANCELLED), [("job_finished", "cancelled")]),
        (given_back(release(ReleaseReason.CRASHED, "SIGSEGV")), [("job_lost", None)]),
        (given_back(release(ReleaseReason.CRASHED), Settled.DEAD), [("job_lost", None), ("job_finished", "failed")]),
        (given_back(release(ReleaseReason.DRAIN), Settled.STALE), []),
    ],
)
def test_every_way_a_run_ends_has_its_event(call: tuple[str, Any], expected: list[tuple[str, str | None]]) -> None:
    found = logged(JobLines.ALL, call)
    assert [(entry["event"], entry.get("state")) for entry in found] == expected
    assert all(SAME.items() <= entry.items() for entry in found)


def test_what_a_sweep_did_is_told_of_each_job() -> None:
    lost = Change(ID, "lost", JobState.LEASED, "1", "w", "nonce", TRACE)
    expired = Change(ID, "finished", JobState.EXPIRED, "1", trace=TRACE)
    found = logged(JobLines.PROBLEMS, ("changed", ([lost, expired],)))
    assert [(entry["event"], entry["log_level"]) for entry in found] == [("job_lost", "warning"), ("job_finished", "warning")]
    assert SAME.items() <= found[0].items()
    assert found[1]["state"] == "expired"


def test_by_default_only_what_no_job_should_need_is_logged() -> None:
    wanted = ("claimed", (SPEC, BATCH)), settled(JobState.SUCCEEDED), settled(JobState.SUCCEEDED, Settled.CANCELLED)
    assert logged(JobLines.PROBLEMS, *wanted) == []
    problems = settled(JobState.FAILED, code="oom"), given_back(RETRY), given_back(release(ReleaseReason.CRASHED))
    assert [entry["event"] for entry in logged(JobLines.PROBLEMS, *problems)] == ["job_finished", "job_retried", "job_lost"]


def test_off_is_off() -> None:
    calls = ("claimed", (SPEC, BATCH)), settled(JobState.FAILED), given_back(RETRY)
    changes = ("changed", ([Change(ID, "lost", JobState.LEASED, "1")],))
    assert logged(JobLines.OFF, *calls, changes) == []


def test_a_traceback_that_was_kept_stands_in_the_line_a_few_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 7.2
    monkeypatch.setattr("penstock.workers.telemetry.job_log.time.monotonic", lambda: now)
    raised = replace(RETRY, traceback="Traceback ...\nKeyError: 'x'\n")
    log = WorkerJobLog(JobLines.PROBLEMS)
    with capture_logs() as found:
        for _ in range(9):
            log.on_given_back(SPEC, raised, [Settled.OK])
        now = 8.0
        log.on_given_back(SPEC, raised, [Settled.OK])
    assert [entry.get("exception", "") for entry in found] == [
        *["Traceback ...\nKeyError: 'x'"] * 5,
        *[""] * 4,
        "Traceback ...\nKeyError: 'x'",
    ]


def test_without_a_traceback_a_line_is_as_it_was() -> None:
    [line] = logged(JobLines.PROBLEMS, settled(JobState.FAILED, code="oom"))
    assert "exception" not in line

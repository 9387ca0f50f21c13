"""An async handler in a real worker: no item waits for another one, and each has an end of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.job import JobId, JobState
from tests.eventually import eventually
from tests.integration.worker_process import HANDLERS, Gate, JobClient, WorkerProcess

MODEL = "meeting"
TABLE = {"source": str(HANDLERS / "meeting.py"), "max_run_s": 30.0}
AT_ONCE = 4


@pytest.fixture(scope="module")
def worker(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    with WorkerProcess(redis_url, tmp_path_factory.mktemp("w"), {MODEL: TABLE}, beat_s=0.2) as made:
        made.await_ready()
        yield made


@pytest.fixture
def jobs(worker: WorkerProcess, redis_url: str) -> Iterator[JobClient]:
    with closing(JobClient(redis_url, MODEL)) as client:
        yield client


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


def held(jobs: JobClient, worker: WorkerProcess, gate: Gate, count: int = 1) -> list[JobId]:
    """Submit items that last until the gate opens; all of them have begun."""
    ids = jobs.submit(*(gate.held(tag) for tag in range(count)))
    eventually(lambda: gate.begun(worker) == count)
    return ids


def test_an_item_that_takes_long_holds_up_no_other(worker: WorkerProcess, jobs: JobClient, gate: Gate) -> None:
    """Regression: a batch was answered when its last item had ended, and the next batch began then."""
    [slow] = held(jobs, worker, gate)
    quick = jobs.submit(*({"tag": tag} for tag in range(50)))
    ended = jobs.await_final(quick)
    assert [jobs.output(job.id) for job in ended] == list(range(50))
    assert jobs.states([slow]) == ["leased"]
    gate.open()
    [last] = jobs.await_final([slow])
    assert (last.state, last.attempts) == (JobState.SUCCEEDED, 1)


def test_as_many_are_in_flight_as_the_handler_says_and_no_more(worker: WorkerProcess, jobs: JobClient, gate: Gate) -> None:
    slow = held(jobs, worker, gate, AT_ONCE - 1)
    together = jobs.submit(*({"company": AT_ONCE} for _ in range(20)))
    assert {jobs.output(job.id) for job in jobs.await_final(together)} == {AT_ONCE}
    gate.open()
    jobs.await_final(slow)


def test_jobs_that_come_while_all_run_that_may_wait_in_the_queue(worker: WorkerProcess, jobs: JobClient, gate: Gate) -> None:
    slow = held(jobs, worker, gate, AT_ONCE)
    waiting = jobs.submit(*(gate.held(tag) for tag in range(3)))
    # The slot has heard of them when it has been told to give one of the first up.
    jobs.store.cancel(slow[0])
    jobs.await_final(slow[:1])
    eventually(lambda: gate.begun(worker) == AT_ONCE + 1)
    assert sorted(jobs.states(waiting)) == ["leased", "queued", "queued"]
    gate.open()
    assert {job.state for job in jobs.await_final([*slow[1:], *waiting])} == {JobState.SUCCEEDED}


def test_one_is_cancelled_and_one_is_late_and_the_others_go_on(worker: WorkerProcess, jobs: JobClient, gate: Gate) -> None:
    [slow] = held(jobs, worker, gate)
    [unwanted] = jobs.submit({**gate.held(1)})
    [late] = jobs.submit({**gate.held(2)}, deadline_s=1.5)
    eventually(lambda: gate.begun(worker) == 3)
    jobs.store.cancel(unwanted)
    ended = jobs.await_final([unwanted, late])
    assert [job.state for job in ended] == [JobState.CANCELLED, JobState.EXPIRED]
    assert jobs.states([slow]) == ["leased"]
    gate.open()
    [last] = jobs.await_final([slow])
    assert (last.state, last.attempts, last.crashes) == (JobState.SUCCEEDED, 1, 0)


def test_what_blocks_the_loop_is_named_and_a_line_names_the_job_it_was_printed_for(
    worker: WorkerProcess, jobs: JobClient, gate: Gate
) -> None:
    slow = held(jobs, worker, gate, 2)
    [blocking] = jobs.submit({"blocks": 0.8, "tag": 0, "says": "done with it"})
    jobs.await_final([blocking])
    lines = eventually(lambda: {line["line"]: line for line in worker.events("handler_said") if "loop" in line["line"]})
    [told] = lines
    assert told.startswith("Meeting held up its event loop for 0.")
    assert "job_id" not in lines[told]
    [said] = [line for line in worker.events("handler_said") if line["line"] == "done with it"]
    assert said["job_id"] == str(blocking)
    gate.open()
    jobs.await_final(slow)


def test_every_item_of_a_child_that_is_killed_runs_again_and_ends_once(
    worker: WorkerProcess, jobs: JobClient, gate: Gate
) -> None:
    many = held(jobs, worker, gate, AT_ONCE)
    [slot] = [slot for found in jobs.store.workers() for slot in found.slots]
    assert slot.at_once == AT_ONCE
    os.kill(slot.pid, signal.SIGKILL)
    gate.open()
    ended = jobs.await_final(many)
    assert [(job.state, job.attempts, job.crashes) for job in ended] == [(JobState.SUCCEEDED, 2, 1)] * AT_ONCE
    assert [jobs.output(job.id) for job in ended] == list(range(AT_ONCE))
    # And the new process runs as many at once.
    together = jobs.submit(*({"company": AT_ONCE} for _ in range(AT_ONCE)))
    assert {jobs.output(job.id) for job in jobs.await_final(together)} == {AT_ONCE}


def test_a_worker_that_is_told_to_stop_lets_them_end(redis_url: str, jobs: JobClient, tmp_path: Path, gate: Gate) -> None:
    client = JobClient(redis_url, "leaving")
    with WorkerProcess(redis_url, tmp_path / "w", {"leaving": TABLE}) as leaving:
        slow = held(client, leaving, gate, 2)
        leaving.send(signal.SIGTERM)
        gate.open()
        assert leaving.exit_code(within_s=30.0) == 0
        assert [(job.state, job.attempts) for job in client.await_final(slow)] == [(JobState.SUCCEEDED, 1)] * 2
    client.close()

"""Shards through the store, beside the jobs of callers: the store, the workers and the children are real."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.blobs.files import LocalBlobs
from penstock.broker.records import NewJob, SubmitStatus
from penstock.job import Call, Job, JobId, JobState, Payload, Priority, new_job_id
from penstock.shard import SHARD_MEDIA, Shard, ShardOutcome, decode_outcome, encode_shard
from tests.eventually import eventually
from tests.integration.worker_process import FAULTY, JobClient, WorkerProcess

MODEL = "faulty"
QUICK = {"lease_s": 3.0, "beat_s": 0.5, "sweep_s": 0.5}


class ShardClient(JobClient):
    """A client that also submits shards, with their files where a driver puts them."""

    def __init__(self, url: str, folder: Path) -> None:
        super().__init__(url, MODEL)
        self.blobs = LocalBlobs(folder / "state" / "blobs")

    def submit_shard(self, *rows: Any, max_crashes: int = 1) -> JobId:
        id = new_job_id(MODEL)
        name = f"{id.serial}.in"
        self.blobs.put(name, encode_shard(Shard("application/json", list(rows))))
        job = NewJob(
            id,
            "1",
            Payload(SHARD_MEDIA, blob=name),
            Priority.BULK,
            max_crashes=max_crashes,
            call=Call.SHARD,
        )
        [answer] = self.store.submit([job])
        assert answer.status is SubmitStatus.CREATED
        return id

    def outcome(self, id: JobId) -> ShardOutcome:
        found = self.store.result(id)
        assert found is not None
        payload = found[1]
        assert payload is not None
        path = self.blobs.local_path(payload.blob) if payload.blob else None
        return decode_outcome(path.read_bytes() if path else payload.data)

    def end(self, id: JobId) -> Job:
        [job] = self.await_final([id])
        return job

    def started(self, id: JobId) -> bool:
        return self.job(id).state is JobState.LEASED

    def running_s(self, id: JobId) -> float:
        """Return the seconds since the claim of a shard whose first rows run; 0.0 before that."""
        job = self.job(id)
        return time.time() - job.started_at if job.started_at and self.started(id) else 0.0


@pytest.fixture
def client(fresh_redis: str, tmp_path: Path) -> Iterator[ShardClient]:
    with closing(ShardClient(fresh_redis, tmp_path / "a")) as client:
        yield client


def worker(url: str, folder: Path, *, grace_s: float = 20.0, **table: Any) -> WorkerProcess:
    model = {"source": f"{FAULTY}:Faulty", "max_batch_size": 4, "warm_up": False, **table}
    shared = {"PENSTOCK_STORE__STATE_DIR": str(folder.parent / "a" / "state")}
    return WorkerProcess(url, folder, {MODEL: model}, shared, grace_s=grace_s, **QUICK)


def echoes(count: int) -> list[dict[str, Any]]:
    return [{"do": "echo", "tag": tag} for tag in range(count)]


def sleepers(count: int, seconds: float) -> list[dict[str, Any]]:
    return [{"do": "sleep", "tag": tag, "seconds": seconds} for tag in range(count)]


def test_shards_run_beside_the_jobs_of_callers_who_do_not_wait_for_them(
    client: ShardClient, fresh_redis: str, tmp_path: Path
) -> None:
    with worker(fresh_redis, tmp_path / "a") as process:
        process.await_ready()
        # Each shard takes two seconds; if the jobs do not wait for the shards, the jobs are done in a tenth of that time.
        shards = [client.submit_shard(*sleepers(40, 0.05), {"do": "raise", "tag": "x"}) for _ in range(3)]
        eventually(lambda: client.started(shards[0]))
        jobs = client.await_final(client.submit(*echoes(8)))
        assert {job.state for job in jobs} == {JobState.SUCCEEDED}
        assert not all(client.job(id).state.final for id in shards)
        ended = client.await_final(shards)
    assert {(job.state, job.attempts) for job in ended} == {(JobState.SUCCEEDED, 1)}
    assert ended[0].batch is not None
    assert ended[0].batch.reason == "bulk"
    assert ended[0].batch.inference_s > 2.0
    for id in shards:
        found = client.outcome(id)
        assert found.outputs == [*range(40), None]
        assert [(failure.place, failure.code) for failure in found.failures] == [(40, "handler_error")]


def test_a_shard_that_kills_its_child_is_given_up_and_the_next_one_runs(
    client: ShardClient, fresh_redis: str, tmp_path: Path
) -> None:
    poison, other = client.submit_shard(*echoes(20), {"do": "segfault"}), client.submit_shard(*echoes(20))
    with worker(fresh_redis, tmp_path / "a"):
        dead, job = client.await_final([poison, other])
    assert (dead.state, dead.crashes) == (JobState.DEAD, 1)
    assert dead.error is not None
    assert dead.error.code == "poison"
    assert (job.state, job.crashes) == (JobState.SUCCEEDED, 0)


def test_a_suspect_shard_runs_alone_and_jobs_wait_for_it(client: ShardClient, fresh_redis: str, tmp_path: Path) -> None:
    with worker(fresh_redis, tmp_path / "a") as process:
        process.await_ready()
        # The suspect takes six seconds, so that it is still running when the test looks.
        suspect = client.submit_shard(*sleepers(300, 0.02), max_crashes=2)
        other = client.submit_shard(*echoes(20))
        eventually(lambda: client.running_s(suspect) > 1.5)
        [slot] = next(iter(client.store.workers())).slots
        os.kill(slot.pid, signal.SIGKILL)
        jobs = client.await_final([*client.submit(*echoes(4)), suspect, other], timeout_s=40.0)
    assert {job.state for job in jobs} == {JobState.SUCCEEDED}
    ended = client.job(suspect)
    assert ended.batch is not None
    assert (ended.batch.reason, ended.crashes) == ("solo", 1)
    assert client.outcome(suspect).outputs == list(range(300))


def test_a_shard_that_hangs_fails_and_others_succeed(client: ShardClient, fresh_redis: str, tmp_path: Path) -> None:
    hung, other = client.submit_shard(*echoes(3), {"do": "hang"}), client.submit_shard(*sleepers(20, 0.05))
    # A micro-batch takes 0.2 s; if the machine pauses for a second, that micro-batch must not be taken for one that hangs.
    with worker(fresh_redis, tmp_path / "a", max_run_s=3.0):
        failed, job = client.await_final([hung, other])
    assert failed.error is not None
    assert (failed.state, failed.error.code) == (JobState.FAILED, "timeout")
    assert job.state is JobState.SUCCEEDED


def test_a_worker_that_is_killed_amid_shards_loses_none(client: ShardClient, fresh_redis: str, tmp_path: Path) -> None:
    with worker(fresh_redis, tmp_path / "a") as first, worker(fresh_redis, tmp_path / "b") as second:
        first.await_ready()
        second.await_ready()
        shards = [client.submit_shard(*sleepers(30, 0.02)) for _ in range(5)]
        eventually(lambda: sum(client.started(id) for id in shards) >= 2)
        first.kill()
        jobs = client.await_final(shards)
    assert {job.state for job in jobs} == {JobState.SUCCEEDED}
    assert {job.crashes for job in jobs} == {0}
    assert all(client.outcome(id).outputs == list(range(30)) for id in shards)


def test_a_drained_worker_gives_back_what_has_not_begun_and_ends_the_rest(
    client: ShardClient, fresh_redis: str, tmp_path: Path
) -> None:
    with worker(fresh_redis, tmp_path / "a") as process:
        process.await_ready()
        # The shards are long enough that the second has not begun when the signal comes.
        running, waiting = [client.submit_shard(*sleepers(80, 0.05)) for _ in range(2)]
        eventually(lambda: client.started(running) and client.started(waiting))
        process.send(signal.SIGTERM)
        assert process.exit_code(within_s=19.0) == 0
    assert client.job(running).state is JobState.SUCCEEDED
    assert (client.job(waiting).state, client.job(waiting).attempts) == (JobState.QUEUED, 0)


def test_a_drain_without_time_gives_back_the_running_shard_too(client: ShardClient, fresh_redis: str, tmp_path: Path) -> None:
    with worker(fresh_redis, tmp_path / "a", grace_s=0.1) as process:
        process.await_ready()
        running = client.submit_shard(*sleepers(1_000, 0.05))
        eventually(lambda: client.started(running))
        process.send(signal.SIGTERM)
        assert process.exit_code(within_s=30.0) == 0
    assert (client.job(running).state, client.job(running).crashes) == (JobState.QUEUED, 0)


def test_a_shard_whose_file_is_missing_fails(client: ShardClient, fresh_redis: str, tmp_path: Path) -> None:
    id = client.submit_shard(*echoes(3))
    client.blobs.delete(f"{id.serial}.in")
    with worker(fresh_redis, tmp_path / "a"):
        job = client.end(id)
    assert job.error is not None
    assert (job.state, job.error.code) == (JobState.FAILED, "input_missing")

"""Shards through the store, beside the jobs of callers: the store, the worker and the children are real.

One worker serves a model for each test. How shards fare when a worker ends is in `test_worker_lifecycle.py`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.job import JobId, JobState
from tests.eventually import eventually
from tests.integration.shard_client import ShardClient
from tests.integration.worker_process import FAULTY, PACED, Gate, WorkerProcess


def model(source: str, **table: Any) -> dict[str, Any]:
    return {"source": source, "max_batch_size": 4, "warm_up": False, **table}


MODELS = {
    "beside": model(f"{PACED}:Paced"),
    "suspect": model(f"{PACED}:Paced"),
    "poison": model(f"{FAULTY}:Faulty"),
    # Echoes take no time; if the machine pauses for a second, a micro-batch of them must not be taken for one that hangs.
    "hanging": model(f"{FAULTY}:Faulty", max_run_s=3.0),
    "missing": model(f"{FAULTY}:Faulty"),
}


def echoes(count: int) -> list[dict[str, Any]]:
    return [{"do": "echo", "tag": tag} for tag in range(count)]


@dataclass(frozen=True)
class Scene:
    """The worker, and the shards that were in the store before it started."""

    process: WorkerProcess
    url: str
    folder: Path
    ids: dict[str, list[JobId]]

    def client(self, name: str) -> closing[ShardClient]:
        return closing(ShardClient(self.url, name, self.folder))

    def gate(self, name: str) -> Gate:
        return Gate(self.folder / name)


@pytest.fixture(scope="module")
def scene(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("shards")
    ids = {}
    for name, bad in {"poison": [{"do": "segfault"}], "hanging": [{"do": "hang"}], "missing": []}.items():
        with closing(ShardClient(redis_url, name, folder)) as client:
            ids[name] = [client.submit_shard([*echoes(20), *bad]), client.submit_shard(echoes(20))]
            if name == "missing":
                client.blobs.delete_all([f"{ids[name][0].serial}.in"])
    # Nothing here waits for a lease: a long one ends for no pause of the machine.
    with WorkerProcess(redis_url, folder, MODELS, lease_s=120.0) as process:
        yield Scene(process, redis_url, folder, ids)


def test_shards_run_beside_the_jobs_of_callers_who_do_not_wait_for_them(scene: Scene) -> None:
    gate = scene.gate("jobs are done")
    with scene.client("beside") as client:
        # Until the gate opens, the three shards take 150 seconds.
        shards = [client.submit_shard([*gate.slow(1_000), {}]) for _ in range(3)]
        eventually(lambda: gate.begun(scene.process) > 8)
        jobs = client.await_final(client.submit(*echoes(8)))
        assert {job.state for job in jobs} == {JobState.SUCCEEDED}
        assert not any(client.job(id).state.final for id in shards)
        slow = gate.begun(scene.process) - 4
        gate.open()
        ended = client.await_final(shards)
        outcomes = [client.outcome(id) for id in shards]
    assert {(job.state, job.attempts) for job in ended} == {(JobState.SUCCEEDED, 1)}
    assert ended[0].batch is not None
    assert ended[0].batch.reason == "bulk"
    # The time of all micro-batches, not of one.
    assert ended[0].batch.inference_s > slow * 0.05
    for found in outcomes:
        assert found.outputs == [*range(1_000), None]
        assert [(failure.place, failure.code) for failure in found.failures] == [(1_000, "handler_error")]


def test_a_shard_that_kills_its_child_is_given_up_and_the_next_one_runs(scene: Scene) -> None:
    with scene.client("poison") as client:
        dead, job = client.await_final(scene.ids["poison"])
    assert (dead.state, dead.crashes) == (JobState.DEAD, 1)
    assert dead.error is not None
    assert dead.error.code == "poison"
    assert (job.state, job.crashes) == (JobState.SUCCEEDED, 0)


def test_a_suspect_shard_runs_alone_and_jobs_wait_for_it(scene: Scene) -> None:
    gate = scene.gate("jobs wait")
    with scene.client("suspect") as client:
        suspect = client.submit_shard(gate.slow(1_000), max_crashes=2)
        # A claim is no evidence: a child that dies before it is given the shard costs the shard nothing.
        eventually(lambda: gate.begun(scene.process))
        other = client.submit_shard(echoes(20))
        [pid] = [slot.pid for worker in client.store.workers() for slot in worker.slots if slot.model == "suspect"]
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: client.job(suspect).crashes)
        before = gate.begun(scene.process)
        eventually(lambda: gate.begun(scene.process) > before)
        waiting = [*client.submit(*echoes(4)), other]
        gate.open()
        jobs = client.await_final([*waiting, suspect])
        outputs = client.outcome(suspect).outputs
    assert {job.state for job in jobs} == {JobState.SUCCEEDED}
    *others, ended = jobs
    assert ended.batch is not None
    assert (ended.batch.reason, ended.crashes) == ("solo", 1)
    assert ended.finished_at is not None
    assert all(job.finished_at is not None and job.finished_at >= ended.finished_at for job in others)
    assert outputs == list(range(1_000))


def test_a_shard_that_hangs_fails_and_others_succeed(scene: Scene) -> None:
    with scene.client("hanging") as client:
        failed, job = client.await_final(scene.ids["hanging"])
    assert failed.error is not None
    assert (failed.state, failed.error.code) == (JobState.FAILED, "timeout")
    assert job.state is JobState.SUCCEEDED


def test_a_shard_whose_file_is_missing_fails(scene: Scene) -> None:
    with scene.client("missing") as client:
        job, other = client.await_final(scene.ids["missing"])
    assert job.error is not None
    assert (job.state, job.error.code) == (JobState.FAILED, "input_missing")
    assert other.state is JobState.SUCCEEDED

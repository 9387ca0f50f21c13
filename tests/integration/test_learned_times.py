"""After a restart a worker batches as well as before it: how long its batches take is kept in the store."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from tests.eventually import eventually
from tests.integration.worker_process import FAULTY, JobClient, WorkerProcess

MODEL = "faulty"
SIZE = 4


def worker(url: str, folder: Path, **table: Any) -> WorkerProcess:
    model = {"source": f"{FAULTY}:Faulty", "max_batch_size": SIZE, "warm_up": False, **table}
    return WorkerProcess(url, folder, {MODEL: model}, {"PENSTOCK_STORE__STATE_DIR": str(folder.parent / "state")}, beat_s=0.2)


def batch_sizes(client: JobClient, jobs: int) -> set[int]:
    found = client.await_final(client.submit(*[{"do": "echo", "tag": tag} for tag in range(jobs)]))
    return {job.batch.size for job in found if job.batch is not None}


def test_the_first_batch_after_a_restart_is_as_large_as_those_before_it(fresh_redis: str, tmp_path: Path) -> None:
    with closing(JobClient(fresh_redis, MODEL)) as client:
        with worker(fresh_redis, tmp_path / "a") as first:
            first.await_ready()
            assert 1 in batch_sizes(client, 60 * SIZE), "a fresh model begins with one job"
            # Times that change soon after they were kept are kept half a minute later.
            eventually(lambda: any(SIZE in times.run_s for times in client.store.learned_times(MODEL).values()), timeout_s=90.0)
        ids = client.submit(*[{"do": "echo", "tag": tag} for tag in range(SIZE)])
        with worker(fresh_redis, tmp_path / "b"):
            jobs = client.await_final(ids)
        assert {(job.batch.size, job.batch.reason) for job in jobs if job.batch} == {(SIZE, "full")}


def test_what_was_learned_of_another_version_is_not_used(fresh_redis: str, tmp_path: Path) -> None:
    with closing(JobClient(fresh_redis, MODEL)) as client:
        with worker(fresh_redis, tmp_path / "a", version="0") as other:
            other.await_ready()
            [kind] = [slot for found in client.store.workers() for slot in found.slots]
            assert kind.version == "0"
        ids = client.submit(*[{"do": "echo", "tag": tag} for tag in range(SIZE)])
        with worker(fresh_redis, tmp_path / "b"):
            jobs = client.await_final(ids)
        assert 1 in {job.batch.size for job in jobs if job.batch}

"""Jobs that a submit hands to a slot that waits, with a real worker: it is killed, frozen, drained and cut off meanwhile."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

from penstock.broker.store.ops import prefix
from penstock.job import JobId, JobState
from tests.eventually import eventually
from tests.integration.worker_process import FAULTY, JobClient, WorkerProcess

MODEL = "faulty"
# Nothing waits for such a lease: what comes back, comes back because the slot is known to be gone.
LONG: dict[str, Any] = {"lease_s": 600.0, "beat_s": 0.5}
SHORT: dict[str, Any] = {"lease_s": 3.0, "beat_s": 0.5}


class LoneClient(JobClient):
    """Submits one job at a time to a slot that waits for it."""

    def __init__(self, url: str) -> None:
        super().__init__(url, MODEL)
        self._redis: Any = redis.Redis.from_url(url)

    def offers(self) -> list[str]:
        """The incarnations that wait for a job."""
        return [name.decode() for name in self._redis.hkeys(f"{prefix(MODEL)}offers:1")]

    def await_offer(self, count: int = 1) -> None:
        eventually(lambda: len(self.offers()) == count)

    def hand_over(self) -> Any:
        """Submit a job to the slot that waits; the job is not in line when this returns."""
        self.await_offer()
        [id] = self.submit({"do": "echo", "tag": 7})
        assert self.job(id).state is not JobState.QUEUED
        return id

    def cut_off(self) -> None:
        """Close the connections over which slots hear."""
        for found in self._redis.client_list(_type="pubsub"):
            if found["name"].startswith("penstock-wake-"):
                self._redis.client_kill_filter(_id=found["id"])

    def kept(self) -> dict[bytes, bytes]:
        """All that the store holds of the model, as it is now."""
        return {key: self._redis.dump(key) for key in self._redis.scan_iter(f"{prefix(MODEL)}*")}

    def roll_back(self, kept: dict[bytes, bytes]) -> None:
        """The store is as it was before, as after a power cut or a failover; the connections break with it."""
        with self._redis.pipeline() as pipe:
            pipe.delete(*self._redis.scan_iter(f"{prefix(MODEL)}*"))
            for key, content in kept.items():
                pipe.restore(key, 0, content, replace=True)
            pipe.execute()
        self.cut_off()

    def close(self) -> None:
        self._redis.close()
        super().close()


@pytest.fixture
def client(fresh_redis: str) -> Iterator[LoneClient]:
    with closing(LoneClient(fresh_redis)) as client:
        yield client


def worker(url: str, folder: Path, fault: str = "", **settings: Any) -> WorkerProcess:
    model = {"source": f"{FAULTY}:Faulty", "max_batch_size": 8, "warm_up": False}
    shared = {"PENSTOCK_STORE__STATE_DIR": str(folder.parent / "state"), **({"PENSTOCK_FAULT": fault} if fault else {})}
    return WorkerProcess(url, folder, {MODEL: model}, shared, **settings)


def test_a_lone_job_is_leased_by_its_submit_and_one_after_the_other_is_answered(
    client: LoneClient, fresh_redis: str, tmp_path: Path
) -> None:
    with worker(fresh_redis, tmp_path / "a", **LONG):
        jobs = [client.await_final([client.hand_over()])[0] for _ in range(5)]
        assert {(job.state, job.attempts) for job in jobs} == {(JobState.SUCCEEDED, 1)}
        assert {job.batch.reason for job in jobs if job.batch} == {"idle"}
        client.await_offer()
        client.cut_off()
        # The slot that was cut off is another one now, because an answer may have been on its way to it.
        names = {job.batch.worker for job in jobs if job.batch}
        [again] = client.await_final(client.submit({"do": "echo", "tag": 8}))
        assert again.state is JobState.SUCCEEDED
        assert again.batch is not None
        assert again.batch.worker not in names


def test_a_job_whose_end_the_store_has_lost_runs_again_although_its_slot_lives(
    client: LoneClient, fresh_redis: str, tmp_path: Path
) -> None:
    # Regression: the slot had settled the job and went on renewing its lease, and so the job stood still until its run time,
    # twice max_run_s, was over.
    with worker(fresh_redis, tmp_path / "a", **LONG):
        client.await_offer()
        [id] = client.submit({"do": "sleep", "tag": 1, "seconds": 0.3})
        assert client.job(id).state is JobState.LEASED
        kept = client.kept()
        [first] = client.await_final([id])
        client.roll_back(kept)
        [again] = client.await_final([id])
    assert (first.state, again.state) == (JobState.SUCCEEDED, JobState.SUCCEEDED)
    assert again.batch is not None
    assert first.batch is not None
    assert again.batch.worker != first.batch.worker


def test_a_worker_that_is_killed_as_it_is_handed_a_job_loses_none(client: LoneClient, fresh_redis: str, tmp_path: Path) -> None:
    with worker(fresh_redis, tmp_path / "a", "after_claim:kill", **LONG) as first:
        id = client.hand_over()
        first.exit_code(within_s=30.0)
        with worker(fresh_redis, tmp_path / "b", **LONG):
            [job] = client.await_final([id])
    assert (job.state, job.crashes) == (JobState.SUCCEEDED, 0)


def test_a_worker_that_is_frozen_as_it_is_handed_a_job_settles_it_once_at_most(
    client: LoneClient, fresh_redis: str, tmp_path: Path
) -> None:
    with worker(fresh_redis, tmp_path / "a", **SHORT) as first:
        client.await_offer()
        first.send(signal.SIGSTOP)
        id = client.hand_over()
        with worker(fresh_redis, tmp_path / "b", **SHORT):
            [job] = client.await_final([id])
            first.send(signal.SIGCONT)
            eventually(lambda: first.events("lease_lost") or first.events("lease_lapsed"))
            assert client.job(id) == job
    assert (job.state, job.crashes) == (JobState.SUCCEEDED, 0)


def test_a_worker_that_is_told_to_end_gives_back_what_it_is_handed(
    client: LoneClient, fresh_redis: str, tmp_path: Path
) -> None:
    process = worker(fresh_redis, tmp_path / "a", **LONG)
    with process:
        client.await_offer()
        [ending] = client.offers()
        with worker(fresh_redis, tmp_path / "b", **LONG):
            client.await_offer(2)
            process.send(signal.SIGTERM)
            ids: list[JobId] = []
            while process.process.poll() is None:
                ids += client.submit({"do": "echo", "tag": len(ids)})
            jobs = client.await_final(ids)
            assert process.exit_code(within_s=5.0) == 0
            assert ending not in client.offers()
    assert {(job.state, job.attempts, job.crashes) for job in jobs} == {(JobState.SUCCEEDED, 1, 0)}

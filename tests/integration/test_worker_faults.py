"""What goes wrong in a handler stays with the item that caused it. The worker, the child and the store are real."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.job import JobState
from tests.eventually import eventually
from tests.integration.worker_process import FAULTY, JobClient, WorkerProcess

MODEL = "faulty"


@pytest.fixture
def client(fresh_redis: str) -> Iterator[JobClient]:
    with closing(JobClient(fresh_redis, MODEL)) as client:
        yield client


def worker(url: str, folder: Path, handler: str = "Faulty", **table: Any) -> WorkerProcess:
    return WorkerProcess(url, folder, {MODEL: {"source": f"{FAULTY}:{handler}", **table}})


def echoes(count: int) -> list[dict[str, Any]]:
    return [{"do": "echo", "tag": tag} for tag in range(count)]


def with_one(order: dict[str, Any]) -> list[dict[str, Any]]:
    """Return twenty orders of which the last is the bad one, because by then batches have grown to full size."""
    return [*echoes(19), order]


def test_an_item_that_raises_fails_alone(client: JobClient, fresh_redis: str, tmp_path: Path) -> None:
    ids = client.submit(*with_one({"do": "raise", "tag": "x"}))
    with worker(fresh_redis, tmp_path):
        jobs = client.await_final(ids)
    assert [job.state for job in jobs[:-1]] == [JobState.SUCCEEDED] * 19
    assert [client.output(id) for id in ids[:-1]] == list(range(19))
    assert jobs[-1].state is JobState.FAILED
    assert jobs[-1].error is not None
    assert jobs[-1].error.code == "handler_error"
    assert jobs[-1].batch is not None
    assert jobs[-1].batch.size > 1


def test_the_neighbours_of_a_segfault_succeed_and_the_item_is_given_up_as_poison(
    client: JobClient, fresh_redis: str, tmp_path: Path
) -> None:
    ids = client.submit(*with_one({"do": "segfault"}))
    with worker(fresh_redis, tmp_path) as process:
        jobs = client.await_final(ids, timeout_s=60.0)
        ended = process.events("child_ended")
    assert [job.state for job in jobs[:-1]] == [JobState.SUCCEEDED] * 19
    assert jobs[-1].state is JobState.DEAD
    assert jobs[-1].error is not None
    assert jobs[-1].error.code == "poison"
    assert jobs[-1].crashes == 2
    assert [entry["how"] for entry in ended] == ["ended by SIGSEGV"] * 2
    assert jobs[-1].error.message == "the process running it died 2 times; the last time: ended by SIGSEGV"


def test_an_item_that_hangs_times_out_and_its_neighbours_succeed(client: JobClient, fresh_redis: str, tmp_path: Path) -> None:
    ids = client.submit(*with_one({"do": "hang"}))
    with worker(fresh_redis, tmp_path, max_run_s=3.0):
        jobs = client.await_final(ids, timeout_s=60.0)
    assert [job.state for job in jobs[:-1]] == [JobState.SUCCEEDED] * 19
    assert jobs[-1].state is JobState.FAILED
    assert jobs[-1].error is not None
    assert jobs[-1].error.code == "timeout"


def test_an_item_that_exhausts_memory_fails_alone(client: JobClient, fresh_redis: str, tmp_path: Path) -> None:
    ids = client.submit(*with_one({"do": "exhaust"}))
    with worker(fresh_redis, tmp_path, memory_limit_bytes=1 << 29) as process:
        jobs = client.await_final(ids, timeout_s=60.0)
        assert process.events("child_ended") == []
    assert [job.state for job in jobs[:-1]] == [JobState.SUCCEEDED] * 19
    assert jobs[-1].state is JobState.FAILED
    assert jobs[-1].error is not None
    assert jobs[-1].error.code == "oom"


def test_batches_that_do_not_fit_into_memory_are_halved_and_all_items_succeed(
    client: JobClient, fresh_redis: str, tmp_path: Path
) -> None:
    ids = client.submit(*echoes(40))
    with worker(fresh_redis, tmp_path, "SmallMemory", options={"fits": 2}):
        jobs = client.await_final(ids)
    assert {job.state for job in jobs} == {JobState.SUCCEEDED}
    assert {job.attempts for job in jobs} == {1}
    # The cap grows back by one now and then, and a larger batch is halved again: so most batches are small, maybe not the last.
    sizes = sorted(job.batch.size for job in jobs if job.batch is not None)
    assert sizes[len(sizes) // 2] <= 2


def test_a_model_whose_largest_batch_does_not_fit_gets_ready_with_smaller_ones(
    client: JobClient, fresh_redis: str, tmp_path: Path
) -> None:
    # A model with a sample once never loaded: the warm-up ran max_batch_size, and its MemoryError ended the load.
    hungry = tmp_path / "hungry.py"
    hungry.write_text(
        "import penstock\n"
        "class Hungry(penstock.Handler):\n"
        "    sample = 0\n"
        "    def inference(self, batch):\n"
        "        return [len(held) and tag for tag, held in [(tag, b'x' * (150 << 20)) for tag in batch]]\n"
    )
    model = {"source": str(hungry), "max_batch_size": 8, "memory_limit_bytes": 1 << 29}
    ids = client.submit(*range(8))
    with WorkerProcess(fresh_redis, tmp_path / "w", {MODEL: model}) as process:
        jobs = client.await_final(ids, timeout_s=30.0)
        (ready,) = process.events("child_ready")
        assert process.events("child_ended") == []
    assert (
        ready["warmed"] == "a batch of 4 does not fit into memory, one of 2 does: batches begin there; set max_batch_size = 2"
    )
    assert [client.output(id) for id in ids] == list(range(8))
    assert max(job.batch.size for job in jobs if job.batch) <= 2


def test_a_device_error_that_stays_ends_the_child_and_only_its_item_is_given_up(
    client: JobClient, fresh_redis: str, tmp_path: Path
) -> None:
    # Halving the batch in the same process would fail all twenty, because every call after such an error raises it again.
    ids = client.submit(*with_one({"do": "device", "tag": "CUDA error: device-side assert triggered"}))
    with worker(fresh_redis, tmp_path, "Accelerated") as process:
        jobs = client.await_final(ids, timeout_s=60.0)
        ended = process.events("child_ended")
    assert [job.state for job in jobs[:-1]] == [JobState.SUCCEEDED] * 19
    assert jobs[-1].state is JobState.DEAD
    assert jobs[-1].error is not None
    assert "its device cpu fails every call: RuntimeError: CUDA error: device-side assert triggered" in jobs[-1].error.message
    assert len(ended) == 2


def test_a_broken_device_costs_no_job_anything_and_is_shown_as_unhealthy(
    client: JobClient, fresh_redis: str, tmp_path: Path
) -> None:
    ids = client.submit(*echoes(8))
    broken = {"broken": "CUDA error: uncorrectable ECC error encountered"}
    with worker(fresh_redis, tmp_path, "Accelerated", options=broken, warm_up=False) as process:
        slot = eventually(
            lambda: next((s for w in client.store.workers() for s in w.slots if "unhealthy" in s.error), None), timeout_s=60.0
        )
        assert slot.state == "failed"
        assert "next try in 60 s" in slot.error
        assert "uncorrectable ECC error" in slot.error
        assert len(process.events("device_lost")) == 3
    jobs = [client.job(id) for id in ids]
    assert {job.crashes for job in jobs} == {0}
    assert not any(job.state.final for job in jobs)


def test_a_crash_while_decoding_the_input_is_charged_to_its_batch(client: JobClient, fresh_redis: str, tmp_path: Path) -> None:
    ids = client.submit(*with_one({"do": "segfault"}))
    with worker(fresh_redis, tmp_path, "FaultyInput"):
        jobs = client.await_final(ids, timeout_s=60.0)
    assert [job.state for job in jobs[:-1]] == [JobState.SUCCEEDED] * 19
    assert jobs[-1].state is JobState.DEAD


def test_a_model_that_cannot_be_loaded_is_named_with_its_reason(client: JobClient, fresh_redis: str, tmp_path: Path) -> None:
    [id] = client.submit({"do": "echo"})
    with worker(fresh_redis, tmp_path, "NoStart") as process:
        slot = eventually(lambda: next((s for w in client.store.workers() for s in w.slots if s.state == "failed"), None))
        ended = eventually(lambda: process.events("child_ended"))
    # The supervisor ends such a child itself, and once logged that end as a kill for lack of memory.
    assert ended[0]["how"] == "stopped after the failed load"
    assert "the weights are missing" in slot.error
    assert client.job(id).state is JobState.QUEUED


def test_a_child_may_be_replaced_after_so_many_batches(client: JobClient, fresh_redis: str, tmp_path: Path) -> None:
    ids = client.submit(*echoes(9))
    with worker(fresh_redis, tmp_path, max_batch_size=1, recycle_after_batches=4) as process:
        jobs = client.await_final(ids)
        # The last job may end before the supervisor finds that the child that ran the job is worn.
        recycled = eventually(lambda: (found := process.events("child_recycled"))[1:] and found)
    # The child may already have the batch behind the fourth.
    assert [entry["batches"] in (4, 5) for entry in recycled] == [True, True]
    assert {(job.state, job.attempts, job.crashes) for job in jobs} == {(JobState.SUCCEEDED, 1, 0)}


def test_a_child_that_leaks_is_replaced_between_batches_and_no_item_fails(
    client: JobClient, fresh_redis: str, tmp_path: Path
) -> None:
    leaky = tmp_path / "leaky.py"
    leaky.write_text(
        "import penstock\n"
        "LEAK = []\n"
        "class Leaky(penstock.Handler):\n"
        "    def inference(self, batch):\n"
        "        LEAK.append(b'x' * 20_000_000)\n"
        "        return batch\n"
    )
    model = {"source": str(leaky), "max_batch_size": 1, "memory_limit_bytes": 1 << 29}
    with WorkerProcess(fresh_redis, tmp_path / "w", {MODEL: model}) as process:
        ids = []
        for _ in range(5):
            process.await_ready()
            ids += client.submit(*range(8))
            client.await_final(ids)
        assert process.events("child_recycled")
    assert {client.job(id).state for id in ids} == {JobState.SUCCEEDED}
    assert {client.job(id).attempts for id in ids} == {1}

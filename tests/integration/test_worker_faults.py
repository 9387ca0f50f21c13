"""What goes wrong in a handler stays with the item that caused it. The worker, the children and the store are real.

One worker serves a model for each test, and all tests' jobs are in the store before it starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest

from penstock.broker.store.sync import RedisStore
from penstock.job import Job, JobId, JobState
from penstock.model_spec import SlotInfo
from tests.eventually import eventually
from tests.integration.worker_process import FAULTY, JobClient, WorkerProcess

WITHIN_S = 90.0


def model(handler: str = "Faulty", **table: Any) -> dict[str, Any]:
    return {"source": f"{FAULTY}:{handler}", **table}


MODELS = {
    "raising": model(),
    "segfaulting": model(),
    # Echoes take no time; if the machine pauses for a second, a batch of them must not be taken for one that hangs.
    "hanging": model(max_run_s=3.0),
    "exhausting": model(memory_limit_bytes=1 << 29),
    "small": model("SmallMemory", options={"fits": 2}),
    "hungry": {"source": "hungry.py", "max_batch_size": 8, "memory_limit_bytes": 1 << 29},
    "stuck": model("Accelerated"),
    "broken": model("Accelerated", options={"broken": "CUDA error: uncorrectable ECC error encountered"}, warm_up=False),
    "decoding": model("FaultyInput"),
    "unloadable": model("NoStart"),
    "recycled": model(max_batch_size=1, recycle_after_batches=4),
    "leaking": {"source": "leaky.py", "max_batch_size": 1, "memory_limit_bytes": 1 << 29},
}
HUNGRY = """
import penstock
class Hungry(penstock.Handler):
    sample = 0
    def inference(self, batch):
        return [len(held) and tag for tag, held in [(tag, b'x' * (150 << 20)) for tag in batch]]
"""
# A child's memory is looked at every 20 ms, so a slower batch is looked at before the next.
LEAKY = """
import time
import penstock
LEAK = []
class Leaky(penstock.Handler):
    def inference(self, batch):
        LEAK.append(b'x' * 20_000_000)
        time.sleep(0.025)
        return batch
"""


def echoes(count: int) -> list[dict[str, Any]]:
    return [{"do": "echo", "tag": tag} for tag in range(count)]


def with_one(order: dict[str, Any]) -> list[dict[str, Any]]:
    """Return twenty orders of which the last is the bad one, because by then batches have grown to full size."""
    return [*echoes(19), order]


STUCK = "CUDA error: device-side assert triggered"
INPUTS: dict[str, Sequence[Any]] = {
    "raising": with_one({"do": "raise", "tag": "x"}),
    "segfaulting": with_one({"do": "segfault"}),
    "hanging": with_one({"do": "hang"}),
    "exhausting": with_one({"do": "exhaust"}),
    "small": echoes(40),
    "hungry": range(8),
    "stuck": with_one({"do": "device", "tag": STUCK}),
    "broken": echoes(8),
    "decoding": with_one({"do": "segfault"}),
    "unloadable": [{"do": "echo"}],
    "recycled": echoes(9),
}


@dataclass(frozen=True)
class Scene:
    """The worker, and the jobs of each model."""

    process: WorkerProcess
    url: str
    ids: dict[str, list[JobId]]

    def client(self, name: str) -> closing[JobClient]:
        return closing(JobClient(self.url, name))

    def jobs(self, name: str) -> list[Job]:
        """Return the model's jobs, once all have ended."""
        with self.client(name) as client:
            return client.await_final(self.ids[name], timeout_s=WITHIN_S)

    def outputs(self, name: str, count: int) -> list[Any]:
        with self.client(name) as client:
            return [client.output(id) for id in self.ids[name][:count]]

    def bad_one(self, name: str) -> Job:
        """Return the last job, once all have ended; its neighbours have succeeded."""
        *others, last = self.jobs(name)
        assert [job.state for job in others] == [JobState.SUCCEEDED] * 19
        return last

    def failed_slot(self, name: str, why: str) -> SlotInfo:
        def found(store: RedisStore) -> SlotInfo | None:
            slots = [slot for worker in store.workers() for slot in worker.slots]
            return next((slot for slot in slots if (slot.model, slot.state) == (name, "failed") and why in slot.error), None)

        with self.client(name) as client:
            return eventually(lambda: found(client.store), timeout_s=WITHIN_S)


@pytest.fixture(scope="module")
def scene(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("faults")
    (folder / "hungry.py").write_text(HUNGRY)
    (folder / "leaky.py").write_text(LEAKY)
    models = {
        name: {**table, "source": str(folder / table["source"])} if name in ("hungry", "leaking") else table
        for name, table in MODELS.items()
    }
    ids = {}
    for name, inputs in INPUTS.items():
        with closing(JobClient(redis_url, name)) as client:
            ids[name] = client.submit(*inputs)
    with WorkerProcess(redis_url, folder / "w", models) as process:
        yield Scene(process, redis_url, ids)


def test_an_item_that_raises_fails_alone(scene: Scene) -> None:
    bad = scene.bad_one("raising")
    assert scene.outputs("raising", 19) == list(range(19))
    assert bad.state is JobState.FAILED
    assert bad.error is not None
    assert bad.error.code == "handler_error"
    assert bad.batch is not None
    assert bad.batch.size > 1


def test_the_neighbours_of_a_segfault_succeed_and_the_item_is_given_up_as_poison(scene: Scene) -> None:
    bad = scene.bad_one("segfaulting")
    assert bad.state is JobState.DEAD
    assert bad.error is not None
    assert bad.error.code == "poison"
    assert bad.crashes == 2
    ended = scene.process.events("child_ended", "segfaulting")
    assert [entry["how"] for entry in ended] == ["ended by SIGSEGV"] * 2
    assert bad.error.message == "the process running it died 2 times; the last time: ended by SIGSEGV"


def test_an_item_that_hangs_times_out_and_its_neighbours_succeed(scene: Scene) -> None:
    bad = scene.bad_one("hanging")
    assert bad.state is JobState.FAILED
    assert bad.error is not None
    assert bad.error.code == "timeout"


def test_an_item_that_exhausts_memory_fails_alone(scene: Scene) -> None:
    bad = scene.bad_one("exhausting")
    assert scene.process.events("child_ended", "exhausting") == []
    assert bad.state is JobState.FAILED
    assert bad.error is not None
    assert bad.error.code == "oom"


def test_batches_that_do_not_fit_into_memory_are_halved_and_all_items_succeed(scene: Scene) -> None:
    jobs = scene.jobs("small")
    assert {job.state for job in jobs} == {JobState.SUCCEEDED}
    assert {job.attempts for job in jobs} == {1}
    # The cap grows back by one now and then, and a larger batch is halved again: so most batches are small, maybe not the last.
    sizes = sorted(job.batch.size for job in jobs if job.batch is not None)
    assert sizes[len(sizes) // 2] <= 2


def test_a_model_whose_largest_batch_does_not_fit_gets_ready_with_smaller_ones(scene: Scene) -> None:
    # A model with a sample once never loaded: the warm-up ran max_batch_size, and its MemoryError ended the load.
    jobs = scene.jobs("hungry")
    (ready,) = scene.process.events("child_ready", "hungry")
    assert scene.process.events("child_ended", "hungry") == []
    assert (
        ready["warmed"] == "a batch of 4 does not fit into memory, one of 2 does: batches begin there; set max_batch_size = 2"
    )
    assert scene.outputs("hungry", 8) == list(range(8))
    assert max(job.batch.size for job in jobs if job.batch) <= 2


def test_a_device_error_that_stays_ends_the_child_and_only_its_item_is_given_up(scene: Scene) -> None:
    # Halving the batch in the same process would fail all twenty, because every call after such an error raises it again.
    bad = scene.bad_one("stuck")
    assert bad.state is JobState.DEAD
    assert bad.error is not None
    assert f"its device cpu fails every call: RuntimeError: {STUCK}" in bad.error.message
    assert len(scene.process.events("child_ended", "stuck")) == 2


def test_a_broken_device_costs_no_job_anything_and_is_shown_as_unhealthy(scene: Scene) -> None:
    slot = scene.failed_slot("broken", "unhealthy")
    assert "next try in 60 s" in slot.error
    assert "uncorrectable ECC error" in slot.error
    assert len(scene.process.events("device_lost", "broken")) == 3
    with scene.client("broken") as client:
        jobs = [client.job(id) for id in scene.ids["broken"]]
    assert {job.crashes for job in jobs} == {0}
    assert not any(job.state.final for job in jobs)


def test_a_crash_while_decoding_the_input_is_charged_to_its_batch(scene: Scene) -> None:
    assert scene.bad_one("decoding").state is JobState.DEAD


def test_a_model_that_cannot_be_loaded_is_named_with_its_reason(scene: Scene) -> None:
    slot = scene.failed_slot("unloadable", "")
    ended = eventually(lambda: scene.process.events("child_ended", "unloadable"))
    # The supervisor ends such a child itself, and once logged that end as a kill for lack of memory.
    assert ended[0]["how"] == "stopped after the failed load"
    assert "the weights are missing" in slot.error
    with scene.client("unloadable") as client:
        assert client.states(scene.ids["unloadable"]) == ["queued"]


def test_a_child_may_be_replaced_after_so_many_batches(scene: Scene) -> None:
    jobs = scene.jobs("recycled")
    # The last job may end before the supervisor finds that the child that ran the job is worn.
    recycled = eventually(lambda: (found := scene.process.events("child_recycled", "recycled"))[1:] and found)
    # The child may already have the batch behind the fourth.
    assert [entry["batches"] in (4, 5) for entry in recycled] == [True, True]
    assert {(job.state, job.attempts, job.crashes) for job in jobs} == {(JobState.SUCCEEDED, 1, 0)}


def test_a_child_that_leaks_is_replaced_between_batches_and_no_item_fails(scene: Scene) -> None:
    ids: list[JobId] = []
    with scene.client("leaking") as client:
        # The limit holds 25 leaks at most.
        while not scene.process.events("child_recycled", "leaking"):
            assert len(ids) < 30
            ids += client.submit(len(ids))
            client.await_final(ids[-1:], timeout_s=WITHIN_S)
        ids += client.submit("after")
        jobs = client.await_final(ids, timeout_s=WITHIN_S)
    assert {(job.state, job.attempts) for job in jobs} == {(JobState.SUCCEEDED, 1)}

"""Where child processes really run, seen from outside: what the kernel says of each child, and what a gateway learns of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.celery_connection import broker_url
from penstock.broker.store.sync import RedisStore
from penstock.model_spec import SlotInfo
from penstock.workers.devices.topology import numbers, read_topology
from tests.eventually import eventually
from tests.integration.worker_process import FAULTY, WorkerProcess, await_listening
from tests.stock_celery import stock_celery

BUDGET = read_topology().budget
THREADED = """
import penstock
class Threaded(penstock.Handler):
    def initialize(self, context):
        import numpy
        self.product = numpy.ones((64, 64)) @ numpy.ones((64, 64))
    def inference(self, batch):
        return batch
"""


@contextmanager
def slots(url: str, folder: Path, models: dict[str, Any]) -> Iterator[list[SlotInfo]]:
    with WorkerProcess(url, folder, models) as process, closing(RedisStore(url)) as store:
        process.await_ready()
        yield [slot for worker in store.workers() for slot in worker.slots]


def allowed(pid: int) -> list[int]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return numbers(next(line.partition(":")[2] for line in lines if line.startswith("Cpus_allowed_list")))


def environment(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(entry.split("=", 1) for entry in entries if entry)


def await_threads(pid: int, count: int) -> None:
    """Wait for the threads, because two of a child's own three start only after its model was reported ready."""
    eventually(lambda: len(os.listdir(f"/proc/{pid}/task")) == count)


@pytest.mark.skipif(BUDGET < 2, reason="two slots with a core each need two cores")
def test_each_child_is_where_the_plan_says(fresh_redis: str, tmp_path: Path) -> None:
    models = {name: {"source": FAULTY + ":Faulty", "threads": 1} for name in ("first", "second")}
    with slots(fresh_redis, tmp_path, models) as found:
        assert [len(slot.cores) for slot in found] == [1, 1]
        assert found[0].cores != found[1].cores
        for slot in found:
            seen = environment(slot.pid)
            assert allowed(slot.pid) == list(slot.cores)
            assert (seen["OMP_NUM_THREADS"], seen["MKL_NUM_THREADS"], slot.threads) == ("1", "1", 1)
            # These values keep a library from opening a device by accident.
            assert (seen["CUDA_VISIBLE_DEVICES"], seen["CUDA_DEVICE_ORDER"]) == ("", "PCI_BUS_ID")
            # The child has three threads: one reads, one infers, one writes.
            await_threads(slot.pid, 3)


def test_models_that_share_lie_on_the_same_cores_and_libraries_start_as_many_threads_as_a_slot_has(
    fresh_redis: str, tmp_path: Path
) -> None:
    source, threads = tmp_path / "threaded.py", min(2, BUDGET)
    source.write_text(THREADED)
    models = {name: {"source": str(source), "placement": "shared", "threads": threads} for name in ("first", "second")}
    with slots(fresh_redis, tmp_path / "w", models) as found:
        assert found[0].cores == found[1].cores != ()
        assert [allowed(slot.pid) for slot in found] == [list(slot.cores) for slot in found]
        assert {(slot.placement, slot.threads) for slot in found} == {("shared", threads)}
        for slot in found:
            # OpenBLAS counts the calling thread as its first thread.
            await_threads(slot.pid, 3 + threads - 1)


@pytest.mark.skipif(BUDGET < 2, reason="a further slot needs a core that nobody has")
def test_a_slot_that_is_added_gets_the_free_core(fresh_redis: str, tmp_path: Path) -> None:
    with (
        WorkerProcess(fresh_redis, tmp_path, {"m": {"source": FAULTY + ":Faulty", "threads": BUDGET - 1}}) as process,
        closing(RedisStore(fresh_redis)) as store,
    ):
        name = process.await_ready()
        with stock_celery(broker_url(fresh_redis)) as stock:
            await_listening(stock, name)
            stock.control.pool_grow(1, destination=[name])
        found = eventually(lambda: ready(store, 2), timeout_s=20.0)
        assert len(set(found[0].cores) | set(found[1].cores)) == BUDGET
        assert allowed(found[1].pid) == list(found[1].cores)


def ready(store: RedisStore, count: int) -> list[SlotInfo]:
    found = [slot for worker in store.workers() for slot in worker.slots if slot.state == "ready"]
    return found if len(found) == count else []


def test_a_gpu_that_is_not_there_ends_the_worker_with_what_there_is(fresh_redis: str, tmp_path: Path) -> None:
    with WorkerProcess(fresh_redis, tmp_path, {"m": {"source": FAULTY + ":Faulty", "device": "cuda:99"}}) as process:
        assert process.exit_code(within_s=30.0) == 4
        log = process.log.read_text()
    assert "model m: device 'cuda:99': not there" in log
    assert "There is" in log
    assert "Traceback" not in log

"""A worker that serves a part of the models, in a pod whose API server does not answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.broker.store.sync import RedisStore
from tests.eventually import eventually
from tests.integration.worker_process import PACED, WorkerProcess

NOBODY = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
A_PART = {"PENSTOCK_WORKER__MODELS": "text-*", "PENSTOCK_WORKER__POD": "penstock-worker-1"}


@pytest.fixture(scope="module")
def worker(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    models = {name: {"source": PACED, "warm_up": False} for name in ("text-a", "image")}
    folder = tmp_path_factory.mktemp("worker")
    with WorkerProcess(redis_url, folder, models, {**NOBODY, **A_PART}) as started:
        yield started


def test_it_serves_the_models_that_it_is_given(worker: WorkerProcess, redis_url: str) -> None:
    store = RedisStore(redis_url)
    eventually(lambda: any(slot.state == "ready" for found in store.workers() for slot in found.slots))
    assert {slot.model for found in store.workers() for slot in found.slots} == {"text-a"}
    store.close()


def test_a_cost_that_cannot_be_written_is_a_line_of_the_log(worker: WorkerProcess) -> None:
    eventually(lambda: "pod_deletion_cost_not_written" in worker.log.read_text())
    [line] = [line for line in worker.log.read_text().splitlines() if "pod_deletion_cost_not_written" in line]
    assert "penstock-worker-1" in line
    assert "serviceaccount" in line
    assert worker.process.poll() is None

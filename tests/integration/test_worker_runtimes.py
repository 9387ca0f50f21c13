"""Options of a runtime reach the child that runs the model, from the settings on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from penstock.broker.store.sync import RedisStore
from penstock.model_spec import SlotInfo
from tests.eventually import eventually
from tests.integration.worker_process import JobClient, WorkerProcess
from tests.onnx_models import perceptron, saved

WIDTH = 128


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runtimes")


@pytest.fixture(scope="module")
def worker(redis_url: str, folder: Path) -> Iterator[WorkerProcess]:
    source = str(saved(perceptron(width=WIDTH), folder / "model.onnx"))
    models = {
        "small": {
            "source": source,
            "provider": "cpu",
            "quantize": "int8",
            "batch_buckets": [2, 8],
            "cache_dir": "kept",
            "session": {"graph_optimization_level": "basic", "session.intra_op.allow_spinning": "0"},
        },
        "misspelt": {"source": source, "session": {"graph_optimisation_level": "basic"}},
    }
    with WorkerProcess(redis_url, folder, models) as worker:
        yield worker


def slot(url: str, model: str, state: str) -> SlotInfo:
    with closing(RedisStore(url)) as store:
        return eventually(
            lambda: next(
                (slot for worker in store.workers() for slot in worker.slots if (slot.model, slot.state) == (model, state)),
                None,
            ),
            timeout_s=30.0,
        )


def test_a_model_runs_with_the_options_of_its_table(worker: WorkerProcess, redis_url: str, folder: Path) -> None:
    assert slot(redis_url, "small", "ready").provider == "CPUExecutionProvider"
    rows = np.random.default_rng(5).standard_normal((3, WIDTH)).astype(np.float32)
    with closing(JobClient(redis_url, "small")) as client:
        ids = client.submit(*rows.tolist())
        client.await_final(ids)
        got = np.array([client.output(id)["y"] for id in ids])
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(["y"], {"x": rows})
    # The answers are close and not equal, which shows that the int8 copy ran.
    assert 0 < np.abs(got - wanted).max() < 0.1
    assert len(list((folder / "kept").glob("*.onnx"))) == 1


def test_an_option_that_does_not_exist_keeps_its_model_out_and_says_why(worker: WorkerProcess, redis_url: str) -> None:
    assert "did you mean graph_optimization_level" in slot(redis_url, "misspelt", "failed").error

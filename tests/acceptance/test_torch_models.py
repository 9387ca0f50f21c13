"""Torch model files as a caller sees them: `penstock up` serves them without code of the user's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.acceptance.test_cli import stopped
from tests.acceptance.warm_up import started

pytest.importorskip("torch")
pytest.importorskip("safetensors")
from safetensors.torch import save_file

from tests.unit.handlers.runtimes.torch import nets

SETTINGS = """
[models.exported]
source = "net.pt2"
batch_buckets = [1, 4]

[models.weights]
source = "net.safetensors"
precision = "bf16"
options = { model_class = "nets.py:Perceptron", inputs = { x = { shape = [4] } } }
"""
ROWS = [[1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 1.0]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torch")
    net = nets.save_perceptron(folder / "net.pt2", {"x": {0: nets.batch_axis()}})
    save_file(net.state_dict(), folder / "net.safetensors")
    (folder / "nets.py").write_bytes(Path(nets.__file__).read_bytes())
    (folder / "penstock.toml").write_text(SETTINGS)
    return folder


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[httpx2.Client]:
    up = started(folder)
    with httpx2.Client(base_url=up.ready["url"], timeout=60.0) as client:
        yield client
    assert stopped(up) == 0, (folder / "up.log").read_text()


def test_an_exported_program_and_weights_answer_over_http(client: httpx2.Client, folder: Path) -> None:
    import torch

    with torch.inference_mode():
        wanted = nets.seeded(nets.Perceptron)(torch.tensor(ROWS)).tolist()
    for row, want in zip(ROWS, wanted, strict=True):
        exact = client.post("/predictions/exported", json={"x": row})
        assert exact.json()["output"] == pytest.approx(want, rel=1e-5, abs=1e-6)
        rounded = client.post("/predictions/weights", json=row)
        assert rounded.json()["output"] == pytest.approx(want, rel=2e-2, abs=2e-2)


def test_the_workers_say_what_runs_the_model_and_the_schema_what_it_takes(client: httpx2.Client) -> None:
    workers = client.get("/v1/workers").json()
    providers = {slot["model"]: slot["provider"] for worker in workers["data"] for slot in worker["slots"]}
    assert providers["exported"].startswith("torch ")
    assert providers["weights"].endswith("cpu bf16")
    bad = client.post("/predictions/exported", json={"x": [1.0, 2.0]})
    assert bad.status_code == 422
    assert bad.json()["code"] == "invalid_input"

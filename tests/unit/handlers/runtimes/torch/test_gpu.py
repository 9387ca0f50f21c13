"""Tests that need a GPU; run them with `-m gpu`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.handlers.contract import Context
from penstock.handlers.load import load
from penstock.handlers.runtimes.contract import open_runtime
from penstock.model_spec import RuntimeOptions

torch = pytest.importorskip("torch")
from tests.unit.handlers.runtimes.torch import nets  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
    pytest.mark.filterwarnings(r"ignore:`torch\.jit\.script_method` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings(r"ignore:.*LeafSpec.* is deprecated:FutureWarning"),
]
# Mantissas have 8 bits (bf16) or 11 (fp16 and tf32), and a few roundings add up.
TOLERANCE = {"fp32": 1e-4, "tf32": 5e-3, "fp16": 5e-3, "bf16": 3e-2}


def images(rows: int) -> Any:
    return np.random.default_rng(rows).standard_normal((rows, 3, 8, 8)).astype(np.float32)


def opened(path: Path, **options: Any) -> Any:
    return open_runtime(path, Context("net", device="cuda", folder=path.parent, runtime=RuntimeOptions(**options)))


def check(runtime: Any, net: Any, tolerance: float) -> None:
    for rows in (1, 3, 4, 6, 3):
        with torch.inference_mode():
            wanted = net(torch.from_numpy(images(rows)))["logits"].numpy()
        np.testing.assert_allclose(runtime.run({"pixels": images(rows)})["logits"], wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("options", [{}, {"channels_last": True}, {"cuda_graphs": True, "batch_buckets": (1, 4)}])
def test_results_are_those_of_the_cpu(tmp_path: Path, precision: str, options: dict[str, Any]) -> None:
    net = nets.save_convolutions(tmp_path / "net.pt2")
    runtime = opened(tmp_path / "net.pt2", precision=precision, **options)
    assert torch.cuda.get_device_name(0) in runtime.provider
    check(runtime, net, TOLERANCE[precision])


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_results_are_those_of_the_cpu(tmp_path: Path, mode: str) -> None:
    net = nets.save_convolutions(tmp_path / "net.pt2")
    check(opened(tmp_path / "net.pt2", compile=mode, batch_buckets=(1, 4)), net, TOLERANCE["fp32"])


def test_uploaded_batches_and_their_halves_give_the_same_results(tmp_path: Path) -> None:
    net = nets.save_convolutions(tmp_path / "net.pt2")
    loaded = load(str(tmp_path / "net.pt2"), "net", device="cuda")
    assert loaded.preprocess is not None
    batches = [loaded.preprocess([image.tolist() for image in images(rows)]) for rows in (4, 2, 5)]
    for rows, items in zip((4, 2, 5), batches, strict=True):
        with torch.inference_mode():
            wanted = net(torch.from_numpy(images(rows)))["logits"].numpy()
        for part in (slice(None), slice(1, None)):
            found = [answer["logits"] for answer in loaded.inference(items[part])]
            np.testing.assert_allclose(found, wanted[part], rtol=1e-4, atol=1e-4)


def test_an_index_beyond_the_last_gpu_is_refused(tmp_path: Path) -> None:
    nets.save_convolutions(tmp_path / "net.pt2")
    with pytest.raises(Exception, match="was asked for, but torch"):
        open_runtime(tmp_path / "net.pt2", Context("net", device=f"cuda:{torch.cuda.device_count()}"))

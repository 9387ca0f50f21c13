"""The faults of a model file that are found before anything starts; the files are made without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.handlers.contract import Context
from penstock.handlers.model_file import file_faults
from penstock.model_spec import RuntimeOptions
from tests.onnx_models import perceptron, saved
from tests.unit.handlers.tasks.test_file_handler import made

INPUTS = {"x": {"shape": [4]}}


def faults(
    path: Path, task: str = "", *, options: dict[str, Any] | None = None, device: str = "cpu", **runtime: Any
) -> list[str]:
    context = Context("m", device=device, options=options or {}, folder=path.parent, runtime=RuntimeOptions(**runtime))
    return file_faults(path, context, task=task)


@pytest.fixture
def onnx(tmp_path: Path) -> Path:
    return saved(perceptron(), tmp_path / "model.onnx")


def test_a_model_that_can_be_loaded_has_no_faults(onnx: Path, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("")
    (tmp_path / "names.txt").write_text("cat\ndog\n")
    assert faults(onnx, session={"graph_optimization_level": "basic", "shapes": {"x": [[1], [2], [3]]}}) == []
    assert faults(onnx, "image-classification", options={"labels": "names.txt"}, batch_buckets=(1, 8)) == []
    assert faults(made(tmp_path, "exported.pt2"), compile="default", precision="bf16") == []
    assert faults(made(tmp_path, "weights.pt"), options={"inputs": INPUTS, "model_class": "net.py:Net"}) == []
    assert faults(made(tmp_path, "model.plan"), device="cuda:0") == []


def test_an_onnx_model_in_another_precision_than_asked_for_is_known_from_its_file(onnx: Path) -> None:
    """Regression: only the child reported this fault, at every restart, while `penstock doctor` found none."""
    (fault,) = faults(onnx, precision="fp16")
    assert fault.startswith("model.onnx is a model in fp32, and the provider cpu runs it as it is")


@pytest.mark.parametrize(
    ("task", "options", "words"),
    [
        ("image-classification", {"labels": "absent.txt"}, "absent.txt cannot be read"),
        ("image-classification", {"top_k": 0}, "option top_k of image-classification"),
        ("image-classification", {"topk": 3}, "did you mean top_k?"),
        ("text-classification", {}, "there is no tokenizer"),
    ],
)
def test_a_tasks_options_and_the_files_they_name_are_looked_at(
    onnx: Path, task: str, options: dict[str, Any], words: str
) -> None:
    (fault,) = faults(onnx, task, options=options)
    assert words in fault


@pytest.mark.parametrize(
    ("name", "options", "runtime", "words"),
    [
        ("exported.pt2", {}, {"precision": "fp16"}, "no fast kernels on the CPU"),
        ("script.pt", {}, {}, "does not say what its inputs are"),
        ("weights.pt", {"inputs": INPUTS}, {}, "name the class they belong to"),
        ("weights.pt", {"inputs": INPUTS, "model_class": "gone.py:Net"}, {}, "gone.py; it is looked for next to the weights"),
        ("model.onnx", {}, {"compile": "default"}, "compile = 'default' is an option of the runtime torch"),
        ("model.onnx", {}, {"provider": "cuda"}, "does not run on the device 'cpu'"),
        ("model.onnx", {}, {"session": {"enable_mem": True}}, "enable_mem is not known here"),
        ("model.onnx", {}, {"runtime": "tensorrt"}, "TensorRT runs on GPUs"),
        ("model.onnx", {}, {"runtime": "torch"}, "runtime 'torch' cannot run a .onnx file"),
        ("model.plan", {}, {}, "TensorRT runs on GPUs"),
        ("model.onnx", {}, {"batch_buckets": (1, 16)}, "go beyond max_batch_size = 8"),
    ],
)
def test_settings_that_do_not_go_with_the_file_are_told(
    tmp_path: Path, name: str, options: dict[str, Any], runtime: dict[str, Any], words: str
) -> None:
    (fault,) = faults(made(tmp_path, name), options=options, **runtime)
    assert words in fault


def test_all_that_is_wrong_is_told_at_once(onnx: Path) -> None:
    found = faults(onnx, "image-classification", options={"labels": "no.txt"}, precision="bf16", batch_buckets=(9,))
    assert len(found) == 3


def test_nothing_that_runs_models_is_imported_for_it(onnx: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from penstock.handlers.contract import Context
from penstock.handlers.model_file import file_faults
from penstock.model_spec import RuntimeOptions
path = Path({str(onnx)!r})
context = Context("m", options={{"labels": "no.txt"}}, folder=path.parent, runtime=RuntimeOptions(precision="fp16"))
assert len(file_faults(path, context, task="image-classification")) == 2
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"torch", "onnxruntime", "tensorrt", "numpy", "PIL", "tokenizers"} & set(done.stdout.split())

from __future__ import annotations

from typing import Any

import pytest

from penstock.handlers.runtimes.extras import missing_extras
from penstock.model_spec import RuntimeOptions


@pytest.mark.parametrize(
    ("source", "device", "options", "extras"),
    [
        ("m.onnx", "cpu", {}, ["onnx"]),
        ("m.onnx", "cuda:0", {}, ["onnx-gpu"]),
        ("m.onnx", "cuda", {"provider": "tensorrt"}, ["onnx-gpu", "onnx-tensorrt"]),
        ("m.onnx", "cuda", {"runtime": "tensorrt"}, ["tensorrt"]),
        ("m.onnx", "cpu", {"quantize": "int8"}, ["onnx", "onnx-quantize"]),
        ("M.ONNX", "cpu", {}, ["onnx"]),
        ("m.plan", "cuda", {}, ["tensorrt"]),
        ("m.py", "cpu", {}, []),
        ("package.module:Name", "cpu", {}, []),
    ],
)
def test_a_model_file_needs_the_extra_of_its_runtime(
    source: str, device: str, options: dict[str, Any], extras: list[str]
) -> None:
    assert missing_extras(source, device, RuntimeOptions(**options), lambda package: None) == extras


def test_any_package_that_brings_it_will_do() -> None:
    assert missing_extras("m.onnx", "cpu", RuntimeOptions(), {"onnxruntime-gpu": "1.31"}.get) == []
    assert missing_extras("m.onnx", "cuda", RuntimeOptions(), {"onnxruntime": "1.31"}.get) == ["onnx-gpu"]


def test_a_tensorrt_that_onnx_runtime_cannot_load_is_not_the_one_it_needs() -> None:
    # Regression: all extras installed TensorRT 11.4, ONNX Runtime looked for libnvinfer.so.10, and the model failed to load.
    options = RuntimeOptions(provider="tensorrt")
    for version, missing in {"11.4.0.106": ["onnx-tensorrt"], "10.16.1.11": []}.items():
        installed = {"onnxruntime-gpu": "1.31.1", "tensorrt": version, "tensorrt-cu13": version}
        assert missing_extras("m.onnx", "cuda", options, installed.get) == missing
    assert missing_extras("m.plan", "cuda", RuntimeOptions(), {"tensorrt": "11.4.0.106"}.get) == []


@pytest.mark.parametrize(("task", "extras"), [("", []), ("image-classification", ["images"]), ("text-embedding", ["text"])])
def test_a_task_around_a_model_file_needs_what_reads_its_inputs(task: str, extras: list[str]) -> None:
    assert missing_extras("m.pt2", "cpu", RuntimeOptions(), {"torch": "2.13"}.get, task=task) == extras

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from penstock.errors import HandlerLoadError
from penstock.handlers.runtimes.onnx import onnx_file
from tests.onnx_models import conv_net, perceptron, saved


def test_inputs_and_weights_are_read_as_the_onnx_package_reads_them(tmp_path: Path) -> None:
    model = conv_net()
    found = onnx_file.read(saved(model, tmp_path / "conv.onnx"))
    assert found.inputs == {"x": (None, 3, 16, 16)}
    assert found.weights == {"fp32": sum(numpy_helper.to_array(tensor).size for tensor in model.graph.initializer)}
    assert found.files == ()
    assert onnx_file.read(model.SerializeToString()) == found


def test_the_precision_is_that_of_most_weights() -> None:
    assert onnx_file.read(conv_net(dtype=np.float16).SerializeToString()).precision == "fp16"
    assert onnx_file.read(conv_net().SerializeToString()).precision == "fp32"


def test_weights_in_constants_and_in_branches_count_too() -> None:
    branches = {}
    for name in ("then", "else"):
        constant = helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.ones(4, np.float16), "c"))
        value = helper.make_tensor_value_info(name, TensorProto.FLOAT16, [4])
        branches[f"{name}_branch"] = helper.make_graph([constant], name, [], [value])
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT16, [4])
    model = helper.make_model(helper.make_graph([helper.make_node("If", ["flag"], ["out"], **branches)], "g", [flag], [out]))
    found = onnx_file.read(model.SerializeToString())
    assert found.weights == {"fp16": 8}
    assert found.inputs == {"flag": ()}


def test_files_with_weights_outside_the_model_are_named(tmp_path: Path) -> None:
    path = tmp_path / "outside.onnx"
    onnx.save(perceptron(), path, save_as_external_data=True, location="outside.bin", size_threshold=0)
    found = onnx_file.read(path)
    assert found.files == ("outside.bin",)
    assert found.weights == {"fp32": 3 * 64 * 64}


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x3a\xff\xff\x01short", b"\xff" * 30])
def test_what_is_no_model_is_told_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(content)
    with pytest.raises(HandlerLoadError, match=r"broken\.onnx is not an ONNX model"):
        onnx_file.read(path)

"""Small ONNX models, built in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def conv_net(*, batch: int | str = "n", relu: str = "Relu", dtype: Any = np.float32) -> onnx.ModelProto:
    """Build a model from `x` [batch, 3, 16, 16] to `y` [batch, 5]: a convolution, a pool, a matrix product."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((8, 3, 3, 3)), "fc": rng.standard_normal((8, 5))}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv1", pads=[1, 1, 1, 1]),
        helper.make_node(relu, ["c"], ["r"], name="relu1"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flat"),
        helper.make_node("MatMul", ["f", "fc"], ["y"], name="fc1"),
    ]
    return _model(nodes, ("x", [batch, 3, 16, 16]), ("y", [batch, 5]), weights, dtype)


def perceptron(*, width: int = 64, depth: int = 3, batch: int | str = "n", dtype: Any = np.float32) -> onnx.ModelProto:
    """Build a model from `x` [batch, width] to `y` of the same shape: matrix products with a Tanh between."""
    rng = np.random.default_rng(0)
    weights = {f"w{layer}": rng.standard_normal((width, width)) / width**0.5 for layer in range(depth)}
    nodes = []
    for layer in range(depth):
        nodes.append(
            helper.make_node("MatMul", [f"t{layer}" if layer else "x", f"w{layer}"], [f"m{layer}"], name=f"dot{layer}")
        )
        nodes.append(helper.make_node("Tanh", [f"m{layer}"], [f"t{layer + 1}" if layer + 1 < depth else "y"]))
    return _model(nodes, ("x", [batch, width]), ("y", [batch, width]), weights, dtype)


def saved(model: onnx.ModelProto, path: Path) -> Path:
    onnx.save(model, path)
    return path


def _model(
    nodes: Sequence[onnx.NodeProto],
    given: tuple[str, list[int | str]],
    made: tuple[str, list[int | str]],
    weights: dict[str, Any],
    dtype: Any,
) -> onnx.ModelProto:
    element = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}[np.dtype(dtype).name]
    ports = [helper.make_tensor_value_info(name, element, shape) for name, shape in (given, made)]
    tensors = [numpy_helper.from_array(array.astype(dtype), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "graph", ports[:1], ports[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def sum_and_difference(*, width: int = 16) -> onnx.ModelProto:
    """Build the model of Triton's examples, of INT32 [n, 16]: OUTPUT0 is INPUT0 + INPUT1, OUTPUT1 their difference."""
    nodes = [
        helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
        helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
    ]
    ports = {
        name: helper.make_tensor_value_info(name, TensorProto.INT32, ["n", width])
        for name in ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")
    }
    given, made = [ports["INPUT0"], ports["INPUT1"]], [ports["OUTPUT0"], ports["OUTPUT1"]]
    graph = helper.make_graph(nodes, "graph", given, made)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

"""Writes all-MiniLM-L6-v2 as ONNX directly from its weights file, without torch and without an exporter.

The network is BERT with 6 layers (arXiv:1810.04805), then the mean over the tokens, scaled to length 1. The
model is built in memory once per start, which takes about a second and 90 MB.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
LAYERS = 6
HEADS = 12
WIDTH = 384
EPSILON = 1e-12


def model_bytes(weights_file: Path) -> bytes:
    """Inputs `ids` and `mask`, int64 [batch, tokens]; output `sentence`, float32 [batch, 384]."""
    net = Network(read_safetensors(weights_file))
    state = net.embeddings()
    bias = net.attention_bias()
    for layer in range(LAYERS):
        state = net.feed_forward(net.attention(state, bias, f"encoder.layer.{layer}"), f"encoder.layer.{layer}")
    net.pooled(state)
    return net.serialized()


def read_safetensors(path: Path) -> dict[str, Array]:
    """Every float tensor of the file. Layout: header length, JSON header, data (github.com/huggingface/safetensors)."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    floats = {name: entry for name, entry in header.items() if entry.get("dtype") == "F32"}
    return {name: _tensor(data, start, entry) for name, entry in floats.items()}


def _tensor(data: bytes, start: int, entry: dict[str, Any]) -> Array:
    begin, end = entry["data_offsets"]
    return np.frombuffer(data, np.float32, (end - begin) // 4, start + begin).reshape(entry["shape"])


class Network:
    """A graph under construction. Each method adds one part and returns the name of the value it computes."""

    def __init__(self, weights: dict[str, Array]) -> None:
        self._weights = weights
        self._nodes: list[Any] = []
        self._constants: dict[str, Any] = {}

    def embeddings(self) -> str:
        words = self._add("Gather", self._weight("embeddings.word_embeddings.weight"), "ids")
        # With a single sentence every token has type 0, so the row of type 0 is added to all positions in advance.
        kind = self._weights["embeddings.token_type_embeddings.weight"][0]
        table = self._constant("positions", self._weights["embeddings.position_embeddings.weight"] + kind)
        length = self._add("Shape", "ids", start=1, end=2)
        rows = self._add("Slice", table, self._constant("zero", np.array([0])), length, self._constant("axis_0", np.array([0])))
        return self._normed(self._add("Add", words, rows), "embeddings.LayerNorm")

    def attention_bias(self) -> str:
        """0 for tokens, a large negative number for padding, shaped for [batch, heads, from, to]."""
        padding = self._add("Sub", self._constant("one", np.float32(1)), self._add("Cast", "mask", to=TensorProto.FLOAT))
        axes = self._constant("axes_1_2", np.array([1, 2]))
        return self._add("Unsqueeze", self._add("Mul", padding, self._constant("minus", np.float32(-1e9))), axes)

    def attention(self, state: str, bias: str, layer: str) -> str:
        own = f"{layer}.attention.self"
        query = self._heads(self._dense(state, f"{own}.query"), [0, 2, 1, 3])
        key = self._heads(self._dense(state, f"{own}.key"), [0, 2, 3, 1])
        value = self._heads(self._dense(state, f"{own}.value"), [0, 2, 1, 3])
        scale = self._constant("scale", np.float32((WIDTH // HEADS) ** -0.5))
        scores = self._add("Add", self._add("Mul", self._add("MatMul", query, key), scale), bias)
        mixed = self._add("MatMul", self._add("Softmax", scores, axis=-1), value)
        flat = self._reshaped(self._add("Transpose", mixed, perm=[0, 2, 1, 3]), [0, 0, WIDTH])
        return self._closed(flat, state, f"{layer}.attention.output")

    def feed_forward(self, state: str, layer: str) -> str:
        wide = self._add("Gelu", self._dense(state, f"{layer}.intermediate.dense"))
        return self._closed(wide, state, f"{layer}.output")

    def pooled(self, state: str) -> None:
        mask = self._add("Unsqueeze", self._add("Cast", "mask", to=TensorProto.FLOAT), self._constant("axis_2", np.array([2])))
        axis = self._constant("axis_1", np.array([1]))
        total = self._add("ReduceSum", self._add("Mul", state, mask), axis, keepdims=0)
        mean = self._add("Div", total, self._add("ReduceSum", mask, axis, keepdims=0))
        self._nodes.append(helper.make_node("LpNormalization", [mean], ["sentence"], axis=1, p=2))

    def serialized(self) -> bytes:
        inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"]) for name in ("ids", "mask")]
        output = helper.make_tensor_value_info("sentence", TensorProto.FLOAT, ["batch", WIDTH])
        graph = helper.make_graph(self._nodes, "all-MiniLM-L6-v2", inputs, [output], list(self._constants.values()))
        # Opset 20 is the first with Gelu.
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        serialized: bytes = model.SerializeToString()
        return serialized

    def _closed(self, value: str, residual: str, name: str) -> str:
        return self._normed(self._add("Add", self._dense(value, f"{name}.dense"), residual), f"{name}.LayerNorm")

    def _dense(self, value: str, name: str) -> str:
        matrix = self._constant(f"{name}.matrix", np.ascontiguousarray(self._weights[f"{name}.weight"].T))
        return self._add("Add", self._add("MatMul", value, matrix), self._weight(f"{name}.bias"))

    def _normed(self, value: str, name: str) -> str:
        scale, shift = self._weight(f"{name}.weight"), self._weight(f"{name}.bias")
        return self._add("LayerNormalization", value, scale, shift, axis=-1, epsilon=EPSILON)

    def _heads(self, value: str, order: Sequence[int]) -> str:
        return self._add("Transpose", self._reshaped(value, [0, 0, HEADS, WIDTH // HEADS]), perm=order)

    def _reshaped(self, value: str, shape: Sequence[int]) -> str:
        return self._add("Reshape", value, self._constant("shape_" + "_".join(map(str, shape)), np.array(shape)))

    def _weight(self, name: str) -> str:
        return self._constant(name, self._weights[name])

    def _constant(self, name: str, value: Any) -> str:
        self._constants.setdefault(name, numpy_helper.from_array(np.asarray(value), name))
        return name

    def _add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

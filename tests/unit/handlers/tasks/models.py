"""Small ONNX models and a small tokenizer, made in memory; the results of each can be checked by hand."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from penstock.handlers.load import load
from penstock.handlers.loaded import Loaded
from penstock.workers.child.runner import run_batch
from penstock.workers.ipc.frames import Item, Output

WORDS = ["[PAD]", "[UNK]", "red", "green", "blue", "and", "of", "the"]
# Pixels stay from 0 to 1, so that a test can state what a model computes.
PLAIN: dict[str, Any] = {"mean": [0.0], "std": [1.0]}


def saved(
    path: Path,
    nodes: Sequence[Any],
    inputs: dict[str, tuple[int, Sequence[Any]]],
    outputs: Mapping[str, int],
    constants: dict[str, Any] | None = None,
) -> Path:
    values = [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(
        list(nodes),
        "model",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        values,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def mean_colour(folder: Path, shape: Sequence[Any] = ("n", 3, 4, 4), kind: int = TensorProto.FLOAT) -> Path:
    """`scores` [n, 3]: ten times the mean of each channel, so a plain red image is class 0."""
    axes = [2, 3] if shape[1] in (1, 3) else [1, 2]
    nodes = [
        helper.make_node("Cast", ["image"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["real"], ["mean"], axes=axes, keepdims=0),
        helper.make_node("Mul", ["mean", "ten"], ["scores"]),
    ]
    return saved(
        folder / "colour.onnx", nodes, {"image": (kind, shape)}, {"scores": TensorProto.FLOAT}, {"ten": np.float32(10)}
    )


def same(folder: Path, shape: Sequence[Any] = ("n", 3, 4, 4)) -> Path:
    """`out` is the input: the class of a pixel is its strongest channel."""
    nodes = [helper.make_node("Identity", ["image"], ["out"])]
    return saved(folder / "same.onnx", nodes, {"image": (TensorProto.FLOAT, shape)}, {"out": TensorProto.FLOAT})


def answering(folder: Path, outputs: dict[str, Any], shape: Sequence[Any] = ("n", 3, 4, 4)) -> Path:
    """Save a model that returns these arrays for every image."""
    nodes = [
        helper.make_node("ReduceMax", ["image"], ["top"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("Mul", ["top", "nothing"], ["zero"]),
    ]
    constants: dict[str, Any] = {"nothing": np.float32(0)}
    for name, value in outputs.items():
        array = np.asarray(value)
        constants[f"{name}_value"] = array[None].astype(np.float32)
        constants[f"{name}_axes"] = np.arange(1, array.ndim + 1)
        nodes += [
            helper.make_node("Unsqueeze", ["zero", f"{name}_axes"], [f"{name}_zero"]),
            helper.make_node("Add", [f"{name}_zero", f"{name}_value"], [f"{name}_real"]),
            helper.make_node("Cast", [f"{name}_real"], [name], to=helper.np_dtype_to_tensor_dtype(array.dtype)),
        ]
    kinds = {name: helper.np_dtype_to_tensor_dtype(np.asarray(value).dtype) for name, value in outputs.items()}
    return saved(folder / "answering.onnx", nodes, {"image": (TensorProto.FLOAT, shape)}, kinds, constants)


def tokenizer(folder: Path, *, truncation: int | None = None, direction: str = "right", marks: str = "") -> Path:
    """Save a tokenizer with one token per word; `marks` is a template around them, such as "the $A and"."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    made = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    if marks:
        named = [(word, WORDS.index(word)) for word in marks.split() if word != "$A"]
        made.post_processor = processors.TemplateProcessing(single=marks, special_tokens=named)
    if truncation:
        made.enable_truncation(truncation, direction=direction)
    path = folder / "tokenizer.json"
    made.save(str(path))
    return path


def states(folder: Path, names: Sequence[str] = ("input_ids", "attention_mask"), *, padding: float = 0.0) -> Path:
    """`last_hidden_state` [n, tokens, 2] is (id, 1) of each token; if the id is 0, as for padding, `padding` is added."""
    nodes = [
        helper.make_node("Cast", [names[0]], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["real", "axis"], ["id"]),
        helper.make_node("Mul", ["id", "zero"], ["nothing"]),
        helper.make_node("Add", ["nothing", "one"], ["ones"]),
        helper.make_node("Equal", ["id", "zero"], ["filled"]),
        helper.make_node("Where", ["filled", "padding", "zero"], ["more"]),
        helper.make_node("Concat", ["id", "ones"], ["both"], axis=2),
        helper.make_node("Add", ["both", "more"], ["last_hidden_state"]),
    ]
    constants = {"axis": np.array([2]), "zero": np.float32(0), "one": np.float32(1), "padding": np.float32(padding)}
    inputs: dict[str, tuple[int, Sequence[Any]]] = {name: (TensorProto.INT64, ["n", "tokens"]) for name in names}
    return saved(folder / "states.onnx", nodes, inputs, {"last_hidden_state": TensorProto.FLOAT}, constants)


def bright_words(folder: Path) -> Path:
    """The larger the sum of the ids, the higher is the score of class 1."""
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["real", "axes"], ["sum"], keepdims=1),
        helper.make_node("Mul", ["sum", "weights"], ["logits"]),
    ]
    constants = {"axes": np.array([1]), "weights": np.array([[0.0, 0.1]], dtype=np.float32)}
    inputs: dict[str, Any] = {"input_ids": (TensorProto.INT64, ["n", "tokens"])}
    return saved(folder / "words.onnx", nodes, inputs, {"logits": TensorProto.FLOAT}, constants)


def picture(pixels: Any, *, form: str = "PNG", exif: Any = None) -> bytes:
    buffer = io.BytesIO()
    options = {} if exif is None else {"exif": exif}
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(buffer, form, **options)
    return buffer.getvalue()


def plain(colour: tuple[int, int, int], width: int = 8, height: int = 8) -> bytes:
    return picture(np.full((height, width, 3), colour))


def opened(source: Path, task: str, *, threads: int = 1, **options: Any) -> Loaded:
    return load(str(source), "model", task=task, threads=threads, options=options)


def ask(loaded: Loaded, *inputs: Any) -> list[Any]:
    """Return decoded answers and unchanged failures. Bytes are sent unchanged, every other input as JSON."""
    items = [
        Item("image/png", given) if isinstance(given, bytes) else Item("application/json", json.dumps(given).encode())
        for given in inputs
    ]
    outcomes = run_batch(loaded, items).outcomes
    return [read(outcome) if isinstance(outcome, Output) else outcome for outcome in outcomes]


def read(output: Output) -> Any:
    return json.loads(output.data) if output.content_type == "application/json" else output.data

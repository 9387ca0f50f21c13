"""The rows of `make gpu`: batch sizes by precision by compilation, and the examples on ONNX Runtime. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from benchmarks.models.rows import Row

_PRECISIONS = ("fp32", "bf16", "fp16")
# The ends of the range come first, because the machine may be gone before the sizes between them are measured.
_BATCHES = (64, 1, 8, 32)
# Compiling takes longer than the rest of a row, and two batch sizes show its gain.
_COMPILED = (64, 8)
_QUICK = 8
# The CPU decodes images. More threads than this do not feed a device faster, and the other processes need cores too.
_MOST_THREADS = 8
_OTHERS = 3


def gpu_rows(cores: int) -> list[Row]:
    """The most informative rows first. Rows on ONNX Runtime are skipped if its build for GPUs is missing (`Row.lacking`)."""
    threads = max(1, min(_MOST_THREADS, cores - _OTHERS))

    def row(model: str, runtime: str, batch: int, precision: str = "fp32") -> Row:
        quick = batch == _QUICK and runtime != "torch compile"
        return Row(model, runtime, batch, precision, threads=threads, quick=quick, device="cuda")

    rows: list[Row] = []
    for batch in _BATCHES:
        rows += [row("vision", "torch.export", batch, kind) for kind in _PRECISIONS]
        rows += [row("vision", "torch compile", batch, kind) for kind in _PRECISIONS if batch in _COMPILED]
        rows.append(row("vision", "onnx", batch))
    return [*rows, row("embeddings", "onnx", 64)]


def result_name(device_name: str) -> str:
    """`NVIDIA H200` -> `gpu-nvidia-h200.json`."""
    return f"gpu-{re.sub(r'[^a-z0-9]+', '-', device_name.lower()).strip('-') or 'unnamed'}.json"


def busy_share(readings: Iterable[float | None]) -> float | None:
    """The mean of all known readings; None: the device gave none."""
    known = [reading for reading in readings if reading is not None]
    return sum(known) / len(known) if known else None

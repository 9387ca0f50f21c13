"""What `make gpu` measures on the device: batch by precision by compilation, and the examples on ONNX Runtime. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from penstock.benchmarks.model_rows import Row

_PRECISIONS = ("fp32", "fp16", "bf16")
_BATCHES = (1, 8, 32, 64)
# A compilation takes half a minute: two sizes show what it brings.
_COMPILED = (8, 64)
# Decoding images is the CPU's part; more cores than these do not feed a device faster, and the other processes need some.
_MOST_THREADS = 8
_OTHERS = 3


def gpu_rows(cores: int, *, onnx: bool) -> list[Row]:
    """`onnx`: whether ONNX Runtime's build for GPUs is installed."""
    threads = max(1, min(_MOST_THREADS, cores - _OTHERS))

    def row(model: str, runtime: str, batch: int, precision: str = "fp32", *, quick: bool = False) -> Row:
        return Row(model, runtime, batch, precision, threads=threads, quick=quick, device="cuda")

    rows = [row("vision", "torch.export", batch, kind, quick=batch == 8) for kind in _PRECISIONS for batch in _BATCHES]
    rows += [row("vision", "torch compile", batch, kind) for kind in _PRECISIONS for batch in _COMPILED]
    if onnx:
        rows += [row("vision", "onnx", batch, quick=batch == 8) for batch in _BATCHES]
        rows.append(row("embeddings", "onnx", 64))
    return rows


def result_name(device_name: str) -> str:
    """`NVIDIA H200` -> `gpu-nvidia-h200.json`."""
    return f"gpu-{re.sub(r'[^a-z0-9]+', '-', device_name.lower()).strip('-') or 'unnamed'}.json"


def busy_share(readings: Iterable[float | None]) -> float:
    """The mean of the readings that the device gave; NVML's are each of the last moment."""
    told = [reading for reading in readings if reading is not None]
    return sum(told) / len(told) if told else 0.0

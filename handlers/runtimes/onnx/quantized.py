"""Makes an int8 copy of an ONNX model for the CPU: matrix weights become int8, activations are quantised at run time."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from penstock.distribution import install_hint
from penstock.errors import HandlerLoadError
from penstock.handlers.runtimes.engine_cache import EngineCache, engine_key, model_sha256
from penstock.handlers.runtimes.onnx import onnx_file

# Conv is left out: its integer kernel on the CPU is slower than the float kernel, and loses more precision.
_OPERATORS = ("MatMul", "Gather", "Attention", "LSTM", "EmbedLayerNormalization")


def quantized(model: Path | bytes, cache: EngineCache) -> bytes:
    """The int8 copy; it is taken from the cache if it exists there.

    Raises `HandlerLoadError` without the package `onnx`, or when no layer can be quantised.
    """
    try:
        import onnx
        import onnxruntime.quantization
    except ImportError as error:
        raise HandlerLoadError(
            f'quantize = "int8" needs the package onnx, which is not installed; run: {install_hint("onnx-quantize")}'
        ) from error
    makers = f"onnxruntime {onnxruntime.__version__}, onnx {onnx.__version__}"
    key = engine_key(model_sha256(model), runtime=makers, gpu=None, precision="int8", options={"operators": _OPERATORS})
    return cache.obtain(f"{key}.onnx", lambda: _made(model))


def _made(model: Path | bytes) -> bytes:
    import onnx
    from onnxruntime.quantization import quantize_dynamic

    with TemporaryDirectory() as folder, _quiet():
        source = onnx.load_from_string(model) if isinstance(model, bytes) else onnx.load(str(model))
        _forget_weight_shapes(source.graph)
        target = Path(folder) / "int8.onnx"
        try:
            quantize_dynamic(source, str(target), op_types_to_quantize=list(_OPERATORS))
        except Exception as error:
            # The quantiser raises errors of any class.
            raise HandlerLoadError(
                f'{onnx_file.label(model)} cannot be quantised: {type(error).__name__}: {error}; set quantize = "off"'
            ) from error
        made = target.read_bytes()
    weights = onnx_file.read(made).weights
    if not weights.get("int8") and not weights.get("uint8"):
        raise HandlerLoadError(
            f'{onnx_file.label(model)} has no layer that int8 would help ({", ".join(_OPERATORS)}); set quantize = "off"'
        )
    return made


def _forget_weight_shapes(graph: Any) -> None:
    """Remove the shapes of weights that torch's exporter repeats: they become wrong once the quantiser transposes a weight."""
    weights = {weight.name for weight in graph.initializer}
    kept = [value for value in graph.value_info if value.name not in weights]
    del graph.value_info[:]
    graph.value_info.extend(kept)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the quantiser's advice to run another tool first, which it sends to the root logger for every model."""
    root = logging.getLogger()
    hide = logging.Filter("penstock")
    root.addFilter(hide)
    try:
        yield
    finally:
        root.removeFilter(hide)

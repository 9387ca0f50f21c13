"""ONNX models on ONNX Runtime. The import costs 68 MB of libraries, so it waits for the first model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import HandlerLoadError
from penstock.handlers.handler import Context
from penstock.handlers.runtimes.runtime import Port

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

_DTYPES = {"float": "float32", "double": "float64", "float16": "float16", "bool": "bool", "string": "object"}
_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


class OnnxRuntime:
    """A `Runtime` around one session."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.provider: str = session.get_providers()[0]
        self.inputs = [_port(given.name, given.type, given.shape) for given in session.get_inputs()]
        self.outputs = [output.name for output in session.get_outputs()]
        self.stacks = all(given.shape[0] != 1 for given in session.get_inputs())

    def run(self, feed: Arrays, /) -> Arrays:
        return dict(zip(self.outputs, self._session.run(self.outputs, feed), strict=True))


def open_model(model: Path | bytes, context: Context) -> OnnxRuntime:
    """The model in a session; raises `HandlerLoadError` without onnxruntime, with an unusable model or another provider."""
    return OnnxRuntime(_session(model, context))


def _session(model: Path | bytes, context: Context) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise HandlerLoadError(
            "ONNX models need onnxruntime, which is not installed; run: pip install 'penstock[onnx]'"
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = context.threads, 1
    provider, settings = _provider(context.device)
    try:
        session = onnxruntime.InferenceSession(
            model if isinstance(model, bytes) else str(model), options, providers=[provider], provider_options=[settings]
        )
    except Exception as error:
        # ONNX Runtime's exceptions share no base class but Exception.
        raise HandlerLoadError(f"ONNX Runtime cannot load {_label(model)}: {error}; check it with onnx.checker") from error
    # Without its libraries a GPU build of ONNX Runtime falls back to the CPU with one line on stderr.
    if session.get_providers()[0] != provider:
        raise HandlerLoadError(
            f"device {context.device!r} was asked for, but ONNX Runtime would use {session.get_providers()[0]}; "
            "install the build for that device (pip install 'penstock[onnx-gpu]') or set device = \"cpu\""
        )
    return session


def _provider(device: str) -> tuple[str, dict[str, Any]]:
    kind, _, index = device.partition(":")
    if kind not in _PROVIDERS:
        raise HandlerLoadError(f"ONNX Runtime has no provider for the device {device!r}; use one of {', '.join(_PROVIDERS)}")
    return _PROVIDERS[kind], {"device_id": int(index or 0)} if kind == "cuda" else {}


def _label(model: Path | bytes) -> str:
    return model.name if isinstance(model, Path) else "the model built in memory"


def _port(name: str, kind: str, shape: list[int | str | None]) -> Port:
    element = kind.removeprefix("tensor(").removesuffix(")")
    if not shape or not (isinstance(shape[0], str | None) or shape[0] == 1):
        raise HandlerLoadError(
            f"input {name} of the ONNX model has shape {shape}; its first axis must be the batch, free or 1. "
            "Export the model again with a dynamic batch axis"
        )
    return Port(name, _DTYPES.get(element, element), tuple(size if isinstance(size, int) else None for size in shape[1:]))

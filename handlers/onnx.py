"""Any ONNX model as a handler, on ONNX Runtime. The import costs 68 MB of libraries, so it waits for `initialize`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import HandlerContractError, HandlerLoadError, InvalidInput
from penstock.handlers.handler import Context, Failure, Handler

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

_DTYPES = {"float": "float32", "double": "float64", "float16": "float16", "bool": "bool", "string": "object"}
_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
_JSON_TYPES = {"b": "boolean", "i": "integer", "u": "integer", "O": "string"}


@dataclass(frozen=True, slots=True)
class Port:
    """One input of the model without its batch axis; None in `shape` is a free dimension."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    def fits(self, shape: Sequence[int]) -> bool:
        return len(shape) == len(self.shape) and all(want in (None, got) for want, got in zip(self.shape, shape, strict=True))


class OnnxHandler(Handler):
    """Runs `model_file` (in the handler's folder) or `model_bytes()`.

    An item is `{input name: nested list}`, or the bare list where the model has one input; shapes are without the batch axis.
    Items of one shape are stacked and run together; a model whose batch is fixed at 1 runs item by item. An output is
    `{output name: array}`. Subclasses usually replace `preprocess` (return such items) and `postprocess`.
    """

    model_file: str = "model.onnx"

    def initialize(self, context: Context, /) -> None:
        """Raises `HandlerLoadError` without onnxruntime, with an unusable model, or when the device would not be used."""
        self._session = _session(self.model_bytes(context), context)
        self.provider = self._session.get_providers()[0]
        self._outputs = [output.name for output in self._session.get_outputs()]
        self._ports = [_port(given.name, given.type, given.shape) for given in self._session.get_inputs()]
        self._stacks = all(given.shape[0] != 1 for given in self._session.get_inputs())
        if type(self).preprocess is OnnxHandler.preprocess:
            self.input_schema = _input_schema(self._ports)

    def model_bytes(self, context: Context, /) -> bytes | str:
        """The model's path, or the model itself where a subclass builds it."""
        path = context.folder / self.model_file
        if not path.is_file():
            raise HandlerLoadError(f"there is no ONNX file {path}; set model_file to its name, next to the handler")
        return str(path)

    def preprocess(self, inputs: list[Any], /) -> list[Any]:
        return [self._item(value) for value in inputs]

    def inference(self, batch: list[Any], /) -> list[Any]:
        outputs: list[Any] = [None] * len(batch)
        for places in self._groups(batch):
            for place, output in zip(places, self.run_stack([batch[place] for place in places]), strict=True):
                outputs[place] = output
        return outputs

    def postprocess(self, outputs: list[Any], /) -> list[Any]:
        return [{name: array.tolist() for name, array in output.items()} for output in outputs]

    def _item(self, value: Any) -> Arrays | Failure:
        given = value if isinstance(value, dict) or len(self._ports) != 1 else {self._ports[0].name: value}
        wanted = {port.name for port in self._ports}
        if not isinstance(given, dict) or set(given) != wanted:
            return Failure(f"the input must be an object with the fields {', '.join(sorted(wanted))}", InvalidInput.kind)
        try:
            return {port.name: _array(port, given[port.name]) for port in self._ports}
        except InvalidInput as error:
            return Failure(error.message, error.kind)

    def _groups(self, batch: list[Arrays]) -> list[list[int]]:
        """Places of items that can run as one: equal shapes, or each alone where the model takes one at a time."""
        if not self._stacks:
            return [[place] for place in range(len(batch))]
        groups: dict[tuple[tuple[int, ...], ...], list[int]] = {}
        for place, item in enumerate(batch):
            groups.setdefault(tuple(item[port.name].shape for port in self._ports), []).append(place)
        return list(groups.values())

    def run_stack(self, items: list[Arrays]) -> list[Arrays]:
        """One call of the model on items of equal shapes; one `{output name: array}` per item."""
        import numpy as np

        feed = {port.name: np.stack([item[port.name] for item in items]) for port in self._ports}
        results = self._session.run(self._outputs, feed)
        for name, result in zip(self._outputs, results, strict=True):
            if not np.ndim(result) or len(result) != len(items):
                raise HandlerContractError(
                    f"output {name} has shape {np.shape(result)} for {len(items)} items, not one row each"
                )
        return [dict(zip(self._outputs, row, strict=True)) for row in zip(*results, strict=True)]


def _session(model: bytes | str, context: Context) -> Any:
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
        session = onnxruntime.InferenceSession(model, options, providers=[provider], provider_options=[settings])
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


def _label(model: bytes | str) -> str:
    return Path(model).name if isinstance(model, str) else "the model built in memory"


def _port(name: str, kind: str, shape: list[int | str | None]) -> Port:
    element = kind.removeprefix("tensor(").removesuffix(")")
    if not shape or not (isinstance(shape[0], str | None) or shape[0] == 1):
        raise HandlerLoadError(
            f"input {name} of the ONNX model has shape {shape}; its first axis must be the batch, free or 1. "
            "Export the model again with a dynamic batch axis"
        )
    return Port(name, _DTYPES.get(element, element), tuple(size if isinstance(size, int) else None for size in shape[1:]))


def _array(port: Port, value: Any) -> NDArray[Any]:
    """The value in the model's element type; raises `InvalidInput`. Nothing is rounded, wrapped or parsed from text."""
    import numpy as np

    try:
        given = np.asarray(value)
    except ValueError as error:
        raise InvalidInput(f"{port.name} is not a regular nested list of numbers: its rows differ in length") from error
    if given.size and not _castable(given, port.dtype):
        raise InvalidInput(f"{port.name} cannot be read as {port.dtype}: it holds other or larger values")
    if not port.fits(given.shape):
        wanted = ["any" if size is None else size for size in port.shape]
        raise InvalidInput(f"{port.name} has shape {list(given.shape)}, the model takes {wanted}")
    return given.astype(port.dtype)


def _castable(given: NDArray[Any], dtype: str) -> bool:
    import numpy as np

    if dtype == "object":
        return given.dtype.kind == "U"
    if given.dtype.kind not in "biuf" or not np.can_cast(given.dtype, dtype, "same_kind"):
        return False
    if np.dtype(dtype).kind not in "iu":
        return True
    limits = np.iinfo(dtype)
    return bool(limits.min <= given.min() and given.max() <= limits.max)


def _input_schema(ports: list[Port]) -> dict[str, Any]:
    """An object with one nested list per input, or for a single input also the bare list."""
    fields = {port.name: _array_schema(port) for port in ports}
    whole = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
    return whole if len(ports) != 1 else {"anyOf": [whole, fields[ports[0].name]]}


def _array_schema(port: Port) -> dict[str, Any]:
    import numpy as np

    schema: dict[str, Any] = {"type": _JSON_TYPES.get(np.dtype(port.dtype).kind, "number")}
    for size in reversed(port.shape):
        bounds = {} if size is None else {"minItems": size, "maxItems": size}
        schema = {"type": "array", "items": schema, **bounds}
    return schema

"""A handler for any model file: nested lists or arrays in, arrays out, items of one shape run together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import HandlerContractError, InvalidInput
from penstock.handlers.handler import Context, Failure, Handler
from penstock.handlers.runtimes.runtime import Port, open_runtime

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

_JSON_TYPES = {"b": "boolean", "i": "integer", "u": "integer", "O": "string"}


class ArrayHandler(Handler):
    """Runs `model_file` (in the handler's folder) or what `model_source()` returns, on the runtime for that kind of file.

    An item is `{input name: nested list}`, or the bare list where the model has one input; shapes are without the batch axis.
    Items of one shape are stacked and run together; a model whose batch is fixed at 1 runs item by item. An output is
    `{output name: array}`. Subclasses usually replace `preprocess` (return such items) and `postprocess`.
    """

    model_file: str = "model.onnx"

    def initialize(self, context: Context, /) -> None:
        """Raises `HandlerLoadError` without the runtime, with an unusable model, or when the device would not be used."""
        self.runtime = open_runtime(self.model_source(context), context)
        self.provider = self.runtime.provider
        if type(self).preprocess is ArrayHandler.preprocess:
            self.input_schema = _input_schema(list(self.runtime.inputs))

    def model_source(self, context: Context, /) -> Path | bytes:
        """The model's path, or an ONNX model in memory where a subclass builds it."""
        return context.folder / self.model_file

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
        ports = self.runtime.inputs
        given = value if isinstance(value, dict) or len(ports) != 1 else {ports[0].name: value}
        wanted = {port.name for port in ports}
        if not isinstance(given, dict) or set(given) != wanted:
            return Failure(f"the input must be an object with the fields {', '.join(sorted(wanted))}", InvalidInput.kind)
        try:
            return {port.name: _array(port, given[port.name]) for port in ports}
        except InvalidInput as error:
            return Failure(error.message, error.kind)

    def _groups(self, batch: list[Arrays]) -> list[list[int]]:
        """Places of items that can run as one: equal shapes, or each alone where the model takes one at a time."""
        if not self.runtime.stacks:
            return [[place] for place in range(len(batch))]
        groups: dict[tuple[tuple[int, ...], ...], list[int]] = {}
        for place, item in enumerate(batch):
            groups.setdefault(tuple(item[port.name].shape for port in self.runtime.inputs), []).append(place)
        return list(groups.values())

    def run_stack(self, items: list[Arrays]) -> list[Arrays]:
        """One call of the model on items of equal shapes; one `{output name: array}` per item."""
        import numpy as np

        feed = {port.name: np.stack([item[port.name] for item in items]) for port in self.runtime.inputs}
        results = self.runtime.run(feed)
        for name, result in results.items():
            if not np.ndim(result) or len(result) != len(items):
                raise HandlerContractError(
                    f"output {name} has shape {np.shape(result)} for {len(items)} items, not one row each"
                )
        return [dict(zip(results, row, strict=True)) for row in zip(*results.values(), strict=True)]


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

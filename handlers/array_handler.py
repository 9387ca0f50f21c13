"""A handler for any model file: nested lists or arrays in, arrays out, items of one shape run together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import HandlerContractError, InvalidInput
from penstock.handlers.array_input import read_array
from penstock.handlers.contract import Context, Failure, Handler
from penstock.handlers.runtimes.contract import DeviceRow, Port, open_runtime
from penstock.handlers.runtimes.symbols import check_symbols
from penstock.tensors.tensor import DATATYPE_KEY, datatype_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

_JSON_TYPES = {"b": "boolean", "i": "integer", "u": "integer", "O": "string"}


class ArrayHandler(Handler):
    """Runs `model_file` (in the handler's folder) or what `model_source()` returns, on the runtime for that kind of file.

    An item is `{input name: nested list}`, or the bare list where the model has one input; shapes are without the batch axis.
    In the place of a list may be an array. Items of one shape are stacked and run together; a model whose batch is fixed at 1
    runs item by item. An output is `{output name: array}`. Subclasses usually replace `preprocess`, which returns such items
    after `upload`, and `postprocess`.
    """

    model_file: str = "model.onnx"
    # How many calls run in parallel, one thread each: what `open_parallel` returned.
    calls_at_once = 1
    _padding_ratio = 0.0

    def initialize(self, context: Context, /) -> None:
        """Raises `HandlerLoadError` if the runtime is not installed, the model is unusable, or the device would not be used."""
        self.runtime = open_runtime(self.model_source(context), context)
        self.provider = self.runtime.provider
        self.first_call_s = getattr(self.runtime, "first_call_s", 0.0)
        if type(self).preprocess is ArrayHandler.preprocess:
            self.input_schema = _input_schema(list(self.runtime.inputs))
        if type(self).postprocess is ArrayHandler.postprocess:
            self.output_schema = _output_schema(getattr(self.runtime, "output_ports", ()), self.runtime.outputs)

    def model_source(self, context: Context, /) -> Path | bytes:
        """The model's path, or an ONNX model in memory where a subclass builds it."""
        return context.folder / self.model_file

    def preprocess(self, inputs: list[Any], /) -> list[Any]:
        return self.upload([self._item(value) for value in inputs])

    def upload(self, items: list[Any], /) -> list[Any]:
        """Start copying the items to the device, if the runtime can do so while another batch runs. Failures stay in place."""
        upload = getattr(self.runtime, "upload", None)
        if upload is None:
            return items
        sent = list(items)
        live = [place for place, item in enumerate(items) if not isinstance(item, Failure)]
        for group in self._groups([items[place] for place in live]):
            places = [live[index] for index in group]
            for place, rows in zip(places, upload(self._feed([items[place] for place in places])), strict=True):
                sent[place] = rows
        return sent

    def inference(self, batch: list[Any], /) -> list[Any]:
        outputs: list[Any] = [None] * len(batch)
        run_rows = 0.0
        for places in self._groups(batch):
            for place, output in zip(places, self.run_stack([batch[place] for place in places]), strict=True):
                outputs[place] = output
            run_rows += len(places) / (1 - getattr(self.runtime, "padding_ratio", 0.0))
        self._padding_ratio = 1 - len(batch) / run_rows if run_rows else 0.0
        return outputs

    def padding_ratio(self) -> float:
        """The share of rows of the last `inference` that only filled its batches up to a size of `batch_buckets`."""
        return self._padding_ratio

    def postprocess(self, outputs: list[Any], /) -> list[Any]:
        return outputs

    def _item(self, value: Any) -> Arrays | Failure:
        ports = self.runtime.inputs
        given = value if isinstance(value, dict) or len(ports) != 1 else {ports[0].name: value}
        wanted = {port.name for port in ports}
        if not isinstance(given, dict) or set(given) != wanted:
            return Failure(f"the input must be an object with the fields {', '.join(sorted(wanted))}", InvalidInput.kind)
        try:
            item = {port.name: read_array(port, given[port.name]) for port in ports}
            check_symbols(ports, item)
        except InvalidInput as error:
            return Failure(error.message, error.kind)
        return item

    def _groups(self, batch: list[Arrays]) -> list[list[int]]:
        """The places of the items of each call: items of equal shapes, or a single item where the model takes only one."""
        if not self.runtime.stacks:
            return [[place] for place in range(len(batch))]
        groups: dict[tuple[tuple[int, ...], ...], list[int]] = {}
        for place, item in enumerate(batch):
            groups.setdefault(tuple(item[port.name].shape for port in self.runtime.inputs), []).append(place)
        return list(groups.values())

    def run_stack(self, items: list[Arrays]) -> list[Arrays]:
        """Run items of equal shapes in one call of the model; one `{output name: array}` per item."""
        return _rows(self.run_arrays(self._feed(items)))

    def run_arrays(self, feed: dict[str, Any]) -> Arrays:
        """Run the model once on arrays whose first axis is the batch; the first axis of each output is the batch too."""
        return _with_rows(self.runtime.run(feed), feed)

    def open_parallel(self) -> int:
        """Prepare `run_parallel`; returns how many calls it makes at once: 1 if runtime or threads allow no more."""
        # D45: where a batch can be cut, each thread gets a call of its own.
        return self.runtime.open_parallel()

    def run_stacks(self, items: list[Arrays], calls: list[list[int]]) -> list[Arrays]:
        """Run items of equal shapes in parallel; `calls` has each call's places. One `{output name: array}` per item."""
        outputs: list[Any] = [None] * len(items)
        feeds = [self._feed([items[place] for place in places]) for places in calls]
        for places, results in zip(calls, self.run_parallel(feeds), strict=True):
            for place, row in zip(places, _rows(results), strict=True):
                outputs[place] = row
        self._padding_ratio = 0.0
        return outputs

    def run_parallel(self, feeds: Sequence[dict[str, Any]]) -> Iterator[Arrays]:
        """The results of several calls, in the order of `feeds`. Only if `open_parallel` returned more than 1."""
        return map(_with_rows, self.runtime.run_parallel(feeds), feeds)

    def _feed(self, items: list[Any]) -> dict[str, Any]:
        """Every input of the items as one array. Rows that are on the device already stay as they are, for the runtime."""
        import numpy as np

        columns = {port.name: [item[port.name] for item in items] for port in self.runtime.inputs}
        return {name: column if isinstance(column[0], DeviceRow) else np.stack(column) for name, column in columns.items()}


def _rows(results: Arrays) -> list[Arrays]:
    return [dict(zip(results, row, strict=True)) for row in zip(*results.values(), strict=True)]


def _with_rows(results: Arrays, feed: dict[str, Any]) -> Arrays:
    """The results. Raises `HandlerContractError` if one of them has not one row per item."""
    import numpy as np

    count = len(next(iter(feed.values())))
    for name, result in results.items():
        if not np.ndim(result) or len(result) != count:
            raise HandlerContractError(
                f"output {name} has shape {np.shape(result)} for {count} items, not one row each; "
                "the first axis must be the batch"
            )
    return results


def _input_schema(ports: list[Port]) -> dict[str, Any]:
    """An object with one nested list per input; a model with a single input also takes the bare list."""
    fields = {port.name: _array_schema(port) for port in ports}
    whole = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
    return whole if len(ports) != 1 else {"anyOf": [whole, fields[ports[0].name]]}


def _output_schema(ports: Sequence[Port], names: Sequence[str]) -> dict[str, Any] | None:
    """An object with one nested list per output. None if not even the names are known before a run."""
    fields = {port.name: _array_schema(port, bounded=False) for port in ports} or {name: {} for name in names}
    return {"type": "object", "properties": fields, "required": list(fields)} if fields else None


def _array_schema(port: Port, *, bounded: bool = True) -> dict[str, Any]:
    import numpy as np

    # The datatype is for callers who send arrays; JSON Schema has no word for it.
    datatype = datatype_of(port.dtype)
    schema: dict[str, Any] = {"type": _JSON_TYPES.get(np.dtype(port.dtype).kind, "number")}
    schema |= {DATATYPE_KEY: datatype} if datatype else {}
    limits = port.limits() if bounded else [(size or 0, size) for size in port.shape]
    for low, high in reversed(limits):
        schema = {"type": "array", "items": schema}
        schema |= {"minItems": low} if low else {}
        schema |= {} if high is None else {"maxItems": high}
    return schema

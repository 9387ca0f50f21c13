"""TorchServe's service envelopes: other shapes of requests and answers around a handler (option `service_envelope`)."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from penstock.extensions.torchserve.child.errors import BAD_LENGTH, BAD_VALUE, BadHandlerOutput
from penstock.extensions.torchserve.child.outputs import JsonText

Handle = Callable[[Any, Any], Any]
_DATATYPES: tuple[tuple[type, str], ...] = ((bool, "BOOL"), (int, "INT64"), (float, "FP64"), (str, "BYTES"), (bytes, "BYTES"))


class BaseEnvelope:
    """Around `handle_fn`, which gets what `parse_input` makes of the rows. `format_output` gets the list that it returns."""

    def __init__(self, handle_fn: Handle) -> None:
        self._handle_fn = handle_fn
        self.context: Any = None

    def handle(self, data: Any, context: Any) -> Any:
        self.context = context
        results = self._handle_fn(self.parse_input(data), context)
        return self.format_output(results) if isinstance(results, list) else results

    def parse_input(self, data: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no method parse_input")

    def format_output(self, data: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no method format_output")


class BodyEnvelope(BaseEnvelope):
    """The handler gets the bodies themselves, not rows."""

    def parse_input(self, data: Any) -> list[Any]:
        return [_body(row) for row in data]

    def format_output(self, data: Any) -> Any:
        return data


class JSONEnvelope(BaseEnvelope):
    """`{"instances": [...]}` in, `{"predictions": [...]}` out: the handler gets the instances of all requests as one batch."""

    def __init__(self, handle_fn: Handle) -> None:
        super().__init__(handle_fn)
        self._counts: list[int] = []

    def parse_input(self, data: Any) -> list[Any]:
        instances_by_row = [_members(row, "instances") for row in data]
        self._counts = [len(instances) for instances in instances_by_row]
        return [_decoded(one) for instances in instances_by_row for one in instances]

    def format_output(self, data: Any) -> list[Any]:
        if len(data) != sum(self._counts):
            raise BadHandlerOutput(f"handle got {sum(self._counts)} instances and returned a list of {len(data)}", BAD_LENGTH)
        rest = iter(data)
        return [JsonText(json.dumps({"predictions": _first(rest, count)})) for count in self._counts]


class KServeEnvelope(BaseEnvelope):
    """KServe's first protocol, one request at a time: `instances` in, `predictions` or `explanations` out."""

    def parse_input(self, data: Any) -> list[Any]:
        return _members(data[0], "instances")

    def format_output(self, data: Any) -> list[Any]:
        is_explain = self.context is not None and self.context.get_request_header(0, "explain") == "True"
        return [{"explanations" if is_explain else "predictions": data}]


class KServev2Envelope(BaseEnvelope):
    """KServe's second protocol, one request at a time: the handler gets its inputs, and returns a list with one output each."""

    def __init__(self, handle_fn: Handle) -> None:
        super().__init__(handle_fn)
        self._names: list[str] = []
        self._id = ""

    def parse_input(self, data: Any) -> list[Any]:
        inputs = _members(data[0], "inputs")
        self._names = [str(one["name"]) for one in inputs]
        self._id = str(_body(data[0]).get("id") or self.context.get_request_id(0) or "")
        return [{**one, "data": _shaped(list(_flat(one["data"])), list(one["shape"]))} for one in inputs]

    def format_output(self, data: Any) -> list[Any]:
        if len(data) > len(self._names):
            raise BadHandlerOutput(f"handle got {len(self._names)} inputs and returned a list of {len(data)}", BAD_LENGTH)
        model = self.context.manifest.get("model", {})
        return [
            {
                "id": self._id,
                "model_name": self.context.model_name,
                "model_version": str(model.get("modelVersion") or "1.0"),
                "outputs": [_output(name, value) for name, value in zip(self._names, data, strict=False)],
            }
        ]


ENVELOPES: dict[str, type[BaseEnvelope]] = {
    "body": BodyEnvelope,
    "json": JSONEnvelope,
    "kserve": KServeEnvelope,
    "kservev2": KServev2Envelope,
}
# These look at the first request of a batch only.
ONE_REQUEST = frozenset({"kserve", "kservev2"})


def _body(row: Any) -> Any:
    return row["body"] if "body" in row else row.get("data")


def _members(row: Any, name: str) -> list[Any]:
    """The list of this name in the JSON of a request. Raises `ValueError`."""
    body = _body(row)
    if isinstance(body, (bytes, bytearray, str)):
        body = json.loads(body)
    members = body.get(name) if isinstance(body, dict) else None
    if not isinstance(members, list):
        raise ValueError(f"the service envelope takes a JSON object with a list {name!r}")
    return members


def _decoded(instance: Any) -> Any:
    is_bytes = isinstance(instance, dict) and list(instance) == ["b64"]
    return b64decode(instance["b64"]) if is_bytes else instance


def _first(values: Iterator[Any], count: int) -> list[Any]:
    return [next(values) for _ in range(count)]


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _flat(one)
    else:
        yield value


def _shaped(flat: Sequence[Any], shape: Sequence[int]) -> Any:
    """Nested lists of this shape. Raises `ValueError` if the elements are more or fewer."""
    count = 1
    for size in shape:
        count *= size
    if count != len(flat):
        raise ValueError(f"an input has the shape {list(shape)} and {len(flat)} elements")
    if len(shape) < 2:
        return list(flat) if shape else flat[0]
    step = len(flat) // shape[0] if shape[0] else 0
    return [_shaped(flat[first : first + step], shape[1:]) for first in range(0, len(flat), step or 1)]


def _output(name: str, value: Any) -> dict[str, Any]:
    """Raises `BadHandlerOutput` for elements that have no datatype."""
    value = value.tolist() if hasattr(value, "tolist") else value
    flat = [one.decode() if isinstance(one, bytes) else one for one in _flat(value)]
    datatype = next((name_of for kind, name_of in _DATATYPES if flat and isinstance(flat[0], kind)), None)
    if datatype is None:
        raise BadHandlerOutput(f"the output {name!r} is neither numbers nor text", BAD_VALUE)
    return {"name": name, "datatype": datatype, "data": flat, "shape": _shape(value)}


def _shape(value: Any) -> list[int]:
    """The sizes of nested lists; a single value, as a list of one."""
    if not isinstance(value, (list, tuple)):
        return [1]
    sizes = []
    while isinstance(value, (list, tuple)):
        sizes.append(len(value))
        value = value[0] if value else None
    return sizes

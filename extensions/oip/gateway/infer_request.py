"""An inference request of the protocol: its JSON, its binary tensors behind it, and its parameters, all checked. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Struct

from penstock.errors import BadRequest, InvalidInput, TooLarge, UnsupportedMedia
from penstock.extensions.oip.gateway.metadata import TensorPort
from penstock.extensions.oip.gateway.tensor_json import tensor_of_json
from penstock.gateway.asgi.bodies import parse_json
from penstock.gateway.asgi.negotiation import JSON, OCTETS, Head, base_type
from penstock.gateway.jobs.submitting.submit_options import SubmitOptions
from penstock.inputs.tensors import WHOLE_TENSOR
from penstock.job import Priority
from penstock.tensors.tensor import TEXTS, Tensor, check_tensor, element_bytes, text_data

BINARY_SIZE = "binary_data_size"
BINARY = "binary_data"
BINARY_OUTPUT = "binary_data_output"
MAX_TENSORS = 256
MAX_PARAMETERS = 64
_SHOWN = 80
# Parameters without a counterpart in penstock. Clients that do not use them send 0 or false.
_SEQUENCES = ("sequence_id", "sequence_start", "sequence_end")
_SHARED_MEMORY = "shared_memory_region"
OF_INPUT = {BINARY_SIZE, "content_type"}
OF_OUTPUT = {BINARY}
Parameters = Mapping[str, Any]


class _JsonInput(Struct, forbid_unknown_fields=True):
    name: str
    shape: tuple[int, ...]
    datatype: str
    parameters: dict[str, Any] = {}
    data: Any = None


class _JsonOutput(Struct, forbid_unknown_fields=True):
    name: str
    parameters: dict[str, Any] = {}


class _JsonRequest(Struct, forbid_unknown_fields=True):
    inputs: list[_JsonInput]
    id: str | None = ""
    # KServe's client repeats the path here.
    model_name: str | None = None
    model_version: str | None = None
    parameters: dict[str, Any] = {}
    outputs: list[_JsonOutput] = []


# Made while one thread loads this module: D106.
_JSON_REQUEST = msgspec.json.Decoder(_JsonRequest)


@dataclass(frozen=True, slots=True)
class WantedOutput:
    name: str
    binary: bool


@dataclass(frozen=True, slots=True)
class InferRequest:
    """`outputs` empty: all, in binary if `binary`. `options`: what the parameters say of priority and time. `more`: the model's
    own parameters.
    """

    tensors: tuple[Tensor, ...]
    id: str = ""
    outputs: tuple[WantedOutput, ...] = ()
    binary: bool = False
    options: SubmitOptions = field(default_factory=SubmitOptions)
    more: Mapping[str, str] = field(default_factory=dict)


def read_infer_request(
    body: bytes, header_length: int | None, *, max_json_bytes: int, max_depth: int, model: str = ""
) -> InferRequest:
    """The request. `header_length` is where its JSON ends and its tensors begin; None: there are no binary tensors. `model`:
    the one that the path names.

    The data of binary tensors are views of `body`. Raises `BadRequest`, `InvalidInput` and `TooLarge`.
    """
    end = len(body) if header_length is None else header_length
    if end > len(body):
        raise BadRequest(f"Inference-Header-Content-Length is {end}, and the body has {len(body)} bytes")
    if end > max_json_bytes:
        raise TooLarge(f"the JSON has {end} bytes; the limit is {max_json_bytes}", hint="Send large tensors as binary data.")
    request = _json_request(body[:end] if end < len(body) else body, max_depth)
    if model and request.model_name not in (None, "", model):
        raise BadRequest(f"the path names the model {model!r}, and `model_name` {request.model_name[:_SHOWN]!r}")
    tensors = _tensors(request.inputs, memoryview(body)[end:])
    is_binary = _flag(request.parameters, BINARY_OUTPUT)
    outputs = tuple(_wanted(output, default=is_binary) for output in request.outputs)
    options, more = read_parameters({name: value for name, value in request.parameters.items() if name != BINARY_OUTPUT})
    return InferRequest(tensors, request.id or "", outputs, is_binary, options, more)


def refuse_foreign_type(head: Head) -> None:
    """Raises `UnsupportedMedia` for a media type that no client of the protocol sends. Most name none at all."""
    media = base_type(head.get(b"content-type", b"").decode("latin-1"))
    if media not in ("", JSON, OCTETS):
        raise UnsupportedMedia(f"Content-Type {media[:80]!r} is none of the protocol's; send {JSON}, {OCTETS} or none")


def raw_request(body: bytes, port: TensorPort) -> InferRequest:
    """A request without JSON: the body is the data of the model's one input."""
    if port.datatype == TEXTS:
        return InferRequest((Tensor(port.name, TEXTS, (1,), text_data([body])),), binary=True)
    if port.shape.count(-1) > 1:
        raise BadRequest(f"a raw body does not say the shape of input {port.name!r}, which has several free dimensions")
    return InferRequest((check_tensor(Tensor(port.name, port.datatype, _filled(port, len(body)), body)),), binary=True)


def _filled(port: TensorPort, size: int) -> tuple[int, ...]:
    """The shape with its free dimension worked out from the number of bytes."""
    fixed = element_bytes(port.name, port.datatype)
    for length in port.shape:
        fixed *= length if length >= 0 else 1
    return tuple(length if length >= 0 else size // max(1, fixed) for length in port.shape)


def _json_request(data: bytes, max_depth: int) -> _JsonRequest:
    parse_json(data, max_depth=max_depth)
    try:
        request = _JSON_REQUEST.decode(data)
    except msgspec.MsgspecError as error:
        raise BadRequest(f"this is no inference request: {error}") from None
    if not 0 < len(request.inputs) <= MAX_TENSORS or len(request.outputs) > MAX_TENSORS:
        raise BadRequest(f"a request has 1 to {MAX_TENSORS} inputs and at most {MAX_TENSORS} outputs")
    return request


def _tensors(inputs: Sequence[_JsonInput], binary: memoryview) -> tuple[Tensor, ...]:
    at, tensors = 0, []
    for given in inputs:
        size = given.parameters.get(BINARY_SIZE)
        refuse_parameters(given.parameters, OF_INPUT, given.name)
        media = content_type_of(given.name, given.parameters)
        if size is None:
            tensors.append(tensor_of_json(given.name, given.datatype, given.shape, given.data, media))
            continue
        if type(size) is not int or size < 0 or given.data is not None:
            raise BadRequest(f"tensor {given.name[:_SHOWN]!r}: {BINARY_SIZE} is a number of bytes, and excludes `data`")
        if at + size > len(binary):
            raise BadRequest(f"tensor {given.name[:_SHOWN]!r} has {size} bytes, and {len(binary) - at} are left of the body")
        tensors.append(check_tensor(Tensor(given.name, given.datatype, given.shape, binary[at : at + size], media)))
        at += size
    if at != len(binary):
        raise BadRequest(f"{len(binary) - at} bytes of the body belong to no tensor")
    return tuple(tensors)


def _wanted(output: _JsonOutput, *, default: bool) -> WantedOutput:
    refuse_parameters(output.parameters, OF_OUTPUT, output.name)
    return WantedOutput(output.name, _flag(output.parameters, BINARY) if BINARY in output.parameters else default)


def _flag(parameters: Parameters, name: str) -> bool:
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise BadRequest(f"the parameter {name} must be true or false")
    return value


def content_type_of(tensor: str, parameters: Parameters) -> str:
    """What an element of BYTES holds, as the tensor's parameters say it; empty if they do not."""
    media = parameters.get("content_type", "")
    if not isinstance(media, str) or len(media) > 100:
        raise BadRequest(f"tensor {tensor[:_SHOWN]!r}: `content_type` is no media type")
    return media


def refuse_parameters(parameters: Parameters, known: set[str], tensor: str) -> None:
    """Raises `BadRequest` for a parameter of a tensor that is not among the known ones."""
    for name in parameters.keys() - known:
        why = "shared memory is not served" if name.startswith(_SHARED_MEMORY) else f"it takes {' and '.join(sorted(known))}"
        raise BadRequest(f"tensor {tensor[:_SHOWN]!r} has the parameter {name[:_SHOWN]!r}: {why}")


def read_parameters(parameters: Parameters) -> tuple[SubmitOptions, dict[str, str]]:
    """What the request's parameters say of priority and time, and the rest of them as text. Raises `BadRequest`."""
    if len(parameters) > MAX_PARAMETERS:
        raise BadRequest(f"a request has at most {MAX_PARAMETERS} parameters")
    for name in _SEQUENCES:
        if parameters.get(name):
            raise BadRequest(f"the parameter {name}: sequences are not served, because each request may run on another worker")
    rest = {name: value for name, value in parameters.items() if name not in (*_SEQUENCES, "priority", "timeout")}
    priority, timeout = _whole(parameters, "priority"), _whole(parameters, "timeout")
    options = SubmitOptions(
        priority=Priority.BULK if priority > 1 else Priority.INTERACTIVE,
        # The protocol counts microseconds, and 0 is no limit.
        deadline_s=timeout / 1e6 or None,
    )
    return options, {name: _text(name, value) for name, value in rest.items()}


def _whole(parameters: Parameters, name: str) -> int:
    value = parameters.get(name, 0)
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise BadRequest(f"the parameter {name} must be a whole number that is not negative")
    return value


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, (str, int, float)) or len(str(value)) > 1_024:
        raise BadRequest(f"the parameter {name[:_SHOWN]!r} must be a text, a number, true or false")
    return str(value)


def without_batch_axis(tensors: Sequence[Tensor], ports: Sequence[TensorPort]) -> tuple[tuple[Tensor, ...], bool]:
    """The tensors of one item, and whether they came with a leading axis of length 1, as servers of batches take them.

    Raises `InvalidInput` for a leading axis that holds several items: a request is one job.
    """
    ranks = {port.name: port for port in ports}
    extra = [_has_extra_axis(tensor, ranks.get(tensor.name)) for tensor in tensors]
    if not ports or not all(extra):
        return tuple(tensors), False
    rows = next((tensor.shape[0] for tensor in tensors if tensor.shape[0] != 1), 1)
    if rows != 1:
        raise InvalidInput(
            f"the first axis holds {rows} items, and a request is one item: the model takes "
            f"{', '.join(f'{port.name} {list(port.shape)}' for port in ports)}",
            hint="Send the items as requests at the same time; they are batched here.",
        )
    return tuple(msgspec.structs.replace(tensor, shape=tensor.shape[1:]) for tensor in tensors), True


def _has_extra_axis(tensor: Tensor, port: TensorPort | None) -> bool:
    if port is None or (tensor.name == WHOLE_TENSOR and port.datatype == TEXTS and port.shape == (1,)):
        return port is not None and len(tensor.shape) == 2 and tensor.shape[1] == 1
    return len(tensor.shape) == len(port.shape) + 1

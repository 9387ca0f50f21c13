"""The protocol's messages, and an inference request and its answer as such. Pure but for the descriptors, which it loads.

The bytes of tensors are never parsed: they are views of the message that came, and are copied once into the one that leaves.
"""

# D91: docs/design/protocols.md
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock.errors import BadRequest, InvalidInput, TooLarge
from penstock.extensions.oip.gateway.infer_answer import InferResult, wanted_outputs
from penstock.extensions.oip.gateway.infer_request import (
    MAX_PARAMETERS,
    MAX_TENSORS,
    OF_INPUT,
    OF_OUTPUT,
    InferRequest,
    WantedOutput,
    content_type_of,
    read_parameters,
    refuse_parameters,
)
from penstock.gateway.rpc.pool import MessagePool, parsed
from penstock.tensors.tensor import (
    MAX_TEXTS,
    ONLY_BINARY,
    TEXTS,
    Tensor,
    check_tensor,
    count_of,
    element_bytes,
    number_data,
    text_data,
)

SERVICE = "inference.GRPCInferenceService"
# Whether each answer of a stream is the last one of its request, as clients of Triton ask for it.
FINAL, WANTS_FINAL = "triton_final_response", "triton_enable_empty_final_response"
_RAW_INPUT, _RAW_OUTPUT = 7, b"\x32"
_INFER_RESPONSE = b"\x12"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# More fields than a request with the most tensors and parameters has; each is looked at in Python.
_MAX_FIELDS = 3 * MAX_TENSORS + MAX_PARAMETERS + 16
_SHOWN = 80
_CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    TEXTS: "bytes_contents",
}


POOL = MessagePool(__package__, "inference.binpb")


def message_class(name: str) -> Any:
    return POOL.message_class(f"inference.{name}")


_Request = message_class("ModelInferRequest")
_Response = message_class("ModelInferResponse")
_StreamResponse = message_class("ModelStreamInferResponse")


def split_request(data: bytes, *, max_bytes: int) -> tuple[Any, list[memoryview]]:
    """The request without its raw tensors, and these as views of `data`. What is not raw may have `max_bytes`.

    Raises `BadRequest` or `TooLarge`.
    """
    view, start, kept, raw = memoryview(data), 0, [], []
    for begin, number, at, end in _fields(data):
        if number == _RAW_INPUT:
            kept.append(view[start:begin])
            raw.append(view[at:end])
            start = end
    kept.append(view[start:])
    size = sum(map(len, kept))
    if size > max_bytes:
        raise TooLarge(
            f"the message has {size} bytes beside raw_input_contents; the limit is {max_bytes}",
            hint="Send large tensors as raw_input_contents, or raise gateway.max_json_bytes.",
        )
    return parsed(_Request, b"".join(kept)), raw


def _fields(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Of each field of a message: where it begins, its number, and where its value begins and ends."""
    at, count = 0, 0
    while at < len(data):
        begin = at
        tag, at = _varint(data, at)
        size, at = _value(data, tag & 7, at)
        count += 1
        if at + size > len(data) or count > _MAX_FIELDS:
            raise _no_request(data, f"has more than {_MAX_FIELDS} fields" if count > _MAX_FIELDS else "ends within a field")
        yield begin, (tag >> 3 if tag & 7 == _BYTES else 0), at, at + size
        at += size


def _value(data: bytes, kind: int, at: int) -> tuple[int, int]:
    """The size of a field's value, and where it begins."""
    if kind == _BYTES:
        return _varint(data, at)
    if kind == _VARINT:
        return 0, _varint(data, at)[1]
    if kind in (_FIXED64, _FIXED32):
        return (8 if kind == _FIXED64 else 4), at
    raise _no_request(data, "has a field of an unknown kind")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    if at < len(data) and data[at] < 0x80:
        return data[at], at + 1
    value = 0
    for shift, byte in zip(range(0, 70, 7), data[at : at + 10], strict=False):
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + shift // 7 + 1
    raise _no_request(data, "ends within a number")


def _no_request(data: bytes, why: str) -> BadRequest:
    return BadRequest(f"these {len(data)} bytes are no ModelInferRequest: the message {why}")


def infer_request(request: Any, raw: Sequence[memoryview]) -> InferRequest:
    """The request, checked. Raises `BadRequest` and `InvalidInput`."""
    if not 0 < len(request.inputs) <= MAX_TENSORS or len(request.outputs) > MAX_TENSORS:
        raise BadRequest(f"a request has 1 to {MAX_TENSORS} inputs and at most {MAX_TENSORS} outputs")
    tensors = tuple(_tensors(request.inputs, raw))
    outputs = tuple(_wanted(output) for output in request.outputs)
    parameters = plain_parameters(request.parameters)
    parameters.pop(WANTS_FINAL, None)
    options, more = read_parameters(parameters)
    return InferRequest(tensors, request.id, outputs, binary=True, options=options, more=more)


def wants_final(request: Any) -> bool:
    return WANTS_FINAL in request.parameters and bool(request.parameters[WANTS_FINAL].bool_param)


def _tensors(inputs: Sequence[Any], raw: Sequence[memoryview]) -> Iterator[Tensor]:
    left = list(reversed(raw))
    for given in inputs:
        is_raw = bool(raw) and not given.HasField("contents")
        if is_raw and not left:
            raise BadRequest(f"tensor {given.name[:_SHOWN]!r} has no data: there are {len(raw)} raw_input_contents")
        parameters = plain_parameters(given.parameters)
        refuse_parameters(parameters, OF_INPUT, given.name)
        media = content_type_of(given.name, parameters)
        yield _raw_tensor(given, left.pop(), media) if is_raw else _typed_tensor(given, media)
    if left:
        raise BadRequest(f"{len(left)} of the {len(raw)} raw_input_contents belong to no tensor")


def _raw_tensor(given: Any, data: memoryview, media: str) -> Tensor:
    return check_tensor(Tensor(given.name, given.datatype, tuple(given.shape), data, media))


def _typed_tensor(given: Any, media: str) -> Tensor:
    """The tensor whose elements stand in the message one by one."""
    name, datatype, shape = given.name, given.datatype, tuple(given.shape)
    if datatype in ONLY_BINARY:
        raise BadRequest(f"tensor {name[:_SHOWN]!r}: {datatype} has no typed contents; send it in raw_input_contents")
    if datatype != TEXTS:
        element_bytes(name, datatype)
    wanted, field = count_of(name, shape), _CONTENTS[datatype]
    elements = getattr(given.contents, field)
    if len(elements) != wanted:
        raise InvalidInput(
            f"tensor {name[:_SHOWN]!r} has {len(elements)} elements in {field}, "
            f"and the shape {str(list(shape))[:_SHOWN]} takes {wanted}"
        )
    if datatype != TEXTS:
        return Tensor(name, datatype, shape, number_data(name, datatype, list(elements)))
    if wanted > MAX_TEXTS:
        raise InvalidInput(f"tensor {name[:_SHOWN]!r} has more than {MAX_TEXTS} elements of BYTES")
    return Tensor(name, TEXTS, shape, text_data(elements), media)


def _wanted(output: Any) -> WantedOutput:
    refuse_parameters(plain_parameters(output.parameters), OF_OUTPUT, output.name)
    return WantedOutput(output.name, binary=True)


def plain_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as values. One without a value is None, which no parameter may be."""
    if len(parameters) > MAX_PARAMETERS:
        raise BadRequest(f"a request has at most {MAX_PARAMETERS} parameters")
    chosen = {name: (one, one.WhichOneof("parameter_choice")) for name, one in parameters.items()}
    return {name: getattr(one, choice) if choice else None for name, (one, choice) in chosen.items()}


def answer_message(request: InferRequest, result: InferResult) -> bytes:
    """The answer as a ModelInferResponse, with all outputs as raw bytes."""
    return b"".join(_answer_parts(request, result, {}))


def stream_message(request: InferRequest, result: InferResult, *, is_final: bool | None) -> bytes:
    """The answer as one of a stream. `is_final` None: the client does not ask whether it is the last one."""
    parts = _answer_parts(request, result, {} if is_final is None else {FINAL: is_final})
    return b"".join([_INFER_RESPONSE, _written_varint(sum(map(len, parts))), *parts])


def stream_error(text: str, request_id: str) -> bytes:
    """A refused request of a stream. The stream goes on."""
    made: bytes = _StreamResponse(error_message=text, infer_response={"id": request_id}).SerializeToString()
    return made


def _answer_parts(request: InferRequest, result: InferResult, flags: Mapping[str, bool]) -> list[Any]:
    tensors = [tensor for tensor, _ in wanted_outputs(request, result)] if result.tensors else []
    head = _Response(model_name=result.model, model_version=result.version, id=request.id)
    head.parameters["job"].string_param = str(result.job)
    for name, value in flags.items():
        head.parameters[name].bool_param = value
    parts: list[Any] = []
    for tensor in tensors:
        output = head.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        if tensor.content_type:
            output.parameters["content_type"].string_param = tensor.content_type
        parts += [_RAW_OUTPUT + _written_varint(len(tensor.data)), tensor.data]
    return [head.SerializeToString(), *parts]


def _written_varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)

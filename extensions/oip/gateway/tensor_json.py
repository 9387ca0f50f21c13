"""Tensors in JSON, as requests and answers of the protocol have them. Pure."""

from __future__ import annotations

import math
from typing import Any

from penstock.errors import BadRequest, InvalidInput
from penstock.tensors.tensor import (
    MAX_TEXTS,
    ONLY_BINARY,
    TEXTS,
    Tensor,
    count_of,
    element_bytes,
    number_data,
    numbers_of,
    shape_of,
    text_data,
    texts_of,
)

_SHOWN = 80


def tensor_of_json(name: str, datatype: str, shape: tuple[int, ...], data: Any, content_type: str) -> Tensor:
    """The tensor whose `data` is a list, flat or nested. Raises `BadRequest` for data of another shape or datatype."""
    if datatype in ONLY_BINARY:
        raise BadRequest(f"tensor {name[:_SHOWN]!r}: {datatype} has no form in JSON; send it as binary data")
    if datatype != TEXTS:
        element_bytes(name, datatype)
    wanted = count_of(name, shape)
    nested = shape_of(data) if isinstance(data, list) else None
    if nested is None:
        raise BadRequest(f"tensor {name[:_SHOWN]!r}: `data` must be a list, flat or nested, whose rows are of one length")
    if nested[0] != shape and len(nested[0]) != 1:
        raise BadRequest(f"tensor {name[:_SHOWN]!r}: `data` is nested as {list(nested[0])}, and the shape is {list(shape)}")
    if len(nested[1]) != wanted:
        raise BadRequest(
            f"tensor {name[:_SHOWN]!r}: `data` has {len(nested[1])} elements, and the shape {list(shape)} {wanted}"
        )
    if datatype != TEXTS:
        return Tensor(name, datatype, shape, number_data(name, datatype, nested[1]))
    return Tensor(name, TEXTS, shape, text_data(_texts(name, nested[1])), content_type)


def _texts(name: str, elements: list[Any]) -> list[bytes]:
    if len(elements) > MAX_TEXTS or not all(isinstance(element, str) for element in elements):
        raise BadRequest(f"tensor {name[:_SHOWN]!r}: BYTES are at most {MAX_TEXTS} texts in JSON")
    return [element.encode() for element in elements]


def json_data(tensor: Tensor) -> list[Any]:
    """The elements in one flat list. Raises `InvalidInput` for what JSON cannot hold: the caller can ask for binary data."""
    if tensor.datatype in ONLY_BINARY:
        raise _unwritable(tensor, f"it is {tensor.datatype}")
    if tensor.datatype != TEXTS:
        numbers = numbers_of(tensor)
        if tensor.datatype.startswith("FP") and not all(map(math.isfinite, numbers)):
            raise _unwritable(tensor, "it holds NaN or infinity")
        return numbers
    try:
        return [text.decode() for text in texts_of(tensor)]
    except UnicodeDecodeError:
        raise _unwritable(tensor, "it holds bytes that are no text in UTF-8") from None


def _unwritable(tensor: Tensor, why: str) -> InvalidInput:
    return InvalidInput(
        f"output {tensor.name[:_SHOWN]!r} cannot be written as JSON: {why}",
        hint="Ask for binary data: `binary_data` of the output, or `binary_data_output` of the request.",
    )

"""Named arrays as one payload: how they lie in a job, how their bytes are checked, and what plain values they stand for. Pure.

Gateways and model processes read them with the same code. Datatypes have the names of the Open Inference Protocol; numbers are
little-endian and in row-major order, and an element of BYTES has its length before it, in four bytes.
"""

# D83: docs/design/protocols.md
from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec
from msgspec import Struct

from penstock.errors import InvalidInput

TEXTS = "BYTES"
# By numeric datatype: the bytes of an element, and its letter in Python's `array`, if it has one.
_NUMBERS = {
    "BOOL": (1, ""),
    "INT8": (1, "b"),
    "INT16": (2, "h"),
    "INT32": (4, "i"),
    "INT64": (8, "q"),
    "UINT8": (1, "B"),
    "UINT16": (2, "H"),
    "UINT32": (4, "I"),
    "UINT64": (8, "Q"),
    "FP16": (2, ""),
    "BF16": (2, ""),
    "FP32": (4, "f"),
    "FP64": (8, "d"),
}
DATATYPES = (*_NUMBERS, TEXTS)
_DATATYPE_OF = {
    "bool": "BOOL",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "float16": "FP16",
    "bfloat16": "BF16",
    "float32": "FP32",
    "float64": "FP64",
    "object": TEXTS,
}
_PLAIN = {bool: "BOOL", int: "INT64", float: "FP64", str: TEXTS}
_DTYPE_OF = {datatype: dtype for dtype, datatype in _DATATYPE_OF.items()}
# The member of a JSON Schema that names the datatype of an array's elements.
DATATYPE_KEY = "x-datatype"
# JSON has no numbers of half precision, so the protocol sends them as bytes alone.
ONLY_BINARY = ("FP16", "BF16")
# The most dimensions of a numpy array.
MAX_DIMENSIONS = 64
# Each element of BYTES is an object of its own, so that a few megabytes could hold a million of them.
MAX_TEXTS = 100_000
# As lists, a shape like [1000000000, 0] takes gigabytes and has no byte of data.
_MOST_EMPTY = 100_000
_MOST_ELEMENTS = 1 << 40
_SHOWN = 80


class Tensor(Struct, array_like=True, gc=False, frozen=True):
    """One named array. `content_type` is what an element of BYTES holds, if it is neither text nor known from the model."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | memoryview
    content_type: str = ""


_encoder = msgspec.msgpack.Encoder()


class _Stored(Struct, array_like=True, gc=False):
    name: str
    datatype: str
    shape: tuple[int, ...]
    data: memoryview
    content_type: str = ""


_decoder = msgspec.msgpack.Decoder(list[_Stored])


def encode_tensors(tensors: Sequence[Tensor]) -> bytes:
    """One payload of `TENSORS_MEDIA`. The data of the tensors is copied once."""
    return _encoder.encode(tensors)


def datatype_of(dtype: str) -> str:
    """The datatype of numpy's element type of this name; empty if there is none."""
    return _DATATYPE_OF.get(dtype, "")


def dtype_of(datatype: str) -> str:
    """numpy's name of a datatype; that of BYTES is `object`."""
    return _DTYPE_OF[datatype]


def decode_tensors(data: bytes) -> list[Tensor]:
    """The tensors, whose data is a view of `data`. Raises `InvalidInput` for anything that is no checked payload."""
    try:
        tensors = _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"these {len(data)} bytes are no tensors: {error}") from error
    return [check_tensor(Tensor(one.name, one.datatype, one.shape, one.data, one.content_type)) for one in tensors]


def check_tensor(tensor: Tensor) -> Tensor:
    """The tensor. Raises `InvalidInput` unless its datatype is known and its data has as many elements as its shape says."""
    wanted = count_of(tensor.name, tensor.shape)
    if tensor.datatype == TEXTS:
        held = count_texts(tensor)
        if held != wanted:
            raise _misfit(tensor, f"{wanted} elements, and its data holds {held}")
        return tensor
    size = element_bytes(tensor.name, tensor.datatype) * wanted
    if len(tensor.data) != size:
        raise _misfit(tensor, f"{size} bytes, and its data has {len(tensor.data)}")
    return tensor


def element_bytes(name: str, datatype: str) -> int:
    """The bytes of an element. Raises `InvalidInput` for an unknown datatype; BYTES has no fixed size and is none here."""
    if datatype not in _NUMBERS:
        raise InvalidInput(f"tensor {name[:_SHOWN]!r} has the datatype {datatype[:_SHOWN]!r}; it must be {_listed()}")
    return _NUMBERS[datatype][0]


def count_of(name: str, shape: Sequence[int]) -> int:
    """The number of elements. Raises `InvalidInput` for a shape that no array has, or whose lists alone would fill memory."""
    if len(shape) > MAX_DIMENSIONS or any(size < 0 for size in shape):
        raise InvalidInput(
            f"tensor {name[:_SHOWN]!r} has the shape {str(list(shape[:8]))[:_SHOWN]}: a shape has at most {MAX_DIMENSIONS} "
            "dimensions, none of them negative"
        )
    count = math.prod(shape)
    if count > _MOST_ELEMENTS or (not count and math.prod(size or 1 for size in shape) > _MOST_EMPTY):
        raise InvalidInput(f"tensor {name[:_SHOWN]!r} has the shape {str(list(shape))[:_SHOWN]}, which is too large")
    return count


def count_texts(tensor: Tensor) -> int:
    """The same as `len(texts_of(tensor))`, without making the texts."""
    data, at, count = memoryview(tensor.data), 0, 0
    while at < len(data):
        at += 4 + int.from_bytes(data[at : at + 4], "little")
        count += 1
        if count > MAX_TEXTS:
            raise InvalidInput(f"tensor {tensor.name[:_SHOWN]!r} has more than {MAX_TEXTS} elements of BYTES")
    if at != len(data):
        raise InvalidInput(f"tensor {tensor.name[:_SHOWN]!r}: its last element of BYTES is longer than the rest of its data")
    return count


def texts_of(tensor: Tensor) -> list[bytes]:
    """The elements of a checked tensor of BYTES."""
    data, at, texts = memoryview(tensor.data), 0, []
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        texts.append(bytes(data[at + 4 : at + 4 + size]))
        at += 4 + size
    return texts


def numbers_of(tensor: Tensor) -> list[Any]:
    """The elements of a checked tensor that is not BYTES, in one flat list."""
    data = memoryview(tensor.data).cast("B")
    code = _NUMBERS[tensor.datatype][1]
    if code:
        return list(data.cast(code))  # type: ignore[call-overload]
    if tensor.datatype == "BOOL":
        return [byte != 0 for byte in data]
    if tensor.datatype == "FP16":
        return list(struct.unpack(f"<{len(data) // 2}e", data))
    # A bfloat16 is the upper half of a float.
    widened = array("I", [half << 16 for half in data.cast("H")])
    return memoryview(widened).cast("B").cast("f").tolist()


def nested(elements: list[Any], shape: Sequence[int]) -> Any:
    """The elements as lists in lists of this shape; the element itself if the shape is empty."""
    if not shape:
        return elements[0]
    if not elements:
        return [nested([], shape[1:]) for _ in range(shape[0])] if len(shape) > 1 else []
    for size in reversed(shape[1:]):
        elements = [elements[at : at + size] for at in range(0, len(elements), size)]
    return elements


def values_of(tensor: Tensor) -> Any:
    """Numbers and booleans as lists in lists, as JSON would have them."""
    return nested(numbers_of(tensor), tensor.shape)


def text_data(texts: Sequence[bytes]) -> bytes:
    """The data of a tensor of BYTES."""
    return b"".join(chain.from_iterable((len(text).to_bytes(4, "little"), text) for text in texts))


def number_data(name: str, datatype: str, elements: Sequence[Any]) -> bytes:
    """The data of a tensor of numbers. Raises `InvalidInput` for an element that the datatype does not hold."""
    if datatype == "BOOL":
        if not all(isinstance(element, bool) for element in elements):
            raise InvalidInput(f"tensor {name[:_SHOWN]!r} is BOOL and holds something that is neither true nor false")
        return bytes(elements)
    code = _NUMBERS[datatype][1]
    if bool in set(map(type, elements)):
        raise InvalidInput(f"tensor {name[:_SHOWN]!r} is {datatype} and holds true or false")
    try:
        made = array(code, elements)
    except (TypeError, OverflowError) as error:
        raise InvalidInput(f"tensor {name[:_SHOWN]!r} is {datatype} and holds something else: {error}") from None
    if code == "f" and any(map(math.isinf, made)) and not any(map(math.isinf, elements)):
        raise InvalidInput(f"tensor {name[:_SHOWN]!r} is FP32 and holds a number beyond its range")
    return made.tobytes()


def shape_of(value: Any) -> tuple[tuple[int, ...], list[Any]] | None:
    """The shape of regular lists in lists, and their elements in one flat list. None if rows differ."""
    shape: list[int] = []
    level = [value]
    while level and isinstance(level[0], list):
        lengths = {len(row) if isinstance(row, list) else -1 for row in level}
        if len(lengths) > 1:
            return None
        shape.append(lengths.pop())
        level = list(chain.from_iterable(level))
    return None if any(isinstance(element, list) for element in level) else (tuple(shape), level)


def tensor_of_plain(name: str, value: Any) -> Tensor | None:
    """The tensor of a number, a text, or regular lists of one kind; None for everything else."""
    regular = shape_of(value)
    if regular is None:
        return None
    shape, flat = regular
    kinds = set(map(type, flat))
    datatype = "FP64" if kinds == {int, float} else _PLAIN.get(next(iter(kinds), float), "") if len(kinds) < 2 else ""
    if not datatype:
        return None
    if datatype == TEXTS:
        return Tensor(name, TEXTS, shape or (1,), text_data([text.encode("utf-8", "replace") for text in flat]))
    try:
        return Tensor(name, datatype, shape or (1,), number_data(name, datatype, flat))
    except InvalidInput:
        # A whole number beyond 64 bits.
        return None


def _misfit(tensor: Tensor, rest: str) -> InvalidInput:
    shape = str(list(tensor.shape))[:_SHOWN]
    return InvalidInput(f"tensor {tensor.name[:_SHOWN]!r} of {tensor.datatype} with the shape {shape} takes {rest}")


def _listed() -> str:
    return f"{', '.join(DATATYPES[:-1])} or {DATATYPES[-1]}"

"""Reads what an ONNX file says of itself from its protobuf fields, without the package `onnx` and without copying weights.

Field numbers are those of onnx.proto3 (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto3).
"""

from __future__ import annotations

import math
import mmap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import HandlerLoadError

# TensorProto.DataType
ELEMENTS = {1: "fp32", 2: "uint8", 3: "int8", 6: "int32", 7: "int64", 10: "fp16", 11: "fp64", 16: "bf16"}
_FLOATS = ("fp32", "fp16", "bf16", "fp64")
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """`inputs` by name with their shapes, None for a free dimension; `weights` counts elements by type (fp32, int8, ...);
    `files` hold weights kept outside the model, relative to it."""

    inputs: dict[str, tuple[int | None, ...]]
    weights: dict[str, int]
    files: tuple[str, ...] = ()

    @property
    def precision(self) -> str:
        """The type of most floating-point weights; fp32 if there are none."""
        return max(_FLOATS, key=lambda name: self.weights.get(name, 0))


def read(model: Path | bytes) -> OnnxFile:
    """Raises `HandlerLoadError` if the content is not an ONNX model."""
    try:
        graph = _only(_mapped(model), 7)
        weights: Counter[str] = Counter()
        files: set[str] = set()
        for tensor in _tensors(graph):
            element, count, file = _tensor(tensor)
            weights[element] += count
            files |= {file} - {""}
        own = {_text(_only(tensor, 8)) for tensor in _all(graph, 5)}
        inputs = dict(_port(given) for given in _all(graph, 11))
    except (ValueError, IndexError, UnicodeDecodeError) as error:
        raise HandlerLoadError(f"{label(model)} is not an ONNX model: {error}; check it with onnx.checker") from error
    return OnnxFile({name: shape for name, shape in inputs.items() if name not in own}, dict(weights), tuple(sorted(files)))


def label(model: Path | bytes) -> str:
    return model.name if isinstance(model, Path) else "the model built in memory"


def _mapped(model: Path | bytes) -> memoryview:
    if isinstance(model, bytes):
        return memoryview(model)
    with model.open("rb") as file:
        if not model.stat().st_size:
            raise ValueError("the file is empty")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind, value = tag & 7, 0
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        sizes = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}
        if kind != _LENGTH and kind not in sizes:
            raise ValueError(f"byte {at} is no protobuf field")
        size, at = _varint(message, at) if kind == _LENGTH else (sizes[kind], at)
        if at + size > len(message):
            raise ValueError(f"it ends in the middle of a field of {size} bytes")
        yield tag >> 3, message[at : at + size]
        at += size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at + shift // 7]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + shift // 7 + 1
    raise ValueError(f"byte {at} is no protobuf number")


def _all(message: memoryview, number: int) -> list[memoryview]:
    return [value for field, value in _fields(message) if field == number and isinstance(value, memoryview)]


def _only(message: memoryview, number: int) -> memoryview:
    return next(iter(_all(message, number)), memoryview(b""))


def _text(value: memoryview) -> str:
    return bytes(value).decode()


def _tensors(graph: memoryview) -> Iterator[memoryview]:
    """The initializers of a graph, and the tensors and graphs that its nodes carry."""
    yield from _all(graph, 5)
    for node in _all(graph, 1):
        for attribute in _all(node, 5):
            yield from _all(attribute, 5)
            yield from _all(attribute, 10)
            for inner in [*_all(attribute, 6), *_all(attribute, 11)]:
                yield from _tensors(inner)


def _tensor(tensor: memoryview) -> tuple[str, int, str]:
    """A tensor's element type, its number of elements, and the other file that holds its data, if there is one."""
    dims: list[int] = []
    kind, file = 0, ""
    for number, value in _fields(tensor):
        if number == 1:
            dims += [value] if isinstance(value, int) else _packed(value)
        elif number == 2 and isinstance(value, int):
            kind = value
        elif number == 13 and isinstance(value, memoryview) and _text(_only(value, 1)) == "location":
            file = _text(_only(value, 2))
    return ELEMENTS.get(kind, str(kind)), math.prod(dims), file


def _packed(values: memoryview) -> list[int]:
    numbers, at = [], 0
    while at < len(values):
        value, at = _varint(values, at)
        numbers.append(value)
    return numbers


def _port(given: memoryview) -> tuple[str, tuple[int | None, ...]]:
    shape = _only(_only(_only(given, 2), 1), 2)
    sizes = [next((value for number, value in _fields(size) if number == 1), None) for size in _all(shape, 1)]
    # Some exporters write a free dimension as 0.
    return _text(_only(given, 1)), tuple(size if isinstance(size, int) and size > 0 else None for size in sizes)

"""The columns of a Parquet file, from the beginning of its footer, without a library: gateways need not have pyarrow.

The footer is Thrift's compact protocol. Its second field is the schema: a tree of columns, flattened depth first. This reader
understands only what leads to their names and skips the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MAGIC = b"PAR1"
_TAIL_BYTES = 8
# The schema comes first. A longer one is left to the runner.
_MOST_BYTES = 1 << 20
_DEPTH = 16
# Types of the compact protocol, and the bytes of those that have a fixed length.
_FLAGS, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _LIST, _LISTS, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, 9, (9, 10), 12
_FIXED = {1: 0, 2: 0, _BYTE: 1, _DOUBLE: 8}
# Fields of the file's metadata, and of an element of its schema.
_SCHEMA = 2
_NAME, _CHILDREN = 4, 5


def parquet_columns(path: Path) -> list[str] | None:
    """The names of the outermost columns, in order; None if they cannot be read here."""
    try:
        return _top_names(_schema(_Compact(_footer(path))))
    except (OSError, _NoSchema, IndexError):
        return None


class _NoSchema(ValueError):
    """The bytes are not a footer, or it is too long or too deep."""


@dataclass(slots=True)
class _Element:
    name: str = ""
    children: int = 0


def _footer(path: Path) -> bytes:
    """The footer's first bytes."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL_BYTES))
        tail = file.read(_TAIL_BYTES)
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != _MAGIC or length > size - _TAIL_BYTES:
            raise _NoSchema
        file.seek(size - _TAIL_BYTES - length)
        return file.read(min(length, _MOST_BYTES))


class _Compact:
    """Reads forward. Raises `IndexError` past the end."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """Number and type of each field of a struct. Read each value before the next field."""
        number = 0
        while kind := self._byte():
            number = number + (kind >> 4) if kind >> 4 else self.integer()
            yield number, kind & 15

    def elements(self) -> tuple[int, int]:
        """The number of a list's elements, and their type."""
        head = self._byte()
        return self._varint() if head >> 4 == 15 else head >> 4, head & 15

    def integer(self) -> int:
        raw = self._varint()
        return raw >> 1 ^ -(raw & 1)

    def binary(self) -> bytes:
        size = self._varint()
        start = self._at
        self._skip(size)
        return self._data[start : start + size]

    def pass_over(self, kind: int, depth: int = 0) -> None:
        if kind in _FIXED:
            self._skip(_FIXED[kind])
        elif kind in _INTEGERS:
            self._varint()
        elif kind == _BINARY:
            self.binary()
        elif depth < _DEPTH:
            self._pass_over_parts(kind, depth + 1)
        else:
            raise _NoSchema

    def _pass_over_parts(self, kind: int, depth: int) -> None:
        if kind == _STRUCT:
            for _, inner in self.fields():
                self.pass_over(inner, depth)
        elif kind in _LISTS:
            count, inner = self.elements()
            for _ in range(count):
                # A field's type contains the value of a flag; in a list a flag is a byte.
                self.pass_over(_BYTE if inner in _FLAGS else inner, depth)
        else:
            raise _NoSchema

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while shift < 64:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise _NoSchema

    def _skip(self, size: int) -> None:
        self._at += size
        if self._at > len(self._data):
            raise IndexError


def _schema(footer: _Compact) -> list[_Element]:
    for number, kind in footer.fields():
        if number == _SCHEMA and kind == _LIST:
            count, inner = footer.elements()
            if inner != _STRUCT:
                raise _NoSchema
            return [_element(footer) for _ in range(count)]
        footer.pass_over(kind)
    raise _NoSchema


def _element(footer: _Compact) -> _Element:
    element = _Element()
    for number, kind in footer.fields():
        if number == _NAME and kind == _BINARY:
            element.name = footer.binary().decode("utf-8", "replace")
        elif number == _CHILDREN and kind in _INTEGERS:
            element.children = footer.integer()
        else:
            footer.pass_over(kind)
    return element


def _top_names(elements: list[_Element]) -> list[str]:
    names, at = [], 1
    for _ in range(elements[0].children):
        names.append(elements[at].name)
        at = _behind(elements, at)
    return names


def _behind(elements: list[_Element], at: int) -> int:
    """The index after an element and its children."""
    pending = 1
    while pending > 0:
        pending += elements[at].children - 1
        at += 1
    return at

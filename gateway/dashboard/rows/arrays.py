"""Binary arrays of a job as tables of their first values, even from only the first bytes of the payload. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.errors import InvalidInput
from penstock.gateway.dashboard.rows.trees import ShownTable, cell
from penstock.tensors.tensor import TEXTS, Tensor, count_of, element_bytes, numbers_of

_MOST_ARRAYS, _MOST_ROWS, _MOST_COLUMNS, _MOST_CHARS = 16, 10, 16, 60
# MessagePack: the number of bytes that hold a length or an integer, by the first byte.
_WIDTHS = {0xD9: 1, 0xDA: 2, 0xDB: 4, 0xC4: 1, 0xC5: 2, 0xC6: 4, 0xDC: 2, 0xDD: 4, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}


@dataclass(frozen=True, slots=True)
class ShownArray:
    """`about`: datatype and shape. `table` is None without values to show."""

    name: str
    about: str
    table: ShownTable | None


def arrays_of(head: bytes) -> tuple[ShownArray, ...]:
    """The arrays in the first bytes of a payload of `TENSORS_MEDIA`. Raises `InvalidInput` for other bytes."""
    arrays: list[ShownArray] = []
    try:
        arrays.extend(_shown(tensor) for tensor in _tensors(head))
    except IndexError as error:
        if not arrays:
            raise InvalidInput("the arrays are cut off before their first values") from error
    return tuple(arrays)


def _tensors(head: bytes) -> Iterator[Tensor]:
    """The data of the last tensor may be cut."""
    reader = _PackedReader(head)
    for _ in range(min(reader.count(), _MOST_ARRAYS)):
        if reader.is_at_end():
            return
        members = reader.count()
        name, datatype = reader.text(), reader.text()
        shape = tuple(reader.count() for _ in range(reader.count()))
        yield Tensor(name, datatype, shape, reader.data())
        for _ in range(4, members):
            reader.data()


class _PackedReader:
    """Reads MessagePack as `encode_tensors` writes it. Raises `IndexError` at the end of the bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._at = 0

    def is_at_end(self) -> bool:
        return self._at >= len(self._data)

    def count(self) -> int:
        """The length of the next array, text or bytes, or the next integer."""
        first = self._data[self._at]
        self._at += 1
        if first < 0x80:
            return first
        if 0x90 <= first < 0xC0:
            return first & (0x0F if first < 0xA0 else 0x1F)
        if first not in _WIDTHS:
            raise InvalidInput("these bytes are not arrays")
        raw = self._data[self._at : self._at + _WIDTHS[first]]
        self._at += _WIDTHS[first]
        return int.from_bytes(raw, "big")

    def data(self) -> memoryview:
        """The next bytes; cut if the payload is."""
        size = self.count()
        chunk = self._data[self._at : self._at + size]
        self._at += size
        return chunk

    def text(self) -> str:
        return bytes(self.data()).decode("utf-8", "replace")


def _shown(tensor: Tensor) -> ShownArray:
    count = count_of(tensor.name, tensor.shape)
    about = f"{tensor.datatype}, {' × '.join(map(str, tensor.shape)) or 'one value'}"
    if tensor.datatype != TEXTS:
        element_bytes(tensor.name, tensor.datatype)
    return ShownArray(tensor.name[:_MOST_CHARS] or "array", about[:200], _table(tensor, count))


def _table(tensor: Tensor, count: int) -> ShownTable | None:
    """A row for each slice along the last dimension, after its index in the other dimensions."""
    width = tensor.shape[-1] if tensor.shape else 1
    rows = count // width if width else 0
    rows_shown = []
    for row in range(min(rows, _MOST_ROWS)):
        cells = _cells(tensor, row * width, min(width, _MOST_COLUMNS))
        if not cells:
            break
        rows_shown.append((*_place(row, tensor.shape[:-1]), *cells))
    if not rows_shown:
        return None
    columns = (*["place"][: len(tensor.shape) - 1], *(str(place) for place in range(min(width, _MOST_COLUMNS))))
    left_out = [f"the first {len(rows_shown)} of {rows} rows"] if rows > len(rows_shown) else []
    left_out += [f"the first {_MOST_COLUMNS} of {width} columns"] if width > _MOST_COLUMNS else []
    return ShownTable(columns, tuple(row + ("",) * (len(columns) - len(row)) for row in rows_shown), ", ".join(left_out))


def _place(row: int, shape: tuple[int, ...]) -> tuple[str, ...]:
    """The index of a row in the outer dimensions; empty for an array of one dimension."""
    places = [str(row // math.prod(shape[axis + 1 :]) % size) for axis, size in enumerate(shape)]
    return (", ".join(places),) if places else ()


def _cells(tensor: Tensor, start: int, count: int) -> list[str]:
    if tensor.datatype == TEXTS:
        return _texts(tensor)[start : start + count]
    size = element_bytes(tensor.name, tensor.datatype)
    data = memoryview(tensor.data)[start * size : (start + count) * size]
    whole = data[: len(data) // size * size]
    return [cell(value) for value in numbers_of(Tensor("", tensor.datatype, (), whole))]


def _texts(tensor: Tensor) -> list[str]:
    """The first complete elements of BYTES, as text."""
    data, at, texts = memoryview(tensor.data), 0, list[str]()
    while at + 4 <= len(data) and len(texts) < _MOST_ROWS * _MOST_COLUMNS:
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        if end > len(data):
            break
        text = bytes(data[at + 4 : min(end, at + 4 + 4 * _MOST_CHARS)]).decode("utf-8", "replace")[:_MOST_CHARS]
        texts.append("".join(char if char.isprintable() else "\ufffd" for char in text))
        at = end
    return texts

"""Parquet files: reads only the needed columns, a few thousand rows at a time. A position is a row group and a row in it.

A file of some KiB can hold rows of many GiB, because equal values cost almost nothing. Rows are therefore counted by their
decoded size: as many at a time as the longest text of the group's dictionaries allows, and cut by decoded bytes.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import product
from typing import Any, BinaryIO

from penstock.errors import InvalidInput
from penstock.runs import files
from penstock.runs.files import import_arrow
from penstock.runs.rows import RowError
from penstock.runs.sources.mapping import Mapping
from penstock.runs.sources.row_files import FileRows

_BATCH_ROWS = 4096
_READ_BYTES = 1 << 20
# The memory for the columns of a batch; beyond it, the rows are cut further.
_BATCH_BYTES = 16 << 20
_VALUE_BYTES = 8


@dataclass
class ParquetFile:
    """`binary`: the input is a bare column of bytes. All other columns of bytes become base64. `end`: the row group
    before which the file ends for its reader.
    """

    name: str
    mapping: Mapping
    binary: bool = False
    end: int | None = None
    _file: BinaryIO | None = field(default=None, repr=False)
    _reader: Any = field(default=None, repr=False)
    _batches: Iterator[Any] | None = field(default=None, repr=False)
    _batch: Any = field(default=None, repr=False)
    # The row group of `_batch`, and the offset of the batch's first row in the group.
    _at: tuple[int, int] = (-1, 0)

    def columns(self) -> list[str]:
        return list(self._open().schema_arrow.names)

    def groups(self) -> list[tuple[int, int]]:
        """Rows and bytes of every row group."""
        metadata = self._open().metadata
        row_groups = (metadata.row_group(group) for group in range(metadata.num_row_groups))
        return [(group.num_rows, group.total_byte_size) for group in row_groups]

    def is_binary(self, column: str) -> bool:
        types = import_arrow().types
        kind = _values_of(self._open().schema_arrow.field(column).type)
        return bool(types.is_binary(kind) or types.is_large_binary(kind))

    def read(self, after: dict[str, Any] | None, *, rows: int, size_bytes: int) -> FileRows | None:
        start = after or {"group": 0, "offset": 0}
        reader = self._open()
        self.mapping.check_there(self.columns(), self.name)
        group, offset = start["group"], start["offset"]
        while group < (reader.num_row_groups if self.end is None else self.end):
            batch = self._rows_at(group, offset, rows, size_bytes)
            if batch is not None:
                return self._records(batch, {"group": group, "offset": offset + batch.num_rows})
            group, offset = group + 1, 0
        return None

    def count(self) -> int | None:
        return int(self._open().metadata.num_rows)

    def close(self) -> None:
        self._batches = self._batch = self._reader = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> Any:
        if self._reader is None:
            pa = import_arrow()
            self._file = files.open_read(self.name)
            try:
                self._reader = pa.parquet.ParquetFile(self._file, buffer_size=_READ_BYTES)
            except pa.ArrowException as error:
                self.close()
                raise InvalidInput(f"{self.name} is not a Parquet file: {error}") from error
        return self._reader

    def _rows_at(self, group: int, offset: int, rows: int, size_bytes: int) -> Any:
        """Rows of one batch from `offset` on; None if the group has no more."""
        if group != self._at[0] or offset < self._at[1] or self._batches is None:
            self._start(group)
        while self._batch is None or offset >= self._at[1] + self._batch.num_rows:
            if not self._next():
                return None
        part = self._batch.slice(offset - self._at[1], rows)
        while part.num_rows > 1 and sum(map(_decoded_bytes, part.columns)) > size_bytes:
            part = part.slice(0, part.num_rows // 2)
        return part

    def _start(self, group: int) -> None:
        needed = list(dict.fromkeys([*self.mapping.inputs_from(self.columns()), *self.mapping.carry]))
        rows = self._batch_rows(group, needed)
        self._batches = self._open().iter_batches(batch_size=rows, row_groups=[group], columns=needed, use_threads=False)
        self._batch, self._at = None, (group, 0)

    def _batch_rows(self, group: int, needed: list[str]) -> int:
        """How many rows of a row group to read at a time, by the mean size of its rows and the longest text they repeat."""
        facts = self._open().metadata.row_group(group)
        columns = [facts.column(index) for index in range(facts.num_columns)]
        columns = [column for column in columns if _top_of(column, needed)]
        texts = [column for column in columns if _is_repeated_text(column)]
        row_bytes = sum(max(each.total_uncompressed_size, each.num_values * _VALUE_BYTES) for each in columns)
        row_bytes += self._longest_text(group, texts, needed) * sum(each.num_values for each in texts)
        return max(1, min(_BATCH_ROWS, int(_BATCH_BYTES * facts.num_rows // max(1, row_bytes))))

    def _longest_text(self, group: int, columns: list[Any], needed: list[str]) -> int:
        """The longest text in the dictionaries of these columns. Reads one row, which loads the dictionary."""
        if not columns:
            return 0
        paths = [column.path_in_schema for column in columns]
        reader = import_arrow().parquet.ParquetFile(self._file, metadata=self._open().metadata, read_dictionary=paths)
        tops = list(dict.fromkeys(_top_of(column, needed) for column in columns))
        batch = next(reader.iter_batches(batch_size=1, row_groups=[group], columns=tops, use_threads=False), None)
        return max(map(_longest_known, batch.columns)) if batch is not None else 0

    def _next(self) -> bool:
        behind = self._at[1] + (self._batch.num_rows if self._batch is not None else 0)
        try:
            batch = next((each for each in self._batches or () if each.num_rows), None)
        except (import_arrow().ArrowException, OSError) as error:
            raise InvalidInput(f"{self.name} is damaged in row group {self._at[0]}: {error}") from error
        if batch is None:
            return False
        self._batch, self._at = batch, (self._at[0], behind)
        return True

    def _records(self, batch: Any, after: dict[str, Any]) -> FileRows:
        try:
            read = {name: _values(batch.column(name), self.binary) for name in batch.schema.names}
        except (import_arrow().ArrowException, ValueError, OverflowError) as error:
            raise InvalidInput(f"{self.name}: {self._first_unreadable(batch, after)}: {error}") from error
        inputs = self.mapping.of_columns({name: read[name] for name in self.mapping.inputs_from(self.columns())})
        carried = {name: _values(batch.column(name), False) for name in self.mapping.carry}
        bad = {
            place: RowError("invalid_input", "the row holds no bytes") for place, value in enumerate(inputs) if value is None
        }
        return FileRows(inputs, carried, bad if self.binary else {}, after)

    def _first_unreadable(self, batch: Any, after: dict[str, Any]) -> str:
        """The first unreadable value of the batch: a text that is not UTF-8, or a time that Python does not support."""
        metadata = self._open().metadata
        first = sum(metadata.row_group(group).num_rows for group in range(after["group"])) + after["offset"] - batch.num_rows
        for name, place in product(batch.schema.names, range(batch.num_rows)):
            try:
                _values(batch.column(name).slice(place, 1), self.binary)
            except (import_arrow().ArrowException, ValueError, OverflowError):
                return f"column {name!r} of row {first + place + 1:,} cannot be read"
        return "rows cannot be read"


def _top_of(column: Any, needed: list[str]) -> str:
    """The file's column that contains a row group's column; empty if it is not needed."""
    path = column.path_in_schema
    return next((name for name in needed if path == name or path.startswith(f"{name}.")), "")


def _is_repeated_text(column: Any) -> bool:
    """Whether a row group's column of texts or bytes has a dictionary, to whose values its rows refer."""
    return column.physical_type == "BYTE_ARRAY" and any("DICTIONARY" in encoding for encoding in column.encodings)


def _longest_known(column: Any) -> int:
    """The longest value in the dictionaries of the column, including those within lists and structs."""
    pa = import_arrow()
    if pa.types.is_dictionary(column.type):
        return pa.compute.max(pa.compute.binary_length(column.dictionary)).as_py() or 0 if _is_text(column.dictionary) else 0
    if pa.types.is_nested(column.type):
        return max(map(_longest_known, _within(column)), default=0)
    return 0


def _within(column: Any) -> list[Any]:
    """The columns within a list or a struct."""
    parts = column.flatten()
    return parts if isinstance(parts, list) else [parts]


def _is_text(column: Any) -> bool:
    types = import_arrow().types
    tests = (types.is_string, types.is_binary, types.is_large_string, types.is_large_binary)
    return any(test(column.type) for test in tests)


def _decoded_bytes(column: Any) -> int:
    """The size of the column after all references to a dictionary are resolved."""
    pa = import_arrow()
    if pa.types.is_nested(column.type):
        return sum(map(_decoded_bytes, _within(column)))
    if not pa.types.is_dictionary(column.type) or not _is_text(column.dictionary):
        return int(column.nbytes)
    lengths = pa.compute.binary_length(column.dictionary).take(column.indices)
    return pa.compute.sum(lengths).as_py() or 0


def _values_of(kind: Any) -> Any:
    """The type of a column's values, whether or not they are references to a dictionary."""
    return kind.value_type if import_arrow().types.is_dictionary(kind) else kind


def _values(column: Any, binary: bool) -> list[Any]:
    if import_arrow().types.is_dictionary(column.type):
        column = column.dictionary_decode()
    values: list[Any] = column.to_pylist(maps_as_pydicts="lossy") if _has_map(column.type) else column.to_pylist()
    return values if binary or _is_plain(column.type) else [_plain(value) for value in values]


def _has_map(kind: Any) -> bool:
    return bool(import_arrow().types.is_map(kind)) or any(_has_map(kind.field(index).type) for index in range(kind.num_fields))


def _is_plain(kind: Any) -> bool:
    """Whether JSON can hold Python's values of this type unchanged."""
    types, kind = import_arrow().types, _values_of(kind)
    if types.is_nested(kind):
        return all(_is_plain(kind.field(index).type) for index in range(kind.num_fields))
    tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_null, types.is_string, types.is_large_string)
    return any(test(kind) for test in tests)


def _plain(value: Any) -> Any:
    """Times as ISO 8601, decimals as numbers, durations in seconds, bytes as base64."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return _plain_scalar(value)


def _plain_scalar(value: Any) -> Any:
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return value if value is None or isinstance(value, (str, int, float)) else str(value)

"""Parquet output: Arrow blocks during the run, one Parquet file with one schema at its end.

Each block is a separate stream behind its length, so that the file can be cut between any two. The final file depends only on
the rows, not on the commits: types are joined over all blocks, and row groups are cut by count.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec

from penstock.runs.files import import_arrow
from penstock.runs.rows import ResultBatch
from penstock.runs.sinks.appendable import Appendable
from penstock.runs.sinks.rows_file import OUTPUT

BLOCK_ROWS = 8_192
# Small enough to keep a group of embeddings (384 doubles a row) at 50 MB.
GROUP_ROWS = 16_384
# Marks a column of a block whose values have no common Arrow type: it holds them as JSON text.
_AS_JSON = {b"penstock": b"json"}
_LENGTH = struct.Struct("<Q")


@dataclass
class ParquetRows:
    """One row per input row: the carried columns and `output`, null for a failed row. Objects become
    structs, lists of numbers lists; a column whose values have no common type becomes JSON text.
    """

    file: Appendable
    _columns: dict[str, list[Any]] = field(default_factory=dict, repr=False)

    def append(self, results: ResultBatch) -> None:
        for name, values in (*results.carried.items(), (OUTPUT, results.outputs)):
            self._columns.setdefault(name, []).extend(values)
        if len(self._columns[OUTPUT]) >= BLOCK_ROWS:
            self._write_block()

    def sync(self) -> int:
        self._write_block()
        return self.file.sync()

    def cut(self, length: int) -> None:
        self._columns = {}
        self.file.cut(length)

    def finish(self) -> Path:
        """Make the Parquet file from all blocks. Memory is bounded by one row group."""
        self.sync()
        self.file.close()
        pa = import_arrow()
        path = self.file.path.with_name("rows.parquet")
        schema, as_json = _join_schemas(self.file.path)
        with path.open("wb") as file:
            with pa.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
                for group in _groups(self.file.path, schema, as_json):
                    writer.write_table(group, row_group_size=GROUP_ROWS)
            file.flush()
            os.fsync(file.fileno())
        return path

    def close(self) -> None:
        self._columns = {}
        self.file.close()

    def _write_block(self) -> None:
        if not self._columns or not self._columns[OUTPUT]:
            return
        pa = import_arrow()
        made = {name: _array(values) for name, values in self._columns.items()}
        fields = [pa.field(name, array.type, metadata=_AS_JSON if json else None) for name, (array, json) in made.items()]
        batch = pa.RecordBatch.from_arrays([array for array, _ in made.values()], schema=pa.schema(fields))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        data = sink.getvalue()
        self.file.append(_LENGTH.pack(data.size))
        self.file.append(memoryview(data))
        self._columns = {}


def _array(values: list[Any]) -> tuple[Any, bool]:
    """The values as one column, and whether it had to become JSON text."""
    pa = import_arrow()
    try:
        return pa.array(values), False
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):
        return pa.array([_text(value) for value in values], pa.string()), True


def _text(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(_canonical(value)).decode()


def _canonical(value: Any) -> Any:
    """Equal for a value and its copy from a typed column, which widens numbers and adds missing fields as null."""
    if isinstance(value, dict):
        return {key: _canonical(value[key]) for key in sorted(value) if value[key] is not None}
    if isinstance(value, (list, tuple)):
        return [_canonical(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _blocks(path: Path) -> Iterator[Any]:
    pa = import_arrow()
    with path.open("rb") as file:
        while head := file.read(_LENGTH.size):
            yield pa.ipc.open_stream(file.read(_LENGTH.unpack(head)[0])).read_all()


def _join_schemas(path: Path) -> tuple[Any, set[str]]:
    """The common schema of all blocks, and the columns that must be JSON text."""
    pa = import_arrow()
    types: dict[str, Any] = {}
    as_json: set[str] = set()
    for block in _blocks(path):
        for each in block.schema:
            # `_cannot_join` comes first because it also records the column.
            if _cannot_join(types, each) or each.metadata == _AS_JSON:
                as_json.add(each.name)
    as_json |= {name for name, kind in types.items() if _holds_empty_struct(kind)}
    fields = [pa.field(name, pa.string() if name in as_json else kind) for name, kind in types.items()]
    return pa.schema(fields or [pa.field(OUTPUT, pa.null())]), as_json


def _cannot_join(types: dict[str, Any], column: Any) -> bool:
    """Join the column's type into `types`; True if it has no common type with the earlier blocks."""
    pa = import_arrow()
    before = types.setdefault(column.name, column.type)
    if before == column.type:
        return False
    try:
        both = [pa.schema([pa.field("x", kind)]) for kind in (before, column.type)]
        types[column.name] = pa.unify_schemas(both, promote_options="permissive").field("x").type
    except pa.ArrowException:
        return True
    return False


def _holds_empty_struct(kind: Any) -> bool:
    # Parquet cannot store a struct without fields.
    if import_arrow().types.is_struct(kind) and kind.num_fields == 0:
        return True
    return any(_holds_empty_struct(kind.field(index).type) for index in range(kind.num_fields))


def _groups(path: Path, schema: Any, as_json: set[str]) -> Iterator[Any]:
    pa = import_arrow()
    blocks: list[Any] = []
    rows = 0
    for block in _blocks(path):
        blocks.append(_cast(block, schema, as_json))
        rows += block.num_rows
        while rows >= GROUP_ROWS:
            table = pa.concat_tables(blocks)
            yield table.slice(0, GROUP_ROWS).combine_chunks()
            blocks, rows = [table.slice(GROUP_ROWS)], rows - GROUP_ROWS
    if rows:
        yield pa.concat_tables(blocks).combine_chunks()


def _cast(block: Any, schema: Any, as_json: set[str]) -> Any:
    pa = import_arrow()
    columns = []
    for each in schema:
        column = block.column(each.name)
        if each.name in as_json and block.schema.field(each.name).metadata != _AS_JSON:
            column = pa.chunked_array([pa.array([_text(value) for value in column.to_pylist()], pa.string())])
        columns.append(cast("Any", column).cast(each.type, safe=False))
    return pa.table(columns, schema=schema)

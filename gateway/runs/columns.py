"""Compares the columns that a run names with the beginning of its input: a wrong name is refused before the run is stored.

A Parquet file names its columns in the footer. Files that cannot be read here are left to the runner.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from penstock.errors import InvalidInput
from penstock.gateway.runs.parquet_columns import parquet_columns
from penstock.inputs.input_shape import InputShape, shape_of
from penstock.run import DELIMITERS

_HEAD_BYTES = 1 << 18
# The members of this many first lines are the columns of JSON lines, because a line may leave some out.
_HEAD_LINES = 100
_TABLES = (*DELIMITERS, "parquet")
_ALL = "*"
_BOM = b"\xef\xbb\xbf"


def check_columns(
    path: Path, kind: str, columns: Mapping[str, str], carry: Sequence[str], *, schema: Mapping[str, Any] | None
) -> None:
    """Reads the file's beginning or footer: call it in a thread. A file that cannot be read this way is left to the runner.

    Raises `InvalidInput` with a pointer to each missing column, and for columns that do not fit the model's fields.
    """
    shape = shape_of(schema)
    if columns:
        _check_fields(shape, columns)
    if kind == "text" and (columns or carry):
        raise _refusal([("/columns" if columns else "/carry", "a text file has no columns: every line is one row")])
    there = _columns(path, kind) if path.is_file() else None
    if there is None:
        return
    named = [(f"/columns/{_escaped(field)}", column) for field, column in columns.items()]
    named += [(f"/carry/{index}", column) for index, column in enumerate(carry) if column != _ALL]
    faults = [(pointer, _no_column(column, there)) for pointer, column in named if column not in there]
    if faults:
        raise _refusal(faults, hint=f"The columns of the input are {', '.join(map(repr, there)) or 'none'}.")
    is_bare = shape.is_scalar and len(there) == 1
    if kind in _TABLES and not columns and not is_bare:
        _check_table(shape, there)


def _check_fields(shape: InputShape, columns: Mapping[str, str]) -> None:
    try:
        shape.check_mapped(columns)
    except InvalidInput as fault:
        raise _refusal([("/columns", fault.message)], hint=_of_fields(shape)) from fault


def _check_table(shape: InputShape, there: Sequence[str]) -> None:
    try:
        shape.check_columns(there, "the input")
    except InvalidInput as fault:
        raise _refusal([("/columns", fault.message)], hint=_of_fields(shape)) from fault


def _of_fields(shape: InputShape) -> str:
    fields = ", ".join(repr(name) for form in shape.objects for name in form.fields)
    takes = f"The model's fields are {fields}. " if fields else "The model's input has no fields. "
    return takes + 'columns maps each field to a column of the input; {"": COLUMN} gives that column\'s value alone.'


def _no_column(column: str, there: Sequence[str]) -> str:
    near = get_close_matches(column, there, n=1)
    return f"the input has no column {column[:80]!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def _refusal(faults: Sequence[tuple[str, str]], hint: str | None = None) -> InvalidInput:
    errors = [{"pointer": pointer, "detail": detail} for pointer, detail in faults]
    return InvalidInput(f"the run cannot read its input: {'; '.join(detail for _, detail in faults)}", errors=errors, hint=hint)


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _head(path: Path) -> bytes:
    """The beginning of the file, unpacked; empty if it cannot be read."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read(_HEAD_BYTES).removeprefix(_BOM)
    except (OSError, EOFError, zlib.error):
        return b""


def _columns(path: Path, kind: str) -> list[str] | None:
    """The columns in the file's beginning; None if it names none."""
    if kind == "parquet":
        return parquet_columns(path)
    if kind in DELIMITERS:
        return _of_header(_head(path), DELIMITERS[kind])
    return _of_lines(_head(path)) if kind == "jsonl" else None


def _of_header(head: bytes, delimiter: str) -> list[str] | None:
    text = head.decode("utf-8", "replace")
    try:
        reader = csv.reader(text.splitlines(keepends=True), delimiter=delimiter, strict=True)
        names = next(reader, None)
    except csv.Error:
        return None
    is_whole = len(head) < _HEAD_BYTES or reader.line_num < text.count("\n")
    return names if names and is_whole else None


def _of_lines(head: bytes) -> list[str] | None:
    """The members of the objects in the first lines. The last line may be cut off."""
    lines = head.split(b"\n")
    whole = lines[:-1] if len(head) == _HEAD_BYTES else lines
    columns: dict[str, None] = {}
    for line in whole[:_HEAD_LINES]:
        try:
            value = msgspec.json.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
        columns.update(dict.fromkeys(value) if isinstance(value, dict) else {})
    return list(columns) or None

"""The source that a run's spec asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.errors import InvalidInput
from penstock.inputs.input_shape import InputShape, shape_of
from penstock.run import RunSpec, format_of
from penstock.runs import files
from penstock.runs.sources.folder import PATH, FolderSource
from penstock.runs.sources.lines import JsonLines, LineFile, TextLines
from penstock.runs.sources.mapping import Mapping, build_mapping
from penstock.runs.sources.parquet import ParquetFile
from penstock.runs.sources.row_files import BYTES_MEDIA, JSON_MEDIA, FilesSource, RowFile
from penstock.runs.sources.table_text import DelimitedTable

FORMATS = ("jsonl", "csv", "tsv", "parquet", "text", "files")
ALL = "*"
_TABLES = {"csv": ",", "tsv": "\t"}


FileSource = FilesSource | FolderSource
Opener = Callable[[str, int | None], RowFile]


def open_source(spec: RunSpec, *, input_schema: dict[str, Any] | None = None) -> FileSource:
    """The input, not read yet. The model's `input_schema` decides whether a file's only column is the bare input, and how text
    cells are read.

    Raises `NotFound` if there is no file, `InvalidInput` for an unknown format, columns that a table lacks, and columns that do
    not fit the model's fields.
    """
    names, many = files.expand(spec.input)
    kind = spec.input_format or input_format(names, many)
    shape = shape_of(input_schema)
    mapping = build_mapping(spec.columns, _carried(spec.carry, kind, names[0]), shape.is_scalar)
    if kind == "files":
        return FolderSource(names, mapping.carry)
    if mapping.columns:
        shape.check_mapped(mapping.columns)
    if kind == "parquet":
        return _parquet(names, mapping, shape)
    open_file = _opener(kind, mapping, shape)
    by_line = kind in ("jsonl", "text") and len(names) == 1
    source = FilesSource(names, open_file, first_line=1 if by_line else None)
    if kind in _TABLES:
        _check_tables(names, open_file, mapping, shape)
    return source


def _carried(carry: tuple[str, ...], kind: str, first: str) -> tuple[str, ...]:
    """The columns to carry; `*`: all columns of the first file, or all members of the first line of JSON lines."""
    # A text file has no columns, so this is refused like any unknown column.
    if ALL not in carry or kind == "text":
        return carry
    if kind == "files":
        return (PATH,)
    file = ParquetFile(first, Mapping()) if kind == "parquet" else _opener(kind, Mapping(), InputShape())(first, None)
    try:
        if isinstance(file, ParquetFile):
            return tuple(file.columns())
        if isinstance(file, DelimitedTable):
            return tuple(file.header()[0])
        batch = file.read(None, rows=1, size_bytes=1)
        row = batch.inputs[0] if batch else {}
        if not isinstance(row, dict):
            raise InvalidInput(f"{ALL!r} carries the members of the first line of {first}, which holds no object")
        return tuple(row)
    finally:
        file.close()


def input_format(names: list[str], many: bool) -> str:
    """The format by the first name. In a folder or glob every text file is a row; in a single text file every line is."""
    kind = format_of(names[0].removesuffix(".gz")) or "files"
    return "files" if many and kind == "text" else kind


def _opener(kind: str, mapping: Mapping, shape: InputShape) -> Opener:
    if kind in _TABLES:
        return lambda name, end: DelimitedTable(LineFile(name, end=end), mapping, _TABLES[kind], shape)
    if kind == "jsonl":
        return lambda name, end: JsonLines(LineFile(name, end=end), mapping)
    if kind == "text":
        if not mapping.whole:
            raise InvalidInput(
                "a text file has no columns to map or carry", hint="every line is one row; leave out --column and --carry"
            )
        return lambda name, end: TextLines(LineFile(name, end=end))
    raise InvalidInput(f"unknown input format {kind!r}", hint=f"use one of {', '.join(FORMATS)}")


def _check_tables(names: list[str], open_file: Opener, mapping: Mapping, shape: InputShape) -> None:
    for name in names:
        file = open_file(name, None)
        try:
            if isinstance(file, DelimitedTable):
                _check_columns(file.header()[0], name, mapping, shape)
        finally:
            file.close()


def _check_columns(there: list[str], name: str, mapping: Mapping, shape: InputShape) -> None:
    """Raises `InvalidInput` if every row of a table with the columns `there` would fail."""
    mapping.check_there(there, name)
    if not mapping.columns and not mapping.is_bare(there):
        shape.check_columns(there, name)


def _parquet(names: list[str], mapping: Mapping, shape: InputShape) -> FilesSource:
    binary: set[bool] = set()
    for name in names:
        file = ParquetFile(name, mapping)
        try:
            there = file.columns()
            _check_columns(there, name, mapping, shape)
            binary.add(mapping.is_bare(there) and file.is_binary(mapping.inputs_from(there)[0]))
        finally:
            file.close()
    if len(binary) > 1:
        raise InvalidInput("the input column holds bytes in some files and other types in others")
    media = BYTES_MEDIA if True in binary else JSON_MEDIA
    return FilesSource(names, lambda name, end: ParquetFile(name, mapping, media == BYTES_MEDIA, end), media=media)

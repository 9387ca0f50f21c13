"""CSV and TSV with a header line. A position is the byte offset where a record starts, and the number of lines before it.

Cells are text. A field that the model's schema calls a number, boolean, list or object is read as JSON; one that may be text is
text; if the schema does not say, a cell that looks like a JSON number becomes one.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from penstock.errors import InvalidInput
from penstock.inputs.input_shape import InputShape
from penstock.runs.rows import RowError
from penstock.runs.sources.lines import LineFile
from penstock.runs.sources.mapping import Mapping
from penstock.runs.sources.row_files import FileRows

_FEED_LINES = 1024
_FEED_BYTES = 256 * 1024
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_BYTES = re.compile("[\udc80-\udcff]")  # what is not UTF-8
_WORDS = {"true": True, "false": False, "null": None, "": None}


class _Overlong(Exception):
    """The current record exceeds the size limit."""


class _Feed:
    """Lines of text for `csv.reader`, which takes exactly the lines of a record. `offset` is behind the last line given, and
    `line` its number; None if it is not known.
    """

    def __init__(self, file: LineFile, offset: int, line: int | None) -> None:
        self._file = file
        self.offset, self.line = offset, line
        self._lines: list[bytes] = []
        self._next = 0
        self._end = offset
        self.broken = False
        self._begin, self.first_line = offset, line
        self._first: int | None = None

    def begin(self) -> None:
        self._begin, self._first, self.broken = self.offset, None, False
        self.first_line = None if self.line is None else self.line + 1

    def back_to_first_line(self) -> None:
        """Return to the end of the record's first line: an unclosed quote swallowed the rows after it, which are read again."""
        if self._first is not None and self._first != self.offset:
            self.offset, self.line = self._first, self.first_line
            self._end = self._first
            self._lines, self._next = [], 0

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> str:
        if self._next >= len(self._lines):
            self._lines, self._end = self._file.lines(self.offset, rows=_FEED_LINES, size_bytes=_FEED_BYTES)
            self._next = 0
            if not self._lines:
                raise StopIteration
        line = self._lines[self._next]
        self._next += 1
        self.line = None if self.line is None else self.line + 1
        self.offset = self._end if self._next == len(self._lines) else self.offset + len(line) + 1
        if self._first is None:
            self._first = self.offset
        if len(line) > self._file.max_line_bytes or self.offset - self._begin > self._file.max_line_bytes:
            raise _Overlong
        return self._text(line)

    def _text(self, line: bytes) -> str:
        try:
            return line.decode() + "\n"
        except UnicodeDecodeError:
            self.broken = True
            return line.decode(errors="surrogateescape") + "\n"


@dataclass
class DelimitedTable:
    """`shape`: the shape of the model's input, which decides how cells are read."""

    file: LineFile
    mapping: Mapping
    delimiter: str = ","
    shape: InputShape = field(default_factory=InputShape)
    _header: tuple[list[str], dict[str, int]] | None = field(default=None, repr=False)

    def read(self, after: dict[str, Any] | None, *, rows: int, size_bytes: int) -> FileRows | None:
        header, begin = self.header()
        self.mapping.check_there(header, self.file.name)
        start = after or begin
        # The position of a run that began before lines were counted has none.
        feed = _Feed(self.file, start["offset"], start.get("line"))
        records, bad, lines = self._records(feed, rows, size_bytes)
        if not records:
            return None
        read = {name: list(values) for name, values in zip(header, zip(*records, strict=True), strict=True)}
        carried = {name: read[name] for name in self.mapping.carry}
        inputs = self.mapping.of_columns(self._typed(read, bad))
        for place, error in bad.items():
            inputs[place] = None
            bad[place] = error if lines[place] is None else replace(error, message=f"line {lines[place]}: {error.message}")
        end = {"offset": feed.offset} | ({} if feed.line is None else {"line": feed.line})
        return FileRows(inputs, carried, bad, end)

    def count(self) -> int | None:
        return None

    def close(self) -> None:
        self.file.close()

    def header(self) -> tuple[list[str], dict[str, int]]:
        """The column names, and the position of the first record. Raises `InvalidInput` if names are missing or repeated."""
        if self._header is None:
            csv.field_size_limit(self.file.max_line_bytes + 1)
            feed = _Feed(self.file, 0, 0)
            try:
                names = next(csv.reader(feed, delimiter=self.delimiter, strict=True), [])
            except (csv.Error, _Overlong) as error:
                raise InvalidInput(f"{self.file.name} has no readable header line: {error}") from error
            if names:
                names[0] = names[0].removeprefix("\ufeff")
            if not names or len(set(names)) != len(names) or feed.broken:
                raise InvalidInput(
                    f"{self.file.name} needs a header line with a different name for each column, and has {names}"
                )
            self._header = (names, {"offset": feed.offset, "line": feed.line or 0})
        return self._header

    def _records(
        self, feed: _Feed, rows: int, size_bytes: int
    ) -> tuple[list[list[str]], dict[int, RowError], list[int | None]]:
        """The records, the faults of bad ones, and the line where each begins. Cells of a bad one are kept if they are text."""
        width, offset = len(self.header()[0]), feed.offset
        reader = csv.reader(feed, delimiter=self.delimiter, strict=True)
        records: list[list[str]] = []
        bad: dict[int, RowError] = {}
        lines: list[int | None] = []
        while len(records) < rows and (feed.offset - offset < size_bytes or not records):
            feed.begin()
            record, error = self._record(reader, feed, width)
            if record is None and error is None:
                break
            if error is not None:
                bad[len(records)] = error
            records.append([*(record or ()), *[""] * width][:width])
            lines.append(feed.first_line)
        return records, bad, lines

    def _record(self, reader: Any, feed: _Feed, width: int) -> tuple[list[str] | None, RowError | None]:
        """The next record, and the fault of a bad one; neither at the end of the file."""
        try:
            record: list[str] | None = next(reader, None)
        except csv.Error as error:
            feed.back_to_first_line()
            return None, RowError("invalid_input", f"the record is not valid CSV: {error}")
        except _Overlong:
            feed.back_to_first_line()
            return None, RowError("too_large", f"the record is longer than {self.file.max_line_bytes} bytes")
        if record is None:
            return None, None
        if not record and width == 1:
            record = [""]
        if feed.broken:
            cells = ["" if _BYTES.search(cell) else cell for cell in record]
            return cells, RowError("invalid_input", "the record is not UTF-8")
        if len(record) != width:
            return record, RowError("invalid_input", f"the record has {len(record)} columns, the header {width}")
        return record, None

    def _typed(self, read: dict[str, list[str]], bad: dict[int, RowError]) -> dict[str, list[Any]]:
        """The columns that inputs are made of, converted from text to values."""
        fields = {column: name for name, column in self.mapping.columns.items()}
        bare = self.mapping.is_bare(list(read))
        typed: dict[str, list[Any]] = {}
        for column in self.mapping.inputs_from(list(read)):
            types = self.shape.types_of("" if bare else fields.get(column, column))
            typed[column] = _read_as(types, column, read[column], bad)
        return typed


def _read_as(types: frozenset[str], column: str, cells: list[str], bad: dict[int, RowError]) -> list[Any]:
    """The cells as values of these JSON types; without types: of any type."""
    if "string" in types:
        return list(cells)
    if not types:
        return [msgspec.json.decode(cell) if _NUMBER.fullmatch(cell) else cell for cell in cells]
    values = []
    for place, cell in enumerate(cells):
        value, fault = _json_cell(cell)
        values.append(value)
        if fault:
            bad.setdefault(
                place, RowError("invalid_input", f"column {column!r} holds {cell[:40]!r}, which is not a JSON value")
            )
    return _as_integers(values) if "number" not in types and "integer" in types else values


def _as_integers(values: list[Any]) -> list[Any]:
    """Programs write a column of integers as 1.0, 2.0 as soon as one of its cells is empty."""
    return [int(value) if isinstance(value, float) and value.is_integer() else value for value in values]


def _json_cell(cell: str) -> tuple[Any, bool]:
    text = cell.strip()
    if text.lower() in _WORDS:
        return _WORDS[text.lower()], False
    try:
        return msgspec.json.decode(text), False
    except (msgspec.MsgspecError, RecursionError):
        return None, True

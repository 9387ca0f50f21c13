"""The row files that a sink is made of: the interface of output formats, JSON Lines, and the errors file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from penstock.runs.rows import ResultBatch
from penstock.runs.sinks.appendable import Appendable

OUTPUT = "output"
ERRORS_SUFFIX = ".errors.jsonl"


class RowsFile(Protocol):
    """Rows in a format's partial form. `finish` makes the file to publish; it depends on the rows only, not on the commits.

    `file` holds the partial form. Those of two outputs, one behind the other, are the partial form of all their rows.
    """

    @property
    def file(self) -> Appendable: ...

    def append(self, results: ResultBatch) -> None: ...

    def sync(self) -> int: ...

    def cut(self, length: int) -> None: ...

    def finish(self) -> Path: ...

    def close(self) -> None: ...


@dataclass
class JsonRows:
    """One JSON line per row: the carried columns and `output`, null for a failed row. Bytes become base64."""

    file: Appendable
    _line: tuple[tuple[str, ...], type[Any]] | None = field(default=None, repr=False)
    _encoder: msgspec.json.Encoder = field(default_factory=msgspec.json.Encoder, repr=False)

    def append(self, results: ResultBatch) -> None:
        lines = list(map(self._line_of(tuple(results.carried)), *results.carried.values(), results.outputs))
        self.file.append(self._encoder.encode_lines(lines))

    def sync(self) -> int:
        return self.file.sync()

    def cut(self, length: int) -> None:
        self.file.cut(length)

    def finish(self) -> Path:
        self.file.sync()
        self.file.close()
        return self.file.path

    def close(self) -> None:
        self.file.close()

    def _line_of(self, carried: tuple[str, ...]) -> type[Any]:
        if self._line is None or self._line[0] != carried:
            names = {f"c{index}": name for index, name in enumerate((*carried, OUTPUT))}
            self._line = (carried, msgspec.defstruct("Line", [(name, Any) for name in names], rename=names, gc=False))
        return self._line[1]


@dataclass
class ErrorLines:
    """One JSON line per failed row. `first_line`: the line number of row 0, if every line of the input is a row."""

    file: Appendable
    first_line: int | None = None
    _encoder: msgspec.json.Encoder = field(default_factory=msgspec.json.Encoder, repr=False)

    def append(self, results: ResultBatch) -> None:
        if results.failed:
            self.file.append(self._encoder.encode_lines([self._line(results, place) for place in sorted(results.failed)]))

    def _line(self, results: ResultBatch, place: int) -> dict[str, object]:
        row, error = results.first + place, results.failed[place]
        line: dict[str, object] = {"row": row}
        if self.first_line is not None:
            line["line"] = row + self.first_line
        line |= {"code": error.code, "message": error.message}
        if results.carried:
            line["carried"] = {name: values[place] for name, values in results.carried.items()}
        return line

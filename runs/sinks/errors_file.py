"""The errors file: one JSON line per failed row."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from penstock.runs.rows import ResultBatch
from penstock.runs.sinks.appendable import Appendable

SUFFIX = ".errors.jsonl"


@dataclass
class ErrorLines:
    """`first_line`: the number of the line that row 0 stands on, where every line of the input is a row."""

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

"""The part of a sink that differs by output format: rows in, one file out. And JSON Lines, the plainest of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from penstock.runs.rows import ResultBatch
from penstock.runs.sinks.appendable import Appendable

OUTPUT = "output"


class RowsFile(Protocol):
    """Rows in their partial form. `finish` gives the file to publish, from all rows, the same however they were committed."""

    def append(self, results: ResultBatch) -> None: ...

    def sync(self) -> int: ...

    def cut(self, length: int) -> None: ...

    def finish(self) -> Path: ...

    def close(self) -> None: ...


@dataclass
class JsonRows:
    """One line per row: the carried columns and `output`, null for a failed row. Bytes are base64."""

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

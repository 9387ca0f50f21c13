"""A source of one or more files of rows: goes from file to file and numbers the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from penstock.run import RunPart
from penstock.runs import files
from penstock.runs.rows import RowBatch, RowError

JSON_MEDIA = "application/json"
BYTES_MEDIA = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class FileRows:
    """Consecutive rows of one file, as in `RowBatch`; `after` is the position in this file."""

    inputs: list[Any]
    carried: dict[str, list[Any]]
    bad: dict[int, RowError]
    after: dict[str, Any]


class RowFile(Protocol):
    """One file of rows."""

    def read(self, after: dict[str, Any] | None, *, rows: int, size_bytes: int) -> FileRows | None: ...

    def count(self) -> int | None: ...

    def close(self) -> None: ...


@dataclass
class FilesSource:
    """The rows of the files `names`, in that order. `open_file` opens a file, up to a position in it; one is open at a time.

    `part`: the stretch of the files that is read; None: all.
    """

    names: list[str]
    open_file: Callable[[str, int | None], RowFile]
    media: str = JSON_MEDIA
    # The line number of row 0, if every line is a row; None: rows are not lines.
    first_line: int | None = None
    part: RunPart | None = None
    _open: tuple[int, RowFile] | None = field(default=None, repr=False)
    _sizes: list[int] = field(default_factory=list, repr=False)

    def of_part(self, part: RunPart) -> FilesSource:
        """The same input, limited to this part. Rows are numbered from 0 in the part."""
        return replace(self, part=part, _open=None, _sizes=[])

    def identity(self) -> dict[str, Any]:
        return {"files": [files.identity(name) for name in self.names[self._first : self._stop]]}

    def count(self) -> int | None:
        if self.part is not None:
            return self.part.rows
        total = 0
        for index in range(len(self.names)):
            rows = self._file_at(index).count()
            if rows is None:
                return None
            total += rows
        return total

    def share_before(self, after: dict[str, Any] | None) -> float | None:
        """By bytes. A gzipped file counts once it is read, because its offsets refer to its text."""
        if self.part is not None:
            # The progress of a part is not shown by itself.
            return None
        self._sizes = self._sizes or [files.stat(name).size_bytes for name in self.names]
        if after is None or not sum(self._sizes):
            return None
        part, is_packed = after["part"], self.names[after["part"]].endswith(".gz")
        if is_packed and len(self.names) == 1:
            return None
        within = 0 if is_packed else (after["at"] or {}).get("offset", 0)
        return (sum(self._sizes[:part]) + within) / sum(self._sizes)

    def read(self, after: dict[str, Any] | None, *, rows: int, size_bytes: int) -> RowBatch | None:
        # `part` is the number of the file; the name is kept for existing journals.
        start = after or {"row": 0, "part": self._first, "at": self.part.begin if self.part else None}
        first, within = start["row"], start["at"]
        for index in range(start["part"], self._stop):
            batch = self._file_at(index).read(within, rows=rows, size_bytes=size_bytes)
            if batch is not None:
                behind = {"row": first + len(batch.inputs), "part": index, "at": batch.after}
                return RowBatch(first, batch.inputs, batch.carried, behind, batch.bad)
            within = None
        return None

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None

    @property
    def _first(self) -> int:
        return self.part.first if self.part else 0

    @property
    def _stop(self) -> int:
        return self.part.stop if self.part else len(self.names)

    def _file_at(self, index: int) -> RowFile:
        if self._open is None or self._open[0] != index:
            self.close()
            end = self.part.end if self.part and index == self._stop - 1 else None
            self._open = (index, self.open_file(self.names[index], end))
        return self._open[1]

"""A source of one or more files of rows: goes from file to file and numbers the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

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
class PartsSource:
    """The rows of the files `names`, in that order. `open_part` opens a file; one is open at a time."""

    names: list[str]
    open_part: Callable[[str], RowFile]
    media: str = JSON_MEDIA
    # The line number of row 0, if every line is a row; None: rows are not lines.
    first_line: int | None = None
    _open: tuple[int, RowFile] | None = field(default=None, repr=False)
    _sizes: list[int] = field(default_factory=list, repr=False)

    def identity(self) -> dict[str, Any]:
        return {"files": [files.identity(name) for name in self.names]}

    def count(self) -> int | None:
        total = 0
        for index in range(len(self.names)):
            rows = self._part(index).count()
            if rows is None:
                return None
            total += rows
        return total

    def share_before(self, after: dict[str, Any] | None) -> float | None:
        """By bytes. A gzipped file counts once it is read: offsets in it are those of its text."""
        self._sizes = self._sizes or [files.stat(name).size_bytes for name in self.names]
        if after is None or not sum(self._sizes):
            return None
        part, is_packed = after["part"], self.names[after["part"]].endswith(".gz")
        if is_packed and len(self.names) == 1:
            return None
        within = 0 if is_packed else (after["at"] or {}).get("offset", 0)
        return (sum(self._sizes[:part]) + within) / sum(self._sizes)

    def read(self, after: dict[str, Any] | None, *, rows: int, size_bytes: int) -> RowBatch | None:
        start = after or {"row": 0, "part": 0, "at": None}
        first, within = start["row"], start["at"]
        for index in range(start["part"], len(self.names)):
            found = self._part(index).read(within, rows=rows, size_bytes=size_bytes)
            if found is not None:
                behind = {"row": first + len(found.inputs), "part": index, "at": found.after}
                return RowBatch(first, found.inputs, found.carried, behind, found.bad)
            within = None
        return None

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def _part(self, index: int) -> RowFile:
        if self._open is None or self._open[0] != index:
            self.close()
            self._open = (index, self.open_part(self.names[index]))
        return self._open[1]

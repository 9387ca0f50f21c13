"""The rows that pass from a source through shards to a sink: columns of plain values, numbered from 0 in input order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class RowError:
    """Why a row has no output."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Consecutive rows. `inputs[i]` is the model's input for row `first + i`: a plain value, or bytes if the source's `media`
    is not JSON. `carried` holds one list per carried column.

    `bad`: rows that could not be read, by their place in the batch; their input is None. `known`: outputs that are already
    known, by place; the model does not get these rows.

    `after`: the position in the source behind this batch, as plain values that survive JSON. Only the source understands it.
    """

    first: int
    inputs: list[Any]
    carried: dict[str, list[Any]]
    after: dict[str, Any]
    bad: dict[int, RowError] = field(default_factory=dict)
    known: dict[int, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True, slots=True)
class ResultBatch:
    """The results of consecutive rows: `outputs[i]` belongs to row `first + i`, and is None if `failed` has the place `i`."""

    first: int
    outputs: list[Any]
    carried: dict[str, list[Any]]
    failed: dict[int, RowError] = field(default_factory=dict)


class RowSource(Protocol):
    """An input, read forward from its beginning or from any `after` that it returned earlier."""

    media: str

    def identity(self) -> dict[str, Any]:
        """The identity of the input (names, sizes, modification times or etags); a resumed run compares it."""
        ...

    def count(self) -> int | None:
        """The number of rows, if it is known without reading them all."""
        ...

    def share_before(self, after: dict[str, Any] | None) -> float | None:
        """The share of the input, 0 to 1, that lies before `after`; None if it is not known. Used while `count` is None."""
        ...

    def read(self, after: dict[str, Any] | None, *, rows: int, size_bytes: int) -> RowBatch | None:
        """The rows behind `after` (None: from the first): at least one, at most `rows`, about `size_bytes` of input. None at
        the end.
        """
        ...

    def close(self) -> None: ...


class Sink(Protocol):
    """An output and its errors file; both get their names only in `publish`."""

    def append(self, results: ResultBatch) -> None: ...

    def commit(self) -> dict[str, Any]:
        """Make all appended rows survive a power cut; returns a mark (plain values) to which `restore` can go back."""
        ...

    def restore(self, mark: dict[str, Any] | None) -> None:
        """Drop everything behind the mark (None: everything)."""
        ...

    def publish(self) -> dict[str, Any]:
        """Rename output and errors file to their names; returns the manifest's report of them (path, rows, bytes, sha256)."""
        ...

    def discard(self) -> None:
        """Remove the files for a resume: after the manifest is written, or when the run is abandoned."""
        ...

    def close(self) -> None: ...

"""Rows between a source, the shards and a sink: columns of plain values, numbered from 0 in the input's order."""

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
    """Consecutive rows. `inputs[i]` is what the model gets for row `first + i` (a plain value, or bytes where the source's
    `media` is not JSON); `carried` holds one list per carried column. Rows that could not be read are in `bad` by place, their
    input None.

    `known`: rows whose output is there already, by place; the model does not see them.

    `after` is where the source goes on behind this batch: plain values that survive JSON, understood by that source only.
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
    """What came of consecutive rows, in order: `outputs[i]` belongs to row `first + i`, None where `failed` names the place."""

    first: int
    outputs: list[Any]
    carried: dict[str, list[Any]]
    failed: dict[int, RowError] = field(default_factory=dict)


class Source(Protocol):
    """An input, read forward from any row that it once told the place of."""

    media: str

    def identity(self) -> dict[str, Any]:
        """What the input is (names, sizes, moments of change or etags): resuming compares it."""
        ...

    def count(self) -> int | None:
        """How many rows there are, if that is known without reading all."""
        ...

    def read(self, after: dict[str, Any] | None, *, rows: int, size_bytes: int) -> RowBatch | None:
        """The next rows behind `after` (None: from the first), at most `rows` of them and about `size_bytes` of input, at
        least one; None at the end.
        """
        ...

    def close(self) -> None: ...


class Sink(Protocol):
    """An output and its errors file, invisible under their names until `publish`."""

    def append(self, results: ResultBatch) -> None: ...

    def commit(self) -> dict[str, Any]:
        """Make all that was appended survive a power cut; a mark (plain values) from which `restore` can go on."""
        ...

    def restore(self, mark: dict[str, Any] | None) -> None:
        """Forget everything behind the mark (None: everything)."""
        ...

    def publish(self) -> dict[str, Any]:
        """Put output and errors file in place by rename; what the manifest says of them (path, rows, bytes, sha256)."""
        ...

    def discard(self) -> None:
        """Remove what was kept for going on: after the manifest is written, or for a run that was given up."""
        ...

    def close(self) -> None: ...

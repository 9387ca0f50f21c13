"""The rows that are submitted and not yet written: results come in any order, finished batches leave in input order. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.runs.rows import ResultBatch, RowBatch, RowError
from penstock.runs.shards.cutting import cut
from penstock.shard import NOT_RUN, RowFailure, ShardOutcome

MOST_TRIES = 3
_WRONG_COUNT = "outcome_count"


@dataclass(frozen=True, slots=True)
class ShardPiece:
    """Rows of one batch that are submitted as one shard, by their `places` in the batch. `weight`: their cost in units of an
    average row. `tries` includes this one.
    """

    batch: int
    places: Sequence[int]
    weight: float
    tries: int = 1

    def __len__(self) -> int:
        return len(self.places)

    def part(self, places: Sequence[int], tries: int) -> ShardPiece:
        """The rows at these places of the piece."""
        weight = self.weight * len(places) / len(self.places)
        return replace(self, places=[self.places[place] for place in places], weight=weight, tries=tries)

    def halves(self) -> list[ShardPiece]:
        middle = len(self.places) // 2
        return [replace(self, places=half, weight=self.weight / 2) for half in (self.places[:middle], self.places[middle:])]


@dataclass(slots=True)
class _BatchInWindow:
    """One batch of the window. `missing`: rows without a result."""

    batch: RowBatch
    outputs: list[Any]
    failed: dict[int, RowError] = field(default_factory=dict)
    missing: int = 0


@dataclass(frozen=True, slots=True)
class FinishedBatch:
    """A batch whose rows all have a result; `after`: the position of the source behind it."""

    results: ResultBatch
    after: dict[str, Any]


class Window:
    """Not thread-safe. Methods that return pieces return what to submit next."""

    def __init__(self, *, most_tries: int = MOST_TRIES) -> None:
        self._most_tries = most_tries
        self._entries: deque[_BatchInWindow] = deque()
        self._first = 0  # The number of the oldest batch in the window.
        self.rows = 0

    def add(self, batch: RowBatch, rows: int) -> list[ShardPiece]:
        """Add a batch; its pieces hold at most `rows` rows each."""
        outputs = [batch.known.get(place) for place in range(len(batch))] if batch.known else [None] * len(batch)
        settled = frozenset(batch.bad.keys() | batch.known.keys())
        number = self._first + len(self._entries)
        self._entries.append(_BatchInWindow(batch, outputs, dict(batch.bad), len(batch) - len(settled)))
        self.rows += len(batch)
        return [ShardPiece(number, places, weight) for places, weight in cut(batch.inputs, rows, without=settled)]

    def inputs(self, piece: ShardPiece) -> list[Any]:
        """The model's inputs for the rows of a piece."""
        inputs = self._entry(piece).batch.inputs
        places = piece.places
        return inputs[places.start : places.stop] if isinstance(places, range) else [inputs[place] for place in places]

    def settle(self, piece: ShardPiece, outcome: ShardOutcome) -> list[ShardPiece]:
        """Take the results of a piece. Rows whose failure is retryable come back as one piece. So do rows that were not run,
        which costs them no try.
        """
        if len(outcome.outputs) != len(piece):
            error = RowError(_WRONG_COUNT, f"{len(outcome.outputs)} outcomes came back for {len(piece)} rows")
            return self.fail(piece, error)
        entry = self._entry(piece)
        unrun = [failure.place for failure in outcome.failures if failure.code == NOT_RUN]
        again = [failure.place for failure in outcome.failures if failure.retryable and failure.code != NOT_RUN]
        if piece.tries >= self._most_tries:
            again = []
        self._store(entry, piece, outcome, frozenset([*unrun, *again]))
        entry.missing -= len(piece) - len(unrun) - len(again)
        return [piece.part(places, tries) for places, tries in ((unrun, piece.tries), (again, piece.tries + 1)) if places]

    def _store(self, entry: _BatchInWindow, piece: ShardPiece, outcome: ShardOutcome, again: frozenset[int]) -> None:
        if isinstance(places := piece.places, range):
            entry.outputs[places.start : places.stop] = outcome.outputs
        else:
            for place, output in zip(places, outcome.outputs, strict=True):
                entry.outputs[place] = output
        for failure in outcome.failures:
            if failure.place not in again:
                entry.failed[piece.places[failure.place]] = _reason(failure)

    def fail(self, piece: ShardPiece, error: RowError) -> list[ShardPiece]:
        """Take the failure of a whole piece: it is halved until the row at fault is alone."""
        if len(piece) > 1:
            return piece.halves()
        return self.give_up(piece, error)

    def give_up(self, piece: ShardPiece, error: RowError) -> list[ShardPiece]:
        """Fail all rows of a piece, because another attempt would not help."""
        entry = self._entry(piece)
        entry.failed.update(dict.fromkeys(piece.places, error))
        entry.missing -= len(piece)
        return []

    def finished(self) -> Iterator[FinishedBatch]:
        """Remove and yield the oldest batches, as long as all their rows have results."""
        while self._entries and not self._entries[0].missing:
            entry = self._entries.popleft()
            self._first += 1
            self.rows -= len(entry.batch)
            batch = entry.batch
            yield FinishedBatch(ResultBatch(batch.first, entry.outputs, batch.carried, entry.failed), batch.after)

    def _entry(self, piece: ShardPiece) -> _BatchInWindow:
        return self._entries[piece.batch - self._first]


def _reason(failure: RowFailure) -> RowError:
    return RowError(failure.code, failure.message)

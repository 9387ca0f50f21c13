"""Cuts and pads a batch to the sizes that a model accepts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.errors import HandlerContractError, HandlerLoadError


@dataclass(frozen=True, slots=True)
class BatchSlice:
    """Rows `start` to `stop` of a batch, run as `size` rows; the rows beyond `stop - start` are padding."""

    start: int
    stop: int
    size: int


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """The batch sizes a model may be called with: from `low` to `high` (None: any), or only those of `buckets`, ascending."""

    low: int = 1
    high: int | None = None
    buckets: tuple[int, ...] = ()

    @property
    def free(self) -> bool:
        return self.high is None or self.high > self.low

    @property
    def smallest(self) -> int:
        return self.buckets[0] if self.buckets else self.low

    def padded_to(self, buckets: Sequence[int]) -> BatchSizes:
        """These sizes restricted to `buckets`. Raises `HandlerLoadError` for a bucket that the model does not accept."""
        chosen = tuple(sorted(set(buckets)))
        bad = [size for size in chosen if not self._takes(size)]
        if bad:
            raise HandlerLoadError(
                f"batch_buckets {list(buckets)} cannot be used: the model takes {self._words()} rows at a time, not {bad[0]}"
            )
        return BatchSizes(self.low, self.high, chosen) if chosen else self

    def pieces(self, rows: int) -> list[BatchSlice]:
        """A batch of `rows` cut at the largest size, each piece padded to the next size there is."""
        if rows < 1:
            raise HandlerContractError("a model file was run with an empty batch; leave the call out when there are no items")
        largest = self.buckets[-1] if self.buckets else self.high or rows
        stops = [*range(largest, rows, largest), rows]
        return [BatchSlice(start, stop, self._size(stop - start)) for start, stop in zip([0, *stops], stops, strict=False)]

    def _size(self, rows: int) -> int:
        return next((size for size in self.buckets if size >= rows), max(rows, self.low))

    def _takes(self, size: int) -> bool:
        return self.low <= size and (self.high is None or size <= self.high)

    def _words(self) -> str:
        if self.high is None:
            return f"{self.low} or more"
        return str(self.low) if self.low == self.high else f"{self.low} to {self.high}"


def padding_ratio(pieces: Sequence[BatchSlice]) -> float:
    """The share of rows that were padding."""
    run = sum(piece.size for piece in pieces)
    return 1 - sum(piece.stop - piece.start for piece in pieces) / run

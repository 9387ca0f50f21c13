"""How many rows the next shard holds: few at first, then as many as keep a slot busy for `TARGET_S`. Pure.

Rows are read several shards at a time, so that rows of similar cost can share a shard (`cutting.py`). Cuts never show in the
output: a batch that was read is written as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

FIRST_ROWS = 64
# Long enough to make the overhead per job negligible; short enough that a killed worker, a cancel or an interactive call
# loses little time.
TARGET_S = 0.7
# A shard ends after this time, with the rows that ran, so that a cancel soon has the rows of a slow model that have finished.
MOST_S = 5.0
MOST_BYTES = 8 * 1024 * 1024
# One shard runs, one has been claimed ahead, one waits: the slot has work while the driver reads and writes.
PER_SLOT = 3
FEWEST_OPEN = 4
# Shards cut from one batch of the source. More shards sort rows better; fewer lose less work when the driver is killed.
_PER_BATCH = 8  # D43
_BATCHES_IN_WINDOW = 3


@dataclass(frozen=True, slots=True)
class ShardSize:
    """`rows` of the next shard, never more than `most`. `seen`: a shard has ended, so the model's rate is known."""

    rows: int
    most: int
    seen: bool = field(default=False, compare=False)

    def after(self, weight: float, run_s: float) -> ShardSize:
        """The size after a shard of weight `weight` ran for `run_s` seconds; it at most doubles or halves."""
        if weight * 2 < self.rows or run_s <= 0.0:
            return self  # The last shard of the input, or a repeat: too small to learn from.
        ideal = int(weight * TARGET_S / run_s)
        return replace(self, rows=max(1, min(self.most, max(ideal, self.rows // 2), self.rows * 2)), seen=True)

    def capped(self, most: int) -> ShardSize:
        return replace(self, rows=min(self.rows, most), most=most)


@dataclass(frozen=True, slots=True)
class FixedSize:
    """`rows` per shard, however long they take."""

    rows: int
    most: int
    seen: bool = field(default=False, compare=False)

    def after(self, weight: float, run_s: float) -> FixedSize:
        return replace(self, seen=True)

    def capped(self, most: int) -> FixedSize:
        return replace(self, rows=min(self.rows, most), most=most)


Size = ShardSize | FixedSize


def first_size(shard_rows: int, *, window_rows: int, slots: int) -> Size:
    """The size to start with; `shard_rows` 0: the size is learned."""
    most = most_rows(window_rows, slots)
    return FixedSize(min(shard_rows, window_rows), window_rows) if shard_rows else ShardSize(min(FIRST_ROWS, most), most)


def open_shards(slots: int) -> int:
    """How many shards to keep submitted for `slots` slots."""
    return max(FEWEST_OPEN, PER_SLOT * slots + 1)


def most_rows(window_rows: int, slots: int) -> int:
    """The size at which a full window holds all shards that should be submitted."""
    return max(1, window_rows // open_shards(slots))


def batch_rows(size: Size, window_rows: int) -> int:
    """Rows to read at a time: one shard's until the rate is known, so that a slow model's first rows are written soon."""
    shards = _PER_BATCH if size.seen else 1
    return max(size.rows, min(shards * size.rows, window_rows // _BATCHES_IN_WINDOW))

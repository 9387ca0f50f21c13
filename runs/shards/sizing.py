"""How many rows the next shard holds: few at first, then as many as keep a slot busy for a moment. Pure.

Rows are read some shards at a time, so that those of like cost can travel together (`cuts.py`). How they are cut never shows in
the output: each batch that was read is handed on whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

FIRST_ROWS = 64
# Long enough that a job's own cost does not count, short enough that a killed worker, a cancel or an online call loses little.
TARGET_S = 0.7
MOST_BYTES = 8 * 1024 * 1024
# One that runs, one that the worker has claimed ahead, one that waits: the slot finds work while we write and read.
PER_SLOT = 3
FEWEST_OPEN = 4
# Shards cut from one batch of the source. More sort better, and are more work to do again when the driver is killed.
_PER_BATCH = 8
_BATCHES_IN_WINDOW = 3


@dataclass(frozen=True, slots=True)
class ShardSize:
    """`rows` of the next shard, never more than `most`. `seen`: a shard has ended, so the model's pace is known."""

    rows: int
    most: int
    seen: bool = field(default=False, compare=False)

    def after(self, weight: float, run_s: float) -> ShardSize:
        """Having seen a shard as long as `weight` mean rows run for `run_s` seconds: at most twice or half of what it was."""
        if weight * 2 < self.rows or run_s <= 0.0:
            return self  # an end of the input or a repeat: too small to tell
        ideal = int(weight * TARGET_S / run_s)
        return replace(self, rows=max(1, min(self.most, max(ideal, self.rows // 2), self.rows * 2)), seen=True)

    def capped(self, most: int) -> ShardSize:
        return replace(self, rows=min(self.rows, most), most=most)


@dataclass(frozen=True, slots=True)
class FixedSize:
    """So many rows per shard, however long they take."""

    rows: int
    most: int
    seen: bool = field(default=False, compare=False)

    def after(self, weight: float, run_s: float) -> FixedSize:
        return replace(self, seen=True)

    def capped(self, most: int) -> FixedSize:
        return replace(self, rows=min(self.rows, most), most=most)


Size = ShardSize | FixedSize


def first_size(shard_rows: int, *, window_rows: int, slots: int) -> Size:
    """The size to start with; `shard_rows` 0: learned. Two shards of a window are always more than one slot needs."""
    most = most_rows(window_rows, slots)
    return FixedSize(min(shard_rows, window_rows), window_rows) if shard_rows else ShardSize(min(FIRST_ROWS, most), most)


def open_shards(slots: int) -> int:
    """How many shards to keep submitted for so many slots."""
    return max(FEWEST_OPEN, PER_SLOT * slots + 1)


def most_rows(window_rows: int, slots: int) -> int:
    """So few that a full window holds a shard for each place that wants one."""
    return max(1, window_rows // open_shards(slots))


def batch_rows(size: Size, window_rows: int) -> int:
    """How many rows to read at a time: one shard's until the pace is known, so that a slow model's first rows come soon."""
    shards = _PER_BATCH if size.seen else 1
    return max(size.rows, min(shards * size.rows, window_rows // _BATCHES_IN_WINDOW))

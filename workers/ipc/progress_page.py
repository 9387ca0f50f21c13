"""A page of memory that a supervisor and its child share. It says how far each batch and shard is, even after a crash.

The first part is for batches, the second one, from `_SHARDS_AT` on, for shards, which have numbers of their own.
"""

from __future__ import annotations

import mmap
import os
import struct
from enum import IntEnum

# A child has at most two batches and two shards; four places keep the neighbours of a finished one readable.
_PLACES = 4
_BATCH = struct.Struct("<QdB7x")
_SHARD = struct.Struct("<QQB7x")
_RECALL = struct.Struct("<Q")
_LANE = struct.Struct("<Qd")
_RECALL_AT = _PLACES * _BATCH.size
_SHARDS_AT = 128
_SHARD_RECALLS_AT = _SHARDS_AT + _PLACES * _SHARD.size
_LANES_AT = _SHARD_RECALLS_AT + _PLACES * _RECALL.size
PAGE_BYTES = mmap.PAGESIZE


class Stage(IntEnum):
    """How far a batch is inside the child. In `DECODING`, `RUNNING` and `ENCODING` the handler's code touches it."""

    UNSEEN = 0
    DECODING = 1
    DECODED = 2
    RUNNING = 3
    RAN = 4
    ENCODING = 5

    @property
    def is_touched(self) -> bool:
        """Whether this batch may cause a crash at this stage."""
        return self in (Stage.DECODING, Stage.RUNNING, Stage.ENCODING)

    @property
    def has_begun(self) -> bool:
        return self >= Stage.RUNNING


class Lane(IntEnum):
    """The child's threads that call the handler with rows of a shard, each with at most one micro-batch."""

    PREPARING = 0
    RUNNING = 1
    COMPLETING = 2


class ProgressPage:
    """Written without system calls: a frame per stage would wake the supervisor three times per batch for nothing."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._page = mmap.mmap(fd, PAGE_BYTES)
        self.shards = ShardProgress(self._page)

    @classmethod
    def create(cls) -> ProgressPage:
        fd = os.memfd_create("penstock-progress", os.MFD_CLOEXEC)
        os.ftruncate(fd, PAGE_BYTES)
        return cls(fd)

    def fileno(self) -> int:
        return self._fd

    def mark(self, batch: int, stage: Stage, at: float) -> None:
        _BATCH.pack_into(self._page, batch % _PLACES * _BATCH.size, batch, at, stage)

    def stage(self, batch: int) -> tuple[Stage, float]:
        """How far the batch is and since when (monotonic)."""
        known, at, stage = _BATCH.unpack_from(self._page, batch % _PLACES * _BATCH.size)
        return (Stage(stage), at) if known == batch else (Stage.UNSEEN, 0.0)

    def recall(self, batch: int) -> bool:
        """Ask the child not to start `batch` or any before it. True if it had not begun to run.

        The child marks RUNNING before it looks for a recall, and the supervisor writes the recall before it looks for the mark:
        one of the two sees the other. If both do, the child skips the batch and returns it without outcomes: nothing is lost.
        """
        _RECALL.pack_into(self._page, _RECALL_AT, batch)
        return not self.stage(batch)[0].has_begun

    def is_recalled(self, batch: int) -> bool:
        (last,) = _RECALL.unpack_from(self._page, _RECALL_AT)
        return bool(batch <= last)

    def close(self) -> None:
        self._page.close()
        os.close(self._fd)


class ShardProgress:
    """Shards are numbered from 1 per child. The time limit holds for one micro-batch in one lane."""

    def __init__(self, page: mmap.mmap) -> None:
        self._page = page

    # Written by the child.

    def begin(self, shard: int) -> bool:
        """False if the shard was recalled before. As with batches, the mark is written before the recall is read."""
        self.advance(shard, 0)
        return not self.is_recalled(shard)

    def advance(self, shard: int, rows: int) -> None:
        """`rows` of the shard are done."""
        _SHARD.pack_into(self._page, _SHARDS_AT + shard % _PLACES * _SHARD.size, shard, rows, True)

    def is_recalled(self, shard: int) -> bool:
        return bool(_RECALL.unpack_from(self._page, self._recall_at(shard))[0] == shard)

    def enter(self, lane: Lane, shard: int, at: float) -> None:
        _LANE.pack_into(self._page, _LANES_AT + lane * _LANE.size, shard, at)

    def leave(self, lane: Lane) -> None:
        _LANE.pack_into(self._page, _LANES_AT + lane * _LANE.size, 0, 0.0)

    # Written and read by the supervisor.

    def recall(self, shard: int) -> bool:
        """Ask the child to leave the shard, begun or not. Always True."""
        _RECALL.pack_into(self._page, self._recall_at(shard), shard)
        return True

    def recall_waiting(self, shard: int) -> bool:
        """Ask the child not to begin the shard. True if it had not.

        A shard that begins at this moment is left by the child and comes back without an outcome.
        """
        return not self._entry(shard)[1] and self.recall(shard) and not self._entry(shard)[1]

    def rows(self, shard: int) -> int:
        """How many rows are done."""
        return self._entry(shard)[0]

    def lane(self, lane: Lane) -> tuple[int, float]:
        """The shard whose rows are in that lane (0: none) and since when (monotonic)."""
        shard, at = _LANE.unpack_from(self._page, _LANES_AT + lane * _LANE.size)
        return shard, at

    def touched(self) -> set[int]:
        """The shards whose rows the handler's code touches."""
        return {shard for shard, _ in map(self.lane, Lane) if shard}

    def oldest(self) -> tuple[int, float]:
        """The shard whose micro-batch has been in its lane for longest, and since when; 0 and infinity if there is none."""
        found = [(at, shard) for shard, at in map(self.lane, Lane) if shard]
        at, shard = min(found, default=(float("inf"), 0))
        return shard, at

    def _entry(self, shard: int) -> tuple[int, bool]:
        known, rows, begun = _SHARD.unpack_from(self._page, _SHARDS_AT + shard % _PLACES * _SHARD.size)
        return (rows, bool(begun)) if known == shard else (0, False)

    @staticmethod
    def _recall_at(shard: int) -> int:
        return _SHARD_RECALLS_AT + shard % _PLACES * _RECALL.size

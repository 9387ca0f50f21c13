"""How far the shards in a child are: the second part of the page that a supervisor and its child share (`board.py`)."""

from __future__ import annotations

import struct
from enum import IntEnum
from mmap import mmap

# A child holds at most two shards; four places keep the neighbours of a finished one readable.
_PLACES = 4
_SHARD = struct.Struct("<QQB7x")
_RECALL = struct.Struct("<Q")
_LANE = struct.Struct("<Qd")
_SHARDS_AT = 128
_RECALLS_AT = _SHARDS_AT + _PLACES * _SHARD.size
_LANES_AT = _RECALLS_AT + _PLACES * _RECALL.size


class Lane(IntEnum):
    """The child's threads that call the handler with rows of a shard, each with one micro-batch at most."""

    PREPARING = 0
    RUNNING = 1
    COMPLETING = 2


class ShardProgress:
    """Shards are counted from 1 per child, apart from batches. The limit of time holds for one micro-batch in one lane."""

    def __init__(self, page: mmap) -> None:
        self._page = page

    # Written by the child.

    def begin(self, shard: int) -> bool:
        """False if it was recalled before. Mark first, look second, as with batches."""
        self.advance(shard, 0)
        return not self.recalled(shard)

    def advance(self, shard: int, rows: int) -> None:
        """So many of its rows are done."""
        _SHARD.pack_into(self._page, _SHARDS_AT + shard % _PLACES * _SHARD.size, shard, rows, True)

    def recalled(self, shard: int) -> bool:
        return bool(_RECALL.unpack_from(self._page, self._recall_at(shard))[0] == shard)

    def enter(self, lane: Lane, shard: int, at: float) -> None:
        _LANE.pack_into(self._page, _LANES_AT + lane * _LANE.size, shard, at)

    def leave(self, lane: Lane) -> None:
        _LANE.pack_into(self._page, _LANES_AT + lane * _LANE.size, 0, 0.0)

    # Written and read by the supervisor.

    def recall(self, shard: int) -> bool:
        """Ask the child to leave it, begun or not. True."""
        _RECALL.pack_into(self._page, self._recall_at(shard), shard)
        return True

    def recall_unbegun(self, shard: int) -> bool:
        """Ask the child not to begin it; True when it had not. If it begins just then, it is left and comes back without an
        outcome.
        """
        return not self._entry(shard)[1] and self.recall(shard) and not self._entry(shard)[1]

    def rows(self, shard: int) -> int:
        """How many are done."""
        return self._entry(shard)[0]

    def lane(self, lane: Lane) -> tuple[int, float]:
        """The shard whose rows are in that lane (0: none) and since when (monotonic)."""
        shard, at = _LANE.unpack_from(self._page, _LANES_AT + lane * _LANE.size)
        return shard, at

    def touched(self) -> set[int]:
        """The shards whose rows the handler's code touches."""
        return {shard for shard, _ in map(self.lane, Lane) if shard}

    def oldest(self) -> tuple[int, float]:
        """The shard whose micro-batch has been in its lane for longest, and since when; 0 and infinity without any."""
        found = [(at, shard) for shard, at in map(self.lane, Lane) if shard]
        at, shard = min(found, default=(float("inf"), 0))
        return shard, at

    def _entry(self, shard: int) -> tuple[int, bool]:
        known, rows, begun = _SHARD.unpack_from(self._page, _SHARDS_AT + shard % _PLACES * _SHARD.size)
        return (rows, bool(begun)) if known == shard else (0, False)

    @staticmethod
    def _recall_at(shard: int) -> int:
        return _RECALLS_AT + shard % _PLACES * _RECALL.size

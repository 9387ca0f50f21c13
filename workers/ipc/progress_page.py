"""A page of memory that a supervisor and its child share. It says how far each batch and shard is, even after a crash.

Every entry is one aligned word, which a processor reads and writes as a whole: no reader sees half an entry, and a child that
stops between two writes leaves no half behind. `struct` must not write here: it clears a field first, then fills it bytewise.

Batches and shards have numbers of their own.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection, Iterable
from enum import IntEnum

# A child has at most two batches and two shards; four places keep the neighbours of a finished one readable.
_PLACES = 4
# The words of the page.
_BATCHES, _LAST_RECALL, _SHARDS, _SHARD_RECALLS, _LANES = 0, _PLACES, _PLACES + 1, 2 * _PLACES + 1, 3 * _PLACES + 1
PAGE_BYTES = mmap.PAGESIZE
# An entry: 50 bits of rows or of monotonic microseconds (35 years), 3 bits of stage, and the last 11 bits of the number of its
# batch or shard. These tell it from every other one that the place can hold.
_NUMBER_BITS, _STAGE_BITS = 11, 3
_NUMBER, _STAGE = (1 << _NUMBER_BITS) - 1, (1 << _STAGE_BITS) - 1
_VALUE_SHIFT = _NUMBER_BITS + _STAGE_BITS
_TICKS_PER_S = 1_000_000


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


def _entry(number: int, value: int, stage: int = 0) -> int:
    return value << _VALUE_SHIFT | stage << _NUMBER_BITS | number & _NUMBER


def _ticks(at: float) -> int:
    return round(at * _TICKS_PER_S)


def _is_of(entry: int, number: int) -> bool:
    return entry & _NUMBER == number & _NUMBER


def _stage_of(entry: int) -> int:
    return entry >> _NUMBER_BITS & _STAGE


class ProgressPage:
    """Written without system calls: a frame per stage would wake the supervisor three times per batch for nothing."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._page = mmap.mmap(fd, PAGE_BYTES)
        self._words = memoryview(self._page).cast("Q")
        self.shards = ShardProgress(self._words)

    @classmethod
    def create(cls) -> ProgressPage:
        fd = os.memfd_create("penstock-progress", os.MFD_CLOEXEC)
        os.ftruncate(fd, PAGE_BYTES)
        return cls(fd)

    def fileno(self) -> int:
        return self._fd

    def mark(self, batch: int, stage: Stage, at: float) -> None:
        self._words[_BATCHES + batch % _PLACES] = _entry(batch, _ticks(at), stage)

    def stage(self, batch: int) -> tuple[Stage, float]:
        """How far the batch is and since when (monotonic)."""
        entry = self._words[_BATCHES + batch % _PLACES]
        if not _is_of(entry, batch):
            return Stage.UNSEEN, 0.0
        return Stage(_stage_of(entry)), (entry >> _VALUE_SHIFT) / _TICKS_PER_S

    def recall(self, batch: int) -> bool:
        """Ask the child not to start `batch` or any before it. True if it had not begun to run.

        The child marks RUNNING before it looks for a recall, and the supervisor writes the recall before it looks for the mark:
        one of the two sees the other. If both do, the child skips the batch and returns it without outcomes: nothing is lost.
        If neither does, which a processor allows for some nanoseconds, the batch runs here for nothing and elsewhere once more.
        """
        self._words[_LAST_RECALL] = batch
        return not self.stage(batch)[0].has_begun

    def is_recalled(self, batch: int) -> bool:
        return batch <= self._words[_LAST_RECALL]

    def close(self) -> None:
        self._words.release()
        self._page.close()
        os.close(self._fd)


class ShardProgress:
    """Shards are numbered from 1 per child. The time limit holds for one micro-batch in one lane.

    Lanes know of a shard only what tells it from the others in the child, so their readers name the shards that may be there.
    """

    def __init__(self, words: memoryview[int]) -> None:
        self._words = words

    # Written by the child.

    def begin(self, shard: int) -> bool:
        """False if the shard was recalled before. As with batches, the mark is written before the recall is read."""
        self.advance(shard, 0)
        return not self.is_recalled(shard)

    def advance(self, shard: int, rows: int) -> None:
        """`rows` of the shard are done."""
        self._words[_SHARDS + shard % _PLACES] = _entry(shard, rows, Stage.RUNNING)

    def is_recalled(self, shard: int) -> bool:
        return self._words[_SHARD_RECALLS + shard % _PLACES] == shard

    def enter(self, lane: Lane, shard: int, at: float) -> None:
        self._words[_LANES + lane] = _entry(shard, _ticks(at), Stage.RUNNING)

    def leave(self, lane: Lane) -> None:
        self._words[_LANES + lane] = 0

    # Written and read by the supervisor.

    def recall(self, shard: int) -> bool:
        """Ask the child to leave the shard, begun or not. Always True."""
        self._words[_SHARD_RECALLS + shard % _PLACES] = shard
        return True

    def recall_waiting(self, shard: int) -> bool:
        """Ask the child not to begin the shard. True if it had not.

        A shard that begins at this moment is left by the child and comes back without an outcome.
        """
        return not self._has_begun(shard) and self.recall(shard) and not self._has_begun(shard)

    def rows(self, shard: int) -> int:
        """How many rows are done."""
        entry = self._words[_SHARDS + shard % _PLACES]
        return entry >> _VALUE_SHIFT if _is_of(entry, shard) else 0

    def lane(self, lane: Lane, shards: Iterable[int]) -> tuple[int, float]:
        """Which of the shards has rows in the lane, and since when (monotonic); 0 and 0.0 if none has."""
        entry = self._words[_LANES + lane]
        shard = next((shard for shard in shards if _is_of(entry, shard)), 0) if entry else 0
        return (shard, (entry >> _VALUE_SHIFT) / _TICKS_PER_S) if shard else (0, 0.0)

    def touched(self, shards: Collection[int]) -> set[int]:
        """Those of the shards whose rows the handler's code touches."""
        return {shard for shard, _ in self._in_lanes(shards)}

    def oldest(self, shards: Collection[int]) -> tuple[int, float]:
        """The shard whose micro-batch has been in its lane for longest, and since when; 0 and infinity if there is none."""
        return min(self._in_lanes(shards), key=lambda entry: entry[1], default=(0, float("inf")))

    def _in_lanes(self, shards: Collection[int]) -> list[tuple[int, float]]:
        return [entry for lane in Lane if (entry := self.lane(lane, shards))[0]]

    def _has_begun(self, shard: int) -> bool:
        entry = self._words[_SHARDS + shard % _PLACES]
        return _is_of(entry, shard) and bool(_stage_of(entry))

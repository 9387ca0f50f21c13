"""A page of memory that a supervisor and its child share: how far each batch is, readable even after the child crashed."""

from __future__ import annotations

import mmap
import os
import struct
from enum import IntEnum

from penstock.workers.ipc.shard_progress import ShardProgress

# A child holds at most two batches; four places keep the neighbours of a finished one readable.
_PLACES = 4
_ENTRY = struct.Struct("<QdB7x")
_RECALL = struct.Struct("<Q")
_RECALL_AT = _PLACES * _ENTRY.size
BOARD_BYTES = mmap.PAGESIZE


class Stage(IntEnum):
    """How far a batch is inside the child. In `DECODING`, `RUNNING` and `ENCODING` the handler's code touches it."""

    UNSEEN = 0
    DECODING = 1
    DECODED = 2
    RUNNING = 3
    RAN = 4
    ENCODING = 5

    @property
    def touched(self) -> bool:
        """Whether a crash now may be this batch's doing."""
        return self in (Stage.DECODING, Stage.RUNNING, Stage.ENCODING)

    @property
    def begun(self) -> bool:
        return self >= Stage.RUNNING


class ProgressPage:
    """Written without system calls: a frame per stage would wake the supervisor three times per batch for nothing."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._page = mmap.mmap(fd, BOARD_BYTES)
        self.shards = ShardProgress(self._page)

    @classmethod
    def create(cls) -> ProgressPage:
        fd = os.memfd_create("penstock-board", os.MFD_CLOEXEC)
        os.ftruncate(fd, BOARD_BYTES)
        return cls(fd)

    def fileno(self) -> int:
        return self._fd

    def mark(self, batch: int, stage: Stage, at: float) -> None:
        _ENTRY.pack_into(self._page, batch % _PLACES * _ENTRY.size, batch, at, stage)

    def stage(self, batch: int) -> tuple[Stage, float]:
        """How far the batch is and since when (monotonic)."""
        known, at, stage = _ENTRY.unpack_from(self._page, batch % _PLACES * _ENTRY.size)
        return (Stage(stage), at) if known == batch else (Stage.UNSEEN, 0.0)

    def recall(self, batch: int) -> bool:
        """Ask the child not to start `batch` or any before it; True when it had not begun to run.

        The child marks RUNNING before it looks here, and this writes before it looks there: one of the two sees the other. If
        both do, the batch is skipped there, and given back as one that ran: nothing is lost.
        """
        _RECALL.pack_into(self._page, _RECALL_AT, batch)
        return not self.stage(batch)[0].begun

    def recalled(self, batch: int) -> bool:
        (upto,) = _RECALL.unpack_from(self._page, _RECALL_AT)
        return bool(batch <= upto)

    def close(self) -> None:
        self._page.close()
        os.close(self._fd)

"""The items that an async handler's child runs side by side, each a batch of its own (D87). Only async models load this."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from penstock.workers.ipc.frames import BatchDone, ItemReports
from penstock.workers.ipc.progress_page import ProgressPage
from penstock.workers.ipc.said import SaidLine
from penstock.workers.ipc.wire import SupervisorWire
from penstock.workers.slot.batch import Batch, ChildLoad
from penstock.workers.slot.child.events import BatchLost, BatchRan, ItemsSaid
from penstock.workers.slot.child.in_flight import InFlight

# With hundreds of items in flight, a look at each one in every turn of the slot would cost more than the turn.
_LOOK_S = 0.1
# The last batches that ended, because lines that they printed may be read later.
_ENDED_KEPT = 64


class ItemsInFlight(InFlight):
    """As `InFlight`, for a child that runs up to `at_once` items side by side, and is given no more.

    The progress page has no room for that many batches, so each has a time limit that counts from when it was given, or last
    said something, and none is recalled: it has most likely begun.
    """

    def __init__(self, page: ProgressPage, wire: SupervisorWire, *, at_once: int) -> None:
        super().__init__(page, wire)
        self.at_once = at_once
        # By number: the last sign of life, the oldest first; and how many items the batch has.
        self._alive_at_of: dict[int, float] = {}
        self._sizes: dict[int, int] = {}
        self._items = 0
        self._look_at = float("-inf")
        self._recently_ended: deque[tuple[int, Batch | None]] = deque(maxlen=_ENDED_KEPT)

    # Given and come back.

    def give(self, batch: Batch, now: float) -> None:
        """Send each item as a batch of its own. One that is to be recorded stays whole: a recording is of one batch."""
        if batch.is_shard or batch.size == 1 or batch.profile_dir:
            super().give(batch, now)
            return
        for job, item in zip(batch.jobs, batch.items, strict=True):
            super().give(replace(batch, jobs=(job,), items=(item,)), now)

    def add_batch(self, number: int, batch: Batch, now: float) -> None:
        super().add_batch(number, batch, now)
        self._alive_at_of[number] = now
        self._sizes[number] = batch.size
        self._items += batch.size

    def on_batch_done(self, done: BatchDone, now: float) -> BatchRan | BatchLost | None:
        self._alive_at_of.pop(done.batch, None)
        self._items -= self._sizes.pop(done.batch, 0)
        event = super().on_batch_done(done, now)
        self._recently_ended.append(self._ended)
        return event

    def on_said(self, said: ItemReports, now: float) -> ItemsSaid | None:
        if self._batches.get(said.batch) is not None:
            # At the end, so that the order stays that of the moments.
            del self._alive_at_of[said.batch]
            self._alive_at_of[said.batch] = now
        return super().on_said(said, now)

    def on_paused(self, now: float) -> None:
        super().on_paused(now)
        self._alive_at_of = dict.fromkeys(self._alive_at_of, now)

    def whose(self, line: SaidLine) -> dict[str, str]:
        self._ended = next((ended for ended in self._recently_ended if ended[0] == line.batch), self._ended)
        return super().whose(line)

    # How far.

    def load(self) -> ChildLoad:
        # One row of a shard always runs, so that runs progress beside any number of jobs.
        for_rows = 1 if self._shards and self.at_once > 1 else 0
        return ChildLoad(
            batches=len(self._batches),
            # What runs alone has nothing beside it.
            alone=len(self._batches) == 1 and any(batch.is_solo for batch in self.awaited()),
            shards=len(self._shards),
            room=max(0, self.at_once - self._items - for_rows),
        )

    def _batch_since(self) -> float:
        return next(iter(self._alive_at_of.values()), float("inf"))

    # Taken back.

    def recall(self) -> list[Batch]:
        return self.recall_waiting_shards()

    def give_up_late(self, now: float) -> None:
        if now >= self._look_at:
            self._look_at = now + _LOOK_S
            super().give_up_late(now)

    # When the child has died.

    def is_sole_suspect(self, batch: Batch) -> bool:
        return super().is_sole_suspect(batch) and len(self._batches) == 1 and not self._shards

    def _touched(self) -> tuple[set[int], set[int]]:
        return set(self._batches), self._progress.shards.touched(self._shards)

    def _hung(self) -> tuple[set[int], set[int]]:
        # An item that blocks the loop blocks all items, and the page does not say which item it was.
        return self._touched()

    def clear(self) -> None:
        super().clear()
        self._alive_at_of, self._sizes, self._items = {}, {}, 0

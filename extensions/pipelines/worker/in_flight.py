"""The jobs of a pipeline that its executor works on, as their slot sees them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Protocol

from penstock.job import JobId
from penstock.workers.slot.batch import Batch, ChildLoad
from penstock.workers.slot.child.in_flight import InFlight
from penstock.workers.slot.reports import AttemptKey

# With hundreds of jobs in flight, a look at each one in every turn of the slot would cost more than the turn.
_LOOK_S = 0.1


class Drives(Protocol):
    """What drives jobs, each under a number. No call blocks."""

    @property
    def ticks(self) -> int:
        """A number that grows for as long as the drives' event loop turns."""
        ...

    def begin(self, number: int, batch: Batch) -> None: ...

    def give_up(self, number: int, *, is_late: bool) -> None:
        """The result is no longer wanted: the stages are cancelled, and the drive ends."""
        ...

    def break_off(self, number: int) -> None:
        """Another executor continues the job: its stages are left alone, and this drive reports nothing more."""
        ...


class PipelinesInFlight(InFlight):
    """As `InFlight`, for up to `at_once` jobs side by side, each a batch of its own. All of them can be taken back any time."""

    def __init__(self, drives: Drives, *, at_once: int) -> None:
        super().__init__()
        self._drives = drives
        self._at_once = at_once
        self._look_at = float("-inf")

    def give(self, batch: Batch, now: float) -> None:
        for job in batch.jobs:
            self._last_batch += 1
            one = replace(batch, jobs=(job,), given_at=now, items=())
            self._batches[self._last_batch] = one
            self._drives.begin(self._last_batch, one)

    def on_ended(self, number: int) -> Batch | None:
        """The batch whose drive has ended; None if it is no longer awaited."""
        return self._batches.pop(number, None)

    def load(self) -> ChildLoad:
        return ChildLoad(batches=len(self._batches), room=max(0, self._at_once - len(self._batches)))

    def signs_of_life(self, waiting: Iterable[Batch]) -> dict[JobId, int]:
        """A pipeline may wait for its stages for hours, so what counts is that its executor turns."""
        ticks = self._drives.ticks
        return {job.id: ticks for batch in (*self.awaited(), *waiting) for job in batch.jobs}

    def recall(self) -> list[Batch]:
        back = self.awaited()
        for number in self._batches:
            self._drives.break_off(number)
        self._batches.clear()
        return back

    def give_up(self, jobs: Collection[JobId], *, lost: Collection[AttemptKey] = ()) -> None:
        for number, batch in list(self._batches.items()):
            [job] = batch.jobs if batch is not None else ()
            if (job.id, job.token) in lost:
                # Another worker has the job now, and goes on with its stages.
                self._drives.break_off(number)
                del self._batches[number]
            elif job.id in jobs:
                self._drives.give_up(number, is_late=False)

    def give_up_late(self, now: float) -> None:
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_S
        for number, batch in self._batches.items():
            if batch is not None and batch.on_this_clock(batch.jobs[0].deadline_at) <= now:
                self._drives.give_up(number, is_late=True)

"""What a child has in its hands: given, awaited, taken back, and who is to blame when it dies. Ends with its child."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from penstock.job_id import JobId
from penstock.workers.ipc.frames import BatchDone, Item
from penstock.workers.ipc.progress_page import Stage
from penstock.workers.ipc.shard_progress import Lane
from penstock.workers.slot.batcher import IDLE, Batch, ChildLoad
from penstock.workers.slot.child_events import BatchLost, BatchRan, Cause
from penstock.workers.slot.child_process import ChildProcess


class InFlight:
    """Used by the slot's thread only, but for `held`. Batches and shards have numbers of their own."""

    def __init__(self) -> None:
        # By number, in the order given. None: the child still works on it, but nobody wants the outcome any more.
        self._batches: dict[int, Batch | None] = {}
        self._shards: dict[int, Batch | None] = {}
        # Copies of inputs that the child may yet read, those of batches that nobody awaits among them.
        self._copies: dict[tuple[bool, int], list[str]] = {}
        self._head_since = 0.0

    @property
    def empty(self) -> bool:
        return not self._batches and not self._shards

    def give(self, child: ChildProcess, held: Batch, items: list[Item], now: float) -> None:
        if held.shard:
            [item] = items
            number = child.give_shard(item)
            self._shards[number] = replace(held, given_at=now)
            self._keep(number, items, shard=True)
            return
        if not self._batches:
            self._head_since = now
        number = child.give(items, held.profile_dir)
        self._batches[number] = replace(held, given_at=now, fresh=not self._batches)
        self._keep(number, items, shard=False)

    def _keep(self, number: int, items: list[Item], *, shard: bool) -> None:
        if copies := [item.path for item in items if item.own]:
            self._copies[shard, number] = copies

    def done(self, done: BatchDone, now: float) -> BatchRan | BatchLost | None:
        """None for a batch that nobody awaits."""
        held = self._batches.pop(done.batch, None)
        _delete(self._copies.pop((False, done.batch), []))
        self._head_since = now
        return _came_back(held, done)

    def shard_done(self, number: int, done: BatchDone) -> BatchRan | BatchLost | None:
        _delete(self._copies.pop((True, number), []))
        return _came_back(self._shards.pop(number, None), done)

    def limit_at(self, child: ChildProcess, max_run_s: float) -> float:
        """When the child has run for too long: one batch, or one micro-batch of a shard."""
        return min(self._batch_since(child), self._micro_batch(child)[1]) + max_run_s

    def _batch_since(self, child: ChildProcess) -> float:
        if not self._batches:
            return float("inf")
        if not self._shards:
            return self._head_since
        stage, since = child.stage(next(iter(self._batches)))
        if stage is Stage.DECODED:
            # A micro-batch may be before it at the device, and has a limit of its own.
            since = child.shards.lane(Lane.RUNNING)[1]
        return max(self._head_since, since) if stage >= Stage.DECODED else self._head_since

    def _micro_batch(self, child: ChildProcess) -> tuple[int, float]:
        """The shard of the one that has run for longest, and since when; 0 and infinity without any."""
        return child.shards.oldest() if self._shards else (0, float("inf"))

    def held(self) -> list[Batch]:
        """The batches and shards whose outcome is awaited. Safe to call from any thread."""
        given = list(self._batches.values()) + list(self._shards.values())
        return [held for held in given if held is not None]

    def busy(self, child: ChildProcess | None) -> ChildLoad:
        """What the child has to do, batches that nobody awaits included."""
        if self.empty or child is None:
            return IDLE
        alone = any(held.solo for held in self.held())
        if not self._batches:
            return ChildLoad(alone=alone, shards=len(self._shards))
        number, head = next(iter(self._batches.items()))
        stage, since = child.stage(number)
        return ChildLoad(
            batches=len(self._batches),
            size=head.size if head else 0,
            since=since if stage.begun else self._head_since,
            alone=alone,
            shards=len(self._shards),
        )

    def rows_done(self, child: ChildProcess | None) -> dict[JobId, int]:
        """How far each awaited shard is."""
        if not self._shards or child is None:
            return {}
        return {held.jobs[0].id: child.shards.rows(number) for number, held in self._shards.items() if held is not None}

    def recall(self, child: ChildProcess | None) -> list[Batch]:
        """Take back what has not begun to run; the child will skip it."""
        if child is None:
            return []
        return [*_recalled(self._batches, child.recall), *_recalled(self._shards, child.shards.recall_unbegun)]

    def recall_shards(self, child: ChildProcess | None) -> list[Batch]:
        """Take back the shards, begun or not: the child leaves them with their next micro-batch."""
        if child is None:
            return []
        return _recalled(self._shards, child.shards.recall)

    def recall_waiting_shards(self, child: ChildProcess | None) -> list[Batch]:
        """Take back the shards that have not begun."""
        return _recalled(self._shards, child.shards.recall_unbegun) if child is not None else []

    def disown(self, child: ChildProcess | None) -> list[Batch]:
        """Give up everything; what the child still says of it is ignored."""
        given_up = self.held()
        self.recall(child)
        self.recall_shards(child)
        self._batches, self._shards = dict.fromkeys(self._batches), dict.fromkeys(self._shards)
        return given_up

    def suspects(self, child: ChildProcess, *, hung: bool) -> list[tuple[Batch, bool]]:
        """Each awaited batch and shard of a child that died, and whether its death may be that one's doing."""
        batches, shards = self._hung(child) if hung else self._touched(child)
        if not (batches or shards):
            # Nobody in its hands: then the first, for a batch that is never charged could come back for ever.
            batches = set(list(self._batches)[:1])
            shards = set() if batches else set(list(self._shards)[:1])
        found = [(held, number in batches) for number, held in self._batches.items()]
        found += [(held, number in shards) for number, held in self._shards.items()]
        return [(held, suspect) for held, suspect in found if held is not None]

    def _touched(self, child: ChildProcess) -> tuple[set[int], set[int]]:
        return {number for number in self._batches if child.stage(number)[0].touched}, child.shards.touched()

    def _hung(self, child: ChildProcess) -> tuple[set[int], set[int]]:
        shard, since = self._micro_batch(child)
        if shard and since <= self._batch_since(child):
            return set(), {shard}
        return set(list(self._batches)[:1]), set()

    def clear(self) -> None:
        for copies in self._copies.values():
            _delete(copies)
        self._batches, self._shards, self._copies = {}, {}, {}


def _delete(copies: list[str]) -> None:
    for copy in copies:
        Path(copy).unlink(missing_ok=True)


def _came_back(held: Batch | None, done: BatchDone) -> BatchRan | BatchLost | None:
    if held is None:
        return None
    if not done.outcomes:
        # Recalled in the moment it began: both sides saw the other, and the child skipped it.
        return BatchLost(held, Cause.UNSTARTED, "recalled")
    return BatchRan(held, done)


def _recalled(given: dict[int, Batch | None], recall: Callable[[int], bool]) -> list[Batch]:
    """Those that `recall` took back; the child still has to say so, but nobody waits for it."""
    back = []
    for number, held in given.items():
        if held is not None and recall(number):
            back.append(held)
            given[number] = None
    return back

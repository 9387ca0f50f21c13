"""The batches that one child has: given, awaited, taken back, and which of them is to blame when the child dies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from penstock.job import JobId
from penstock.workers.ipc.frames import (
    BatchDone,
    BatchFacts,
    GiveUp,
    Item,
    ItemReports,
    RunBatch,
    RunShard,
)
from penstock.workers.ipc.progress_page import Lane, ProgressPage, Stage
from penstock.workers.ipc.said import SaidLine
from penstock.workers.ipc.wire import SupervisorWire
from penstock.workers.slot.batch import IDLE, Batch, ChildLoad
from penstock.workers.slot.child.events import BatchLost, BatchRan, Cause, ItemsSaid
from penstock.workers.slot.reports import AttemptKey

# The deadlines of a batch are checked after this time: nearly all batches have ended before.
_LONG_S = 1.0


class InFlight:
    """Part of a `ChildProcess`, whose progress it reads from `page`, and which gets its batches over `wire`.

    Without these it stays empty. Only the slot's thread uses it, except for `awaited`. Batches and shards have numbers of
    their own.
    """

    def __init__(self, page: ProgressPage | None = None, wire: SupervisorWire | None = None) -> None:
        self._page = page
        self._wire = wire
        self._last_batch = 0
        self._last_shard = 0
        # By number, in the order given. None: the child still works on that batch, but its outcome is no longer awaited.
        self._batches: dict[int, Batch | None] = {}
        self._shards: dict[int, Batch | None] = {}
        # Copies of inputs that the child may yet read, also for batches that are no longer awaited.
        self._copies: dict[tuple[bool, int], list[str]] = {}
        # The last batch that came back, because lines that it printed may be read later.
        self._ended: tuple[int, Batch | None] = (0, None)
        self._head_since = 0.0
        # When each shard was given; none of its rows began before.
        self._given_at: dict[int, float] = {}
        # The last sign of life of an item, and how many there were.
        self.alive_at = float("-inf")
        self._signs = 0
        # Places of items that are no longer wanted, by batch.
        self._given_up: dict[int, set[int]] = {}

    @property
    def is_empty(self) -> bool:
        return not self._batches and not self._shards

    @property
    def has_shards(self) -> bool:
        return bool(self._shards)

    @property
    def _progress(self) -> ProgressPage:
        assert self._page is not None
        return self._page

    # Given and come back.

    def give(self, batch: Batch, now: float) -> None:
        """Send a batch or a shard of the slot, which is in flight from now on."""
        if batch.is_shard:
            self._last_shard += 1
            [item] = batch.items
            self._send(RunShard(self._last_shard, item))
            self.add_shard(self._last_shard, batch, now)
        else:
            self.add_batch(self.run(batch.items, batch.profile_dir, urgent=batch.urgent), batch, now)

    def run(self, items: Sequence[Item], profile_dir: str = "", *, urgent: bool = False) -> int:
        """Send items as one batch, to be recorded in `profile_dir` if that is given. The batch's number."""
        self._last_batch += 1
        self._send(RunBatch(self._last_batch, list(items), profile_dir, urgent))
        return self._last_batch

    def _send(self, order: RunBatch | RunShard | GiveUp | BatchFacts) -> None:
        assert self._wire is not None
        self._wire.send(order)

    def add_batch(self, number: int, batch: Batch, now: float) -> None:
        if not self._batches:
            self._head_since = now
        # The child has the items now; kept here as well, they would stay in memory for as long as the batch runs.
        self._batches[number] = replace(batch, given_at=now, fresh=not self._batches, items=())
        self._note_copies(number, batch.items, shard=False)

    def add_shard(self, number: int, batch: Batch, now: float) -> None:
        self._shards[number], self._given_at[number] = replace(batch, given_at=now, items=()), now
        self._note_copies(number, batch.items, shard=True)

    def _note_copies(self, number: int, items: tuple[Item, ...], *, shard: bool) -> None:
        if copies := [item.path for item in items if item.own]:
            self._copies[shard, number] = copies

    def on_batch_done(self, done: BatchDone, now: float) -> BatchRan | BatchLost | None:
        """None for a batch that is no longer awaited."""
        batch = self._batches.pop(done.batch, None)
        self._ended = done.batch, batch
        _delete(self._copies.pop((False, done.batch), []))
        self._given_up.pop(done.batch, None)
        self._head_since = now
        return _event(batch, done)

    def on_shard_done(self, number: int, done: BatchDone) -> BatchRan | BatchLost | None:
        _delete(self._copies.pop((True, number), []))
        self._given_at.pop(number, None)
        return _event(self._shards.pop(number, None), done)

    def on_said(self, said: ItemReports, now: float) -> ItemsSaid | None:
        """None if the batch is no longer awaited; it is then no sign of life, so the time limit goes on."""
        batch = self._batches.get(said.batch)
        if batch is None:
            return None
        self.on_alive(now)
        return ItemsSaid(batch, said)

    def on_alive(self, now: float) -> None:
        """A sign of life: the time limit counts from it."""
        self._head_since = self.alive_at = now
        self._signs += 1

    def on_paused(self, now: float) -> None:
        """The slot stopped or resumed reading from the child: time limits start again."""
        self.on_alive(now)

    def tell_facts(self, number: int) -> None:
        """Answer the handler that looks at the requests of this batch."""
        batch = self._batches.get(number)
        self._send(BatchFacts(number, [batch.facts(job) for job in batch.jobs] if batch is not None else []))

    def whose(self, line: SaidLine) -> dict[str, str]:
        """For the log: the batch that a line was printed for and, if that is one item, its job."""
        number, last = self._ended
        batch = last if line.batch == number else self._batches.get(line.batch)
        if batch is None:
            return {}
        place = 1 if batch.size == 1 else line.place
        job = {"job_id": str(batch.jobs[place - 1].id)} if 1 <= place <= batch.size else {}
        return {"batch_id": batch.nonce, **job}

    # How far.

    def awaited(self) -> list[Batch]:
        """The batches and shards whose outcome is awaited. Safe to call from any thread."""
        given = list(self._batches.values()) + list(self._shards.values())
        return [batch for batch in given if batch is not None]

    def load(self) -> ChildLoad:
        """The child's work, including batches that are no longer awaited."""
        if self.is_empty:
            return IDLE
        alone = any(batch.is_solo for batch in self.awaited())
        if not self._batches:
            return ChildLoad(alone=alone, shards=len(self._shards))
        number, head = next(iter(self._batches.items()))
        stage, since = self._progress.stage(number)
        return ChildLoad(
            batches=len(self._batches),
            size=head.size if head else 0,
            since=since if stage.has_begun else self._head_since,
            alone=alone,
            shards=len(self._shards),
        )

    def signs_of_life(self, waiting: Iterable[Batch]) -> dict[JobId, int]:
        """Per job a number that changes when it progresses: the finished rows of a shard, the reports of all items.

        `waiting` batches are behind those in flight, and progress with them.
        """
        signs: dict[JobId, int] = {}
        if self._shards:
            shards = self._progress.shards
            signs = {batch.jobs[0].id: shards.rows(number) for number, batch in self._shards.items() if batch is not None}
        if self._signs:
            others = [batch for batch in self.awaited() if not batch.is_shard]
            signs |= {job.id: self._signs for batch in (*others, *waiting) for job in batch.jobs}
        return signs

    def limit_at(self, max_run_s: float) -> float:
        """When the child will have run for too long: on one batch, or on one micro-batch of a shard (D39)."""
        return min(self._batch_since(), self._micro_batch()[1]) + max_run_s

    def _batch_since(self) -> float:
        if not self._batches:
            return float("inf")
        if not self._shards:
            return self._head_since
        stage, since = self._progress.stage(next(iter(self._batches)))
        if stage is Stage.DECODED:
            # A micro-batch may be before it at the device, and has a limit of its own.
            since = self._progress.shards.lane(Lane.RUNNING, self._shards)[1]
        return max(self._head_since, since) if stage >= Stage.DECODED else self._head_since

    def _micro_batch(self) -> tuple[int, float]:
        """The shard whose micro-batch has run for longest, and since when; 0 and infinity if there is none."""
        if not self._shards:
            return 0, float("inf")
        shard, since = self._progress.shards.oldest(self._shards)
        return shard, max(since, self._given_at.get(shard, since))

    # Taken back.

    def recall(self) -> list[Batch]:
        """Take back the batches and shards that have not begun to run; the child will skip them."""
        if self.is_empty:
            return []
        return [*_recalled(self._batches, self._progress.recall), *self.recall_waiting_shards()]

    def recall_shards(self) -> list[Batch]:
        """Take back all shards; the child leaves one that has begun with its next micro-batch."""
        return _recalled(self._shards, self._progress.shards.recall) if self._shards else []

    def recall_waiting_shards(self) -> list[Batch]:
        """Take back the shards that have not begun."""
        return _recalled(self._shards, self._progress.shards.recall_waiting) if self._shards else []

    def give_up(self, jobs: Collection[JobId], *, lost: Collection[AttemptKey] = ()) -> None:
        """The end of these jobs was requested, or these attempts were lost: their handler may stop early."""
        for number, batch in self._batches.items():
            if batch is not None:
                unwanted = {n for n, job in enumerate(batch.jobs) if job.id in jobs or (job.id, job.token) in lost}
                self._give_up(number, unwanted, late=False)

    def give_up_late(self, now: float) -> None:
        """The same for jobs whose deadline has passed."""
        for number, batch in self._batches.items():
            if batch is not None and now > batch.given_at + _LONG_S:
                late_at = now - batch.claimed_at + batch.leased_at
                self._give_up(number, {place for place, job in enumerate(batch.jobs) if job.deadline_at <= late_at}, late=True)

    def _give_up(self, number: int, places: set[int], *, late: bool) -> None:
        known = self._given_up.setdefault(number, set()) if places else places
        if new := places - known:
            known |= new
            self._send(GiveUp(number, sorted(new), late))

    def disown(self) -> list[Batch]:
        """Give up all batches and shards: their outcomes are ignored from now on, and a handler that asks may stop early."""
        given_up = self.awaited()
        self.recall()
        self.recall_shards()
        self.give_up({job.id for batch in self.awaited() for job in batch.jobs})
        self._batches, self._shards = dict.fromkeys(self._batches), dict.fromkeys(self._shards)
        return given_up

    # When the child has died.

    def suspects(self, *, is_hung: bool) -> list[tuple[Batch, bool]]:
        """Each awaited batch and shard, and whether it may have caused the child's death."""
        batches, shards = self._hung() if is_hung else self._touched()
        if not (batches or shards):
            # The handler touched none of them. Then suspect the first: a batch that is never charged could come back for ever.
            batches = set(list(self._batches)[:1])
            shards = set() if batches else set(list(self._shards)[:1])
        pairs = [(batch, number in batches) for number, batch in self._batches.items()]
        pairs += [(batch, number in shards) for number, batch in self._shards.items()]
        return [(batch, is_suspect) for batch, is_suspect in pairs if batch is not None]

    def is_sole_suspect(self, batch: Batch) -> bool:
        """Whether a child that hung can have hung on nothing but the one item of this batch."""
        return batch.size == 1

    def _touched(self) -> tuple[set[int], set[int]]:
        batches = {number for number in self._batches if self._progress.stage(number)[0].is_touched}
        return batches, self._progress.shards.touched(self._shards)

    def _hung(self) -> tuple[set[int], set[int]]:
        shard, since = self._micro_batch()
        if shard and since <= self._batch_since():
            return set(), {shard}
        return set(list(self._batches)[:1]), set()

    def clear(self) -> None:
        for copies in self._copies.values():
            _delete(copies)
        self._batches, self._shards, self._copies, self._given_at, self._given_up = {}, {}, {}, {}, {}


def _delete(copies: list[str]) -> None:
    # D44: a copy lives until the child has answered for its batch or is gone, so nothing is cached.
    for copy in copies:
        Path(copy).unlink(missing_ok=True)


def _event(batch: Batch | None, done: BatchDone) -> BatchRan | BatchLost | None:
    if batch is None:
        return None
    if not done.outcomes:
        # Recalled at the moment it began: both sides saw each other's mark, and the child skipped the batch.
        return BatchLost(batch, Cause.UNSTARTED, "recalled")
    return BatchRan(batch, done)


def _recalled(given: dict[int, Batch | None], recall: Callable[[int], bool]) -> list[Batch]:
    """The batches that `recall` took back. The child still answers for them, but the answers are not awaited."""
    back = []
    for number, batch in given.items():
        if batch is not None and recall(number):
            back.append(batch)
            given[number] = None
    return back


class LaneProgress:
    """How far the jobs of a slot are. The slot's thread replaces `_signs`; the beat notes what it has reported."""

    def __init__(self) -> None:
        self._signs: Mapping[JobId, int] = {}
        self._reported: Mapping[JobId, int] = {}

    def note(self, signs: Mapping[JobId, int]) -> None:
        """Note, per job, a number that changes when the job progresses."""
        self._signs = signs

    def moved(self) -> tuple[JobId, ...]:
        """All jobs if any has progressed since the last call: the jobs behind it progress with it."""
        signs, before = self._signs, self._reported
        self._reported = signs
        return tuple(signs) if any(sign != before.get(id) for id, sign in signs.items()) else ()

"""Drives one run from its first row, or from where it was left, to its last: read, submit, collect, write, commit."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol

from penstock.errors import CallerError
from penstock.run import RunCounts
from penstock.runs.model_lookup import Slots
from penstock.runs.progress import ProgressMeter, RunProgress
from penstock.runs.read_ahead import ReadAhead
from penstock.runs.rows import Sink, Source
from penstock.runs.shards.shard_queue import End, ShardQueue
from penstock.runs.shards.sizing import batch_rows, first_size, most_rows, open_shards
from penstock.runs.shards.window import Finished, ShardPiece, Window

COMMIT_S = 1.0
COMMIT_ROWS = 200_000
# A commit waits for disks; it may take a tenth of the time.
_COMMIT_SHARE = 10.0
_WAIT_S = 0.25
_READ_WAIT_S = 0.05
# No second try changes these ends: the run's own deadline, or somebody's will.
_ENDED_BY_WILL = frozenset({"expired", "cancelled"})


class TooManyFailed(CallerError):
    """More rows failed than `--max-failed` allows; what was written so far is kept, and the run can be resumed."""

    kind: ClassVar[str] = "too_many_failed"


class StopReason(StrEnum):
    """Why a drive ends before its last row; empty: it goes on."""

    GO_ON = ""
    CANCEL = "cancel"
    INTERRUPT = "interrupt"
    EXPIRE = "expire"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a run had come at its last commit: where the source goes on, the sink's mark, the rows counted."""

    after: dict[str, Any] | None = None
    mark: dict[str, Any] | None = None
    counts: RunCounts = field(default_factory=RunCounts)


@dataclass(frozen=True, slots=True)
class RunLimits:
    """`window_rows`: most rows submitted and not written; `shard_rows` 0: learned; `max_failed` None: no limit."""

    window_rows: int = 10_000
    shard_rows: int = 0
    max_failed: int | None = None


class RunWatch(Protocol):
    """What a driver asks of the world around it, at every turn; answers without waiting."""

    def stop(self) -> StopReason: ...

    def slots(self) -> Slots:
        """How many processes serve the model now, and what keeps those that do not."""
        ...

    def told(self, progress: RunProgress) -> None: ...


class Driver:
    """One drive, for one thread. `commit` makes a place durable before anything goes on."""

    def __init__(
        self,
        source: Source,
        sink: Sink,
        *,
        pace: RunLimits,
        place: Checkpoint,
        watch: RunWatch,
        commit: Callable[[Checkpoint], None],
    ) -> None:
        self._source, self._sink, self._pace, self._watch, self._commit = source, sink, pace, watch, commit
        self._place = place
        self._window = Window()
        self._size = first_size(pace.shard_rows, window_rows=pace.window_rows, slots=1)
        self._ahead = ReadAhead(source, place.after, rows=lambda: batch_rows(self._size, pace.window_rows))
        self._cut: deque[ShardPiece] = deque()
        self._meter = ProgressMeter(place.counts, now=time.monotonic())
        self._after = place.after
        self._uncommitted = 0
        self._commit_at = 0.0
        self._slots = 1

    def inputs(self, piece: ShardPiece) -> list[Any]:
        return self._window.inputs(piece)

    def drive(self, desk: ShardQueue) -> StopReason:
        """Until all rows are written and committed, or told to stop. Raises `TooManyFailed`, and what source and sink raise."""
        self._ahead.start()
        try:
            why = self._turn_until_over(desk)
        finally:
            self._ahead.close()
            desk.cancel()
        if why is not StopReason.LOST:
            # Somebody else may write to this output already, if the run was lost to them.
            self._commit_now()
        return why

    def _turn_until_over(self, desk: ShardQueue) -> StopReason:
        while not self._over(desk):
            if why := self._watch.stop():
                return why
            self._follow_slots()
            self._fill(desk)
            self._collect(desk)
            self._write()
            self._commit_if_due()
            self._tell(desk)
        return StopReason.GO_ON

    def _over(self, desk: ShardQueue) -> bool:
        return self._ahead.ended and not len(desk) and not self._window.rows

    def _follow_slots(self) -> None:
        slots = max(1, self._watch.slots().ready)
        if slots != self._slots:
            self._slots = slots
            if not self._pace.shard_rows:
                self._size = self._size.capped(most_rows(self._pace.window_rows, slots))

    def _fill(self, desk: ShardQueue) -> None:
        room = open_shards(self._slots) - len(desk)
        while len(self._cut) < room:
            batch = self._ahead.take(self._pace.window_rows - self._window.rows)
            if batch is None:
                break
            self._cut += self._window.add(batch, self._size.rows)
        desk.submit([self._cut.popleft() for _ in range(min(room, len(self._cut)))])

    def _collect(self, desk: ShardQueue) -> None:
        if not len(desk):
            # Nothing is under way: the next thing to happen is a batch read.
            self._ahead.wait(_READ_WAIT_S)
            return
        for end in desk.ends(_READ_WAIT_S if len(desk) < open_shards(self._slots) else _WAIT_S):
            desk.submit(self._settled(end))

    def _settled(self, end: End) -> list[ShardPiece]:
        self._meter.device(end.device_s)
        if end.outcome is not None:
            self._size = self._size.after(end.piece.weight, end.run_s)
            return self._window.settle(end.piece, end.outcome)
        if end.error.code in _ENDED_BY_WILL:
            return self._window.give_up(end.piece, end.error)
        return self._window.fail(end.piece, end.error)

    def _write(self) -> None:
        for finished in self._window.finished():
            self._append(finished)
            self._check_failed()

    def _append(self, finished: Finished) -> None:
        self._sink.append(finished.results)
        rows, failed = len(finished.results.outputs), len(finished.results.failed)
        self._meter.rows(done=rows - failed, failed=failed, now=time.monotonic())
        self._after = finished.after
        self._uncommitted += rows

    def _check_failed(self) -> None:
        most, counts = self._pace.max_failed, self._meter.counts
        if most is not None and counts.failed > most:
            self._commit_now()
            raise TooManyFailed(
                f"{counts.failed:,} of {counts.done + counts.failed:,} rows failed, more than --max-failed {most:,} allows"
            )

    def _commit_if_due(self) -> None:
        if self._uncommitted and (time.monotonic() >= self._commit_at or self._uncommitted >= COMMIT_ROWS):
            self._commit_now()

    def _commit_now(self) -> None:
        started_at = time.monotonic()
        if self._uncommitted:
            self._place = Checkpoint(self._after, self._sink.commit(), self._meter.counts)
            self._commit(self._place)
        self._uncommitted = 0
        now = time.monotonic()
        self._commit_at = now + max(COMMIT_S, _COMMIT_SHARE * (now - started_at))

    def _tell(self, desk: ShardQueue) -> None:
        slots = self._watch.slots()
        waits_for = "" if slots.ready else slots.why or "no worker serves the model; its shards wait"
        note = desk.note or (waits_for if len(desk) else "")
        self._watch.told(self._meter.look(time.monotonic(), slots=self._slots, stage="running", note=note))

    @property
    def place(self) -> Checkpoint:
        """The last commit's."""
        return Checkpoint(self._place.after, self._place.mark, self._meter.counts)

    @property
    def counts(self) -> RunCounts:
        return self._meter.counts

    def mean_rate(self) -> float:
        return self._meter.mean_rate(time.monotonic())

    def look(self, stage: str) -> RunProgress:
        return self._meter.look(time.monotonic(), slots=self._slots, stage=stage)

"""Drives one run from its first row, or from its last checkpoint, to its last row: read, submit, collect, write, commit."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol

from penstock.errors import CallerError
from penstock.failpoints import failpoint
from penstock.run import FailureLimit, RunCounts
from penstock.runs.model_lookup import Slots
from penstock.runs.progress import ProgressMeter, RunProgress
from penstock.runs.read_ahead import ReadAhead
from penstock.runs.rows import RowError, RowSource, Sink
from penstock.runs.shards.shard_queue import ShardEnd, ShardQueue
from penstock.runs.shards.sizing import batch_rows, first_size, most_rows, open_shards
from penstock.runs.shards.window import FinishedBatch, ShardPiece, Window

COMMIT_S = 1.0
COMMIT_ROWS = 200_000
# A commit waits for disks. The pause after a commit is ten times its duration, so that commits take a tenth of the time.
_COMMIT_PAUSE = 10.0
_WAIT_S = 0.25
_READ_WAIT_S = 0.05
# How long a stopped run waits for its running shards. A shard ends with the micro-batch that runs when its time is over, and
# the model's own limits end a micro-batch.
_LAST_SHARDS_S = 600.0
# Another attempt cannot change these ends: the run's deadline passed, or a caller cancelled the job.
_NOT_RETRIED = frozenset({"expired", "cancelled"})


class TooManyFailed(CallerError):
    """More rows failed than `max_failed` allows. The rows written so far are kept, and the run can be resumed."""

    kind: ClassVar[str] = "too_many_failed"


def too_many(counts: RunCounts, limit: FailureLimit, first_failure: str = "") -> str:
    first = f"; the first was {first_failure}" if first_failure else ""
    return f"{counts.failed:,} of {counts.done + counts.failed:,} rows failed, and the limit is {limit}{first}"


class StopReason(StrEnum):
    """Why a drive ends before its last row. GO_ON is empty: there is no reason to stop."""

    GO_ON = ""
    CANCEL = "cancel"
    INTERRUPT = "interrupt"
    EXPIRE = "expire"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a run at its last commit: the source's position, the sink's mark, the counted rows."""

    after: dict[str, Any] | None = None
    mark: dict[str, Any] | None = None
    counts: RunCounts = field(default_factory=RunCounts)


@dataclass(frozen=True, slots=True)
class RunLimits:
    """`window_rows`: the most rows submitted and not written; `shard_rows` 0: learned; `max_failed` None: no limit.

    `not_reached`: by the reason to stop, the error of rows that no worker ran, if the run then publishes its output; without
    an entry, a resume runs those rows. `is_part`: the rows are a part's, and its end is not the run's.
    """

    window_rows: int = 10_000
    shard_rows: int = 0
    max_failed: FailureLimit | None = None
    not_reached: Mapping[StopReason, RowError] = field(default_factory=dict)
    is_part: bool = False


class RunWatch(Protocol):
    """What a driver reads and reports outside its files at every turn. No method waits."""

    def stop_reason(self) -> StopReason: ...

    def is_hurried(self) -> bool:
        """Whether a stopped run may wait for nothing more: this process is to leave it, or another driver has it."""
        ...

    def is_held(self) -> bool:
        """Whether this driver certainly owns the run. Otherwise nothing is written."""
        ...

    def counts_of_run(self, own: RunCounts) -> RunCounts:
        """The counts of the whole run, of which this driver's rows may be a part."""
        ...

    def slots(self) -> Slots:
        """The number of slots that serve the model now, and why the others do not."""
        ...

    def on_progress(self, progress: RunProgress) -> None: ...


class Driver:
    """One drive, for one thread. `commit` makes a checkpoint durable before the drive goes on."""

    def __init__(
        self,
        source: RowSource,
        sink: Sink,
        *,
        limits: RunLimits,
        checkpoint: Checkpoint,
        watch: RunWatch,
        commit: Callable[[Checkpoint], None],
    ) -> None:
        self._source, self._sink, self._limits, self._watch, self._commit = source, sink, limits, watch, commit
        self._committed = checkpoint
        self._window = Window()
        self._size = first_size(limits.shard_rows, window_rows=limits.window_rows, slots=1)
        self._ahead = ReadAhead(source, checkpoint.after, rows=lambda: batch_rows(self._size, limits.window_rows))
        self._cut: deque[ShardPiece] = deque()
        self._meter = ProgressMeter(checkpoint.counts, now=time.monotonic())
        self._after = checkpoint.after
        self._uncommitted = 0
        # How many rows of the source are written: done, failed, or not reached.
        self.written = checkpoint.counts.done + checkpoint.counts.failed
        self._first_failure = ""
        self._commit_at = 0.0
        self._slots = 1

    def inputs(self, piece: ShardPiece) -> list[Any]:
        return self._window.inputs(piece)

    def drive(self, shards: ShardQueue) -> StopReason:
        """Drive until all rows are written and committed, or the watch gives a reason to stop.

        Raises `TooManyFailed`, and the errors of source and sink.
        """
        self._ahead.start()
        try:
            reason = self._turn_until_over(shards)
            if not reason:
                self._check_failed(ended=True)
            elif reason in self._limits.not_reached:
                self._finish_running(shards, self._limits.not_reached[reason])
        finally:
            self._ahead.close()
            shards.cancel()
        if reason is not StopReason.LOST:
            # A run that was lost to another driver has another writer, so this one must not write.
            self._commit_now()
        return reason

    def _turn_until_over(self, shards: ShardQueue) -> StopReason:
        while not self._is_over(shards):
            if reason := self._watch.stop_reason():
                return reason
            self._follow_slots()
            self._fill(shards)
            self._collect(shards)
            self._write()
            self._commit_if_due(shards)
            self._report(shards)
        return StopReason.GO_ON

    def _finish_running(self, shards: ShardQueue, error: RowError) -> None:
        """Wait for shards that a worker runs, fail the other rows of the window with `error`, and write all rows."""
        self._give_up([*self._cut, *shards.withdraw()], error)
        self._cut.clear()
        give_up_at = time.monotonic() + _LAST_SHARDS_S
        while len(shards) and time.monotonic() < give_up_at and not self._watch.is_hurried():
            for end in shards.ends(_WAIT_S):
                self._give_up(self._settle(end), error)
        self._give_up(shards.cancel(), error)
        self._write()

    def _give_up(self, pieces: Sequence[ShardPiece], error: RowError) -> None:
        for piece in pieces:
            self._window.give_up(piece, error)

    def _is_over(self, shards: ShardQueue) -> bool:
        return self._has_all_rows(shards) and not self._uncommitted

    def _has_all_rows(self, shards: ShardQueue) -> bool:
        return self._ahead.ended and not len(shards) and not self._window.rows

    def _follow_slots(self) -> None:
        slots = max(1, self._watch.slots().ready)
        if slots != self._slots:
            self._slots = slots
            if not self._limits.shard_rows:
                self._size = self._size.capped(most_rows(self._limits.window_rows, slots))

    def _fill(self, shards: ShardQueue) -> None:
        room = open_shards(self._slots) - len(shards)
        while len(self._cut) < room:
            batch = self._ahead.take(self._limits.window_rows - self._window.rows)
            if batch is None:
                break
            self._cut += self._window.add(batch, self._size.rows)
        shards.submit([self._cut.popleft() for _ in range(min(room, len(self._cut)))])

    def _collect(self, shards: ShardQueue) -> None:
        if not len(shards):
            # No shard is submitted, so the next event is a batch that was read.
            self._ahead.wait(_READ_WAIT_S)
            return
        for end in shards.ends(_READ_WAIT_S if len(shards) < open_shards(self._slots) else _WAIT_S):
            shards.submit(self._settle(end))

    def _settle(self, end: ShardEnd) -> list[ShardPiece]:
        """Add the end of a shard to the window; returns the pieces to submit again."""
        self._meter.add_device_time(end.device_s)
        if end.outcome is not None:
            self._size = self._size.after(end.piece.weight, end.run_s)
            return self._window.settle(end.piece, end.outcome)
        if end.error.code in _NOT_RETRIED:
            return self._window.give_up(end.piece, end.error)
        return self._window.fail(end.piece, end.error)

    def _write(self) -> None:
        if not self._watch.is_held():
            # The lease's thread learns whether this driver still owns the run.
            time.sleep(_READ_WAIT_S)
        while self._watch.is_held() and (finished := next(self._window.finished(), None)):
            self._append(finished)
            self._check_failed()

    def _append(self, finished: FinishedBatch) -> None:
        # D43: a batch is written as a whole, so a run can resume from the position after it.
        self._sink.append(finished.results)
        rows = len(finished.results.outputs)
        # Rows that were not reached have not failed.
        failed = sum(error not in self._limits.not_reached.values() for error in finished.results.failed.values())
        if failed and not self._first_failure:
            place, error = min(finished.results.failed.items())
            self._first_failure = f"row {finished.results.first + place}: {error.code}: {error.message}"
        self._meter.add_rows(done=rows - len(finished.results.failed), failed=failed, now=time.monotonic())
        self._after = finished.after
        if self._meter.counts.total is None:
            self._meter.share = self._source.share_before(finished.after)
        self._uncommitted += rows
        self.written += rows

    def _check_failed(self, *, ended: bool = False) -> None:
        most, counts = self._limits.max_failed, self._watch.counts_of_run(self._meter.counts)
        if most is not None and most.is_passed(counts, ended=ended and not self._limits.is_part):
            self._commit_now()
            raise TooManyFailed(too_many(counts, most, self._first_failure))

    def _commit_if_due(self, shards: ShardQueue) -> None:
        if time.monotonic() >= self._commit_at or self._uncommitted >= COMMIT_ROWS or self._has_all_rows(shards):
            self._commit_now()

    def _commit_now(self) -> None:
        if not self._uncommitted or not self._watch.is_held():
            return
        started_at = time.monotonic()
        failpoint("before_run_commit")
        self._committed = Checkpoint(self._after, self._sink.commit(), self._meter.counts)
        self._commit(self._committed)
        self._uncommitted = 0
        now = time.monotonic()
        self._commit_at = now + max(COMMIT_S, _COMMIT_PAUSE * (now - started_at))

    def _report(self, shards: ShardQueue) -> None:
        slots = self._watch.slots()
        waits_for = "" if slots.ready else slots.why or "no worker serves the model; its shards wait"
        note = shards.note or (waits_for if len(shards) else "")
        self._watch.on_progress(self._meter.measure(time.monotonic(), slots=self._slots, stage="running", note=note))

    @property
    def checkpoint(self) -> Checkpoint:
        """Source and sink as of the last commit, with the rows counted until now."""
        return Checkpoint(self._committed.after, self._committed.mark, self._meter.counts)

    @property
    def counts(self) -> RunCounts:
        return self._meter.counts

    def mean_rate(self) -> float:
        return self._meter.mean_rate(time.monotonic())

    def progress(self, stage: str) -> RunProgress:
        return self._meter.measure(time.monotonic(), slots=self._slots, stage=stage)

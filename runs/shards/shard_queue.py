"""Where shards are handed in and their outcomes handed out: the queue, the blob store, and what goes wrong there."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock.backoff import Backoff, BackoffCounter
from penstock.broker.blobs.files import BlobStore, BlobsUnavailable
from penstock.broker.records import NewJob, Push, SubmitStatus, Submitted
from penstock.errors import StoreUnavailable
from penstock.job import Call, Job, JobError, JobState, Payload, Priority
from penstock.job_id import JobId, new_job_id
from penstock.runs.rows import RowError
from penstock.runs.shards.window import ShardPiece
from penstock.shard import SHARD_MEDIA, Shard, ShardOutcome, decode_outcome, encode_shard

log = logging.getLogger("penstock.runs")

INLINE_BYTES = 16 * 1024
RESULT_TTL_S = 900.0
# A shard is given out again as often as it takes: what limits it are the crashes and losses that it causes itself.
MOST_ATTEMPTS = 50
_ROW_CRASHES = 2
_BACKOFF = Backoff(0.05, 2.0)
_STORED = (SubmitStatus.CREATED, SubmitStatus.EXISTING)


class ShardStore(Protocol):
    """What the desk asks of the job store."""

    def submit(self, jobs: Sequence[NewJob], *, max_depth: int = 10_000) -> list[Submitted]: ...

    def results(self, jobs: Sequence[JobId]) -> list[tuple[Job, Payload | None] | None]: ...

    def cancel(self, job: JobId) -> Any: ...

    def forget(self, jobs: Sequence[JobId]) -> int: ...


class Listener(Protocol):
    """What the desk asks of the channel of pushes; see `Ears`."""

    channel: str

    def listen(self) -> Any: ...

    def heard(self, timeout_s: float) -> list[Push]: ...

    def recheck_due(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Terms:
    """What all shards of a run share. `deadline_s` counts from each submit."""

    model: str
    version: str
    media: str
    owner: str = ""
    deadline_s: float = 86_400.0
    max_queue_depth: int = 10_000


@dataclass(frozen=True, slots=True)
class End:
    """How one shard ended: with an `outcome`, or as a whole with an `error`. Seconds: in all, and on the device."""

    piece: ShardPiece
    outcome: ShardOutcome | None
    error: RowError = field(default_factory=lambda: RowError("", ""))
    run_s: float = 0.0
    device_s: float = 0.0


class ShardQueue:
    """For one thread. While the store is away everything waits here and `note` says so; nothing is lost, nothing raised."""

    def __init__(
        self, queue: ShardStore, blobs: BlobStore, ears: Listener, *, terms: Terms, inputs: Callable[[ShardPiece], list[Any]]
    ) -> None:
        self._queue, self._blobs, self._ears, self._terms, self._inputs = queue, blobs, ears, terms, inputs
        self._waiting: deque[tuple[JobId, ShardPiece]] = deque()
        self._open: dict[JobId, ShardPiece] = {}
        self._taken: list[JobId] = []
        self._read_names: list[str] = []
        self._failures, self._again_at = BackoffCounter(_BACKOFF), 0.0
        self.note = ""

    def __len__(self) -> int:
        """Shards that were handed in and have no end yet."""
        return len(self._waiting) + len(self._open)

    def submit(self, pieces: Sequence[ShardPiece]) -> None:
        """Hand in. The serial is chosen here, once: a submit whose reply was lost is repeated under it."""
        self._waiting.extend((new_job_id(self._terms.model), piece) for piece in pieces)
        self.push_on()

    def push_on(self) -> None:
        """Submit what waits, unless the queue was full or the store away a moment ago."""
        if not self._waiting or time.monotonic() < self._again_at:
            return
        try:
            self._ears.listen()
            self._send()
        except StoreUnavailable as away:
            self._wait(away.message)
        except OSError as away:
            self._wait(str(away))

    def _send(self) -> None:
        batch = list(self._waiting)
        # Blobs first, then the records that name them.
        inputs = self._payloads(batch)
        jobs = [self._new_job(job, piece, given) for (job, piece), given in zip(batch, inputs, strict=True)]
        answers = self._queue.submit(jobs, max_depth=self._terms.max_queue_depth)
        refused = {answer.id: answer.status for answer in answers if answer.status not in _STORED}
        self._open.update((job, piece) for job, piece in batch if job not in refused)
        self._waiting = deque((job, piece) for job, piece in batch if job in refused)
        self._after_submit(set(refused.values()))

    def _after_submit(self, refusals: set[SubmitStatus]) -> None:
        if not refusals:
            self._failures.reset()
            self.note = ""
        elif SubmitStatus.QUOTA in refusals:
            self._wait("the owner of this run has as many open jobs as it may have")
        else:
            self._wait(f"the queue of {self._terms.model} is full")

    def _payloads(self, batch: Sequence[tuple[JobId, ShardPiece]]) -> list[Payload]:
        given = [(_input_name(job), encode_shard(Shard(self._terms.media, self._inputs(piece)))) for job, piece in batch]
        self._blobs.put_all([(name, data) for name, data in given if len(data) > INLINE_BYTES])
        return [
            Payload(SHARD_MEDIA, data) if len(data) <= INLINE_BYTES else Payload(SHARD_MEDIA, blob=name) for name, data in given
        ]

    def _new_job(self, job: JobId, piece: ShardPiece, given: Payload) -> NewJob:
        return NewJob(
            job,
            self._terms.version,
            given,
            priority=Priority.BULK,
            call=Call.SHARD,
            deadline_s=self._terms.deadline_s,
            result_ttl_s=RESULT_TTL_S,
            owner=self._terms.owner,
            max_attempts=MOST_ATTEMPTS,
            # A crash condemns a shard at once, so that it is halved and not run again as it is.
            max_crashes=1 if len(piece) > 1 else _ROW_CRASHES,
            reply_to=self._ears.channel,
        )

    def ends(self, timeout_s: float) -> list[End]:
        """The shards that ended since the last call, or as soon as one does; [] after `timeout_s`."""
        pushes = {push.id: push for push in self._ears.heard(timeout_s) if push.state.final}
        found = list(self._told_all(push for push in pushes.values() if push.id in self._open))
        if self._open and self._ears.recheck_due():
            found += self._looked_up()
        if found:
            # Places in the queue have become free, and the store answers.
            self._failures.reset()
            self._again_at = 0.0
        self.push_on()
        self._forget()
        return found

    def _told_all(self, pushes: Iterable[Push]) -> Iterator[End]:
        """Those whose outcome could be read; the others stay open and are looked up again."""
        for push in pushes:
            try:
                yield self._told(push)
            except BlobsUnavailable as away:
                self._wait(away.message)

    def _told(self, push: Push) -> End:
        error = JobError(push.error_code, push.error_message)
        batch = push.batch
        shared = max(1, batch.size) if batch else 1
        run_s = (batch.decode_s + batch.preprocess_s + batch.inference_s + batch.postprocess_s) / shared if batch else 0.0
        device_s = batch.inference_s / shared if batch else 0.0
        return self._end(push.id, push.state, push.output, error, run_s=run_s, device_s=device_s)

    def _looked_up(self) -> list[End]:
        """The ends that nobody told. A shard that the store no longer knows is submitted again."""
        jobs = list(self._open)
        try:
            records = self._queue.results(jobs)
        except StoreUnavailable as away:
            self._wait(away.message)
            return []
        self._waiting.extend((job, self._open.pop(job)) for job, found in zip(jobs, records, strict=True) if found is None)
        return list(self._told_all(_pushes(found for found in records if found is not None)))

    def _end(
        self, job: JobId, state: JobState, output: Payload | None, error: JobError, *, run_s: float, device_s: float
    ) -> End:
        piece = self._open[job]
        if state is JobState.SUCCEEDED and output is not None:
            outcome = decode_outcome(self._read(output))
            del self._open[job]
            self._taken.append(job)
            return End(piece, outcome, run_s=run_s, device_s=device_s)
        del self._open[job]
        # Kept by the store for whoever replays a failed job; the rows of this one are tried again under other names.
        self._blobs.delete(_input_name(job))
        code = error.code or state.value
        log.info("shard_failed", extra={"job": str(job), "rows": len(piece), "code": code})
        return End(piece, None, RowError(code, error.message or f"the shard ended {state.value}"), run_s=run_s)

    def _forget(self) -> None:
        """Drop records and outputs of the shards whose outcomes are here. For as long as results are kept they would pile up in
        the store's memory; their inputs went when they were settled.
        """
        if not self._taken:
            return
        try:
            self._queue.forget(self._taken)
        except StoreUnavailable as away:
            # They go by themselves, later.
            log.warning("shards_not_forgotten", extra={"count": len(self._taken), "error": away.message})
        self._blobs.delete_all(self._read_names)
        self._taken.clear()
        self._read_names.clear()

    def _read(self, output: Payload) -> bytes:
        if not output.blob:
            return output.data
        data = self._blobs.get(output.blob)
        self._read_names.append(output.blob)
        return data

    def cancel(self) -> None:
        """Take back what has no end yet, as far as the store answers; what runs ends by itself and nobody waits for it."""
        self._waiting.clear()
        try:
            for job in self._open:
                self._queue.cancel(job)
                self._blobs.delete(_input_name(job))
        except StoreUnavailable as away:
            log.warning("shards_not_cancelled", extra={"count": len(self._open), "error": away.message})
        self._open.clear()

    def _wait(self, why: str) -> None:
        self.note = why
        self._again_at = time.monotonic() + self._failures.count_failure()


def _pushes(records: Iterable[tuple[Job, Payload | None]]) -> Iterator[Push]:
    """What would have been told of those that have ended."""
    for job, output in records:
        if job.state.final:
            error = job.error or JobError("", "")
            yield Push(job.id, job.state, output, error.code, error.message, job.batch)


def _input_name(job: JobId) -> str:
    return f"{job.serial}.in"

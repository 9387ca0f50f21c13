"""Submits shards and collects their outcomes: through the job store, the blob store, and the pushes of jobs that ended."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from penstock.backoff import Backoff, BackoffCounter
from penstock.broker.blobs.files import BlobStore, BlobsUnavailable
from penstock.broker.records import NewJob, Push, SubmitStatus, Submitted
from penstock.errors import StoreUnavailable
from penstock.job import Call, Job, JobId, JobState, Payload, Priority, new_job_id
from penstock.runs.rows import RowError
from penstock.runs.shards.sizing import MOST_S
from penstock.runs.shards.window import ShardPiece
from penstock.shard import NOT_RUN, SHARD_MEDIA, Shard, ShardOutcome, decode_outcome, encode_shard

log = logging.getLogger("penstock.runs")

INLINE_BYTES = 16 * 1024
RESULT_TTL_S = 900.0
# Practically unlimited: only a shard's own crashes end it early.
MOST_ATTEMPTS = 50
_ROW_CRASHES = 2
_BACKOFF = Backoff(0.05, 2.0)
_NOT_RUN = (JobState.QUEUED, JobState.DELAYED)
_STORED = (SubmitStatus.CREATED, SubmitStatus.EXISTING)


class ShardStore(Protocol):
    """The part of the job store that a shard queue needs."""

    def submit(self, jobs: Sequence[NewJob], *, max_depth: int = 10_000) -> list[Submitted]: ...

    def results(self, jobs: Sequence[JobId]) -> list[tuple[Job, Payload | None] | None]: ...

    def cancel(self, job: JobId) -> Any: ...

    def forget(self, jobs: Sequence[JobId]) -> int: ...


class Listener(Protocol):
    """The channel of pushes, as `PushListener` has it."""

    channel: str

    def listen(self) -> Any: ...

    def receive(self, timeout_s: float) -> list[Push]: ...

    def recheck_due(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class ShardTerms:
    """The terms of all shards of a run. `deadline_s` counts from each submit. They go to `partitions` queues."""

    model: str
    version: str
    media: str
    owner: str = ""
    deadline_s: float = 86_400.0
    max_queue_depth: int = 10_000
    partitions: int = 1
    headers: dict[str, str] = field(default_factory=dict)
    query: dict[str, str] = field(default_factory=dict)

    def shard(self, rows: list[Any]) -> Shard:
        return Shard(self.media, rows, self.headers, self.query, MOST_S)


@dataclass(frozen=True, slots=True)
class ShardEnd:
    """The end of one shard: an `outcome`, or an `error` of the whole shard. `run_s`: all stages; `device_s`: inference."""

    piece: ShardPiece
    outcome: ShardOutcome | None
    error: RowError = field(default_factory=lambda: RowError("", ""))
    run_s: float = 0.0
    device_s: float = 0.0


class ShardQueue:
    """For one thread. While the store is away, shards wait here and `note` says why; nothing is lost or raised."""

    def __init__(
        self,
        store: ShardStore,
        blobs: BlobStore,
        listener: Listener,
        *,
        terms: ShardTerms,
        inputs: Callable[[ShardPiece], list[Any]],
    ) -> None:
        self._store, self._blobs, self._listener, self._terms, self._inputs = store, blobs, listener, terms, inputs
        self._waiting: deque[tuple[JobId, ShardPiece]] = deque()
        self._open: dict[JobId, ShardPiece] = {}
        self._collected: list[JobId] = []
        self._output_blobs: list[str] = []
        self._failures, self._retry_at = BackoffCounter(_BACKOFF), 0.0
        self._turns = count()
        self.note = ""

    def __len__(self) -> int:
        """Submitted shards that have not ended yet."""
        return len(self._waiting) + len(self._open)

    def submit(self, pieces: Sequence[ShardPiece]) -> None:
        """Submit each piece under an id that is chosen once, so that a submit with a lost reply is repeated under it."""
        # Partitions in turn, so that the slots at home in each have work.
        turns = (next(self._turns) % self._terms.partitions for _ in pieces)
        self._waiting.extend((new_job_id(self._terms.model, turn), piece) for turn, piece in zip(turns, pieces, strict=True))
        self.flush()

    def flush(self) -> None:
        """Submit the waiting shards, unless the queue was full or the store unreachable a moment ago."""
        if not self._waiting or time.monotonic() < self._retry_at:
            return
        try:
            # The subscription comes first, so that no end of these shards is missed.
            self._listener.listen()
            self._send()
        except StoreUnavailable as away:
            self._back_off(away.message)
        except OSError as away:
            self._back_off(str(away))

    def _send(self) -> None:
        batch = list(self._waiting)
        # Blobs first, then the records that name them: a worker never claims a shard whose input is missing.
        inputs = self._payloads(batch)
        jobs = [self._new_job(job, piece, payload) for (job, piece), payload in zip(batch, inputs, strict=True)]
        answers = self._store.submit(jobs, max_depth=self._terms.max_queue_depth)
        refused = {answer.id: answer.status for answer in answers if answer.status not in _STORED}
        self._open.update((job, piece) for job, piece in batch if job not in refused)
        # A partition that the model had when the run began may be closed by now; the first one stays.
        closed = {job for job, status in refused.items() if status is SubmitStatus.RETIRED}
        self._waiting = deque(
            (job._replace(partition=0) if job in closed else job, piece) for job, piece in batch if job in refused
        )
        self._after_submit(set(refused.values()))

    def _after_submit(self, refusals: set[SubmitStatus]) -> None:
        if not refusals:
            self._failures.reset()
            self.note = ""
        elif SubmitStatus.QUOTA in refusals:
            self._back_off("the owner of this run has reached the limit of open jobs")
        elif SubmitStatus.RETIRED in refusals:
            self._back_off(
                f"{self._terms.model} takes no jobs of version {self._terms.version}: load it again, or cancel the run"
            )
        else:
            self._back_off(f"the queue of {self._terms.model} is full")

    def _payloads(self, batch: Sequence[tuple[JobId, ShardPiece]]) -> list[Payload]:
        encoded = [(f"{job.serial}.in", encode_shard(self._terms.shard(self._inputs(piece)))) for job, piece in batch]
        self._blobs.put_all([(name, data) for name, data in encoded if len(data) > INLINE_BYTES])
        return [
            Payload(SHARD_MEDIA, data) if len(data) <= INLINE_BYTES else Payload(SHARD_MEDIA, blob=name)
            for name, data in encoded
        ]

    def _new_job(self, job: JobId, piece: ShardPiece, payload: Payload) -> NewJob:
        return NewJob(
            job,
            self._terms.version,
            payload,
            priority=Priority.BULK,
            call=Call.SHARD,  # D38, D39
            deadline_s=self._terms.deadline_s,
            result_ttl_s=RESULT_TTL_S,
            owner=self._terms.owner,
            max_attempts=MOST_ATTEMPTS,
            # One crash ends a shard of several rows, which is then halved instead of run again as it is.
            max_crashes=1 if len(piece) > 1 else _ROW_CRASHES,
            reply_to=self._listener.channel,
        )

    def ends(self, timeout_s: float) -> list[ShardEnd]:
        """The shards that ended since the last call, or the first that ends; [] after `timeout_s`."""
        pushes = {push.id: push for push in self._listener.receive(timeout_s) if push.state.final}
        ended = list(self._readable_ends(push for push in pushes.values() if push.id in self._open))
        if self._open and self._listener.recheck_due():
            ended += self._poll()
        if ended:
            # The queue has room again, and the store answers.
            self._failures.reset()
            self._retry_at = 0.0
        self.flush()
        self._forget()
        return ended

    def _readable_ends(self, pushes: Iterable[Push]) -> Iterator[ShardEnd]:
        """The ends whose outcome can be read; the other shards stay open and are looked up again."""
        for push in pushes:
            try:
                yield self._end_of(push)
            except BlobsUnavailable as away:
                self._back_off(away.message)

    def _poll(self) -> list[ShardEnd]:
        """The ends whose push was lost. A shard that the store no longer knows is submitted again."""
        jobs = list(self._open)
        try:
            records = self._store.results(jobs)
        except StoreUnavailable as away:
            self._back_off(away.message)
            return []
        self._waiting.extend((job, self._open.pop(job)) for job, record in zip(jobs, records, strict=True) if record is None)
        return list(self._readable_ends(filter(None, (Push.of_end(*record) for record in records if record is not None))))

    def _end_of(self, push: Push) -> ShardEnd:
        piece, batch = self._open[push.id], push.batch
        shared = max(1, batch.size) if batch else 1
        run_s = (batch.decode_s + batch.preprocess_s + batch.inference_s + batch.postprocess_s) / shared if batch else 0.0
        if push.state is JobState.SUCCEEDED and push.output is not None:
            outcome = decode_outcome(self._read(push.output))
            del self._open[push.id]
            self._collected.append(push.id)
            # The time that the whole piece would have taken.
            run_s *= len(piece) / max(1, len(piece) - sum(failure.code == NOT_RUN for failure in outcome.failures))
            return ShardEnd(piece, outcome, run_s=run_s, device_s=batch.inference_s / shared if batch else 0.0)
        del self._open[push.id]
        code = push.error_code or push.state.value
        log.info("shard_failed", extra={"job": str(push.id), "rows": len(piece), "code": code})
        message = push.error_message or f"the shard ended {push.state.value}"
        return ShardEnd(piece, None, RowError(code, message), run_s=run_s)

    def _forget(self) -> None:
        """Drop the records and outputs of collected shards, which would fill the store's memory until their results expire.
        Inputs are not deleted here: a failover may undo the end of a shard (D141).
        """
        # D43: a resume submits its shards again and never asks for old ones.
        if not self._collected:
            return
        try:
            self._store.forget(self._collected)
        except StoreUnavailable as away:
            # They expire by themselves.
            log.warning("shards_not_forgotten", extra={"count": len(self._collected), "error": away.message})
        self._blobs.delete_all(self._output_blobs)
        self._collected.clear()
        self._output_blobs.clear()

    def _read(self, output: Payload) -> bytes:
        if not output.blob:
            return output.data
        data = self._blobs.get(output.blob)
        self._output_blobs.append(output.blob)
        return data

    def withdraw(self) -> list[ShardPiece]:
        """Take back the shards that no worker runs, if the store answers; returns their pieces."""
        pieces = [piece for _, piece in self._waiting]
        self._waiting.clear()
        jobs = list(self._open)
        try:
            records = self._store.results(jobs)
            waiting = [job for job, record in zip(jobs, records, strict=True) if record is None or record[0].state in _NOT_RUN]
            for job in waiting:
                # A worker may claim the job just before: its rows then run, but count as not reached.
                self._store.cancel(job)
                pieces.append(self._open.pop(job))
        except StoreUnavailable as away:
            log.warning("shards_not_cancelled", extra={"count": len(self._open), "error": away.message})
        return pieces

    def cancel(self) -> list[ShardPiece]:
        """Cancel all shards that have not ended, if the store answers; does not wait for running ones. Returns their pieces."""
        pieces = [piece for _, piece in self._waiting] + list(self._open.values())
        self._waiting.clear()
        try:
            for job in self._open:
                self._store.cancel(job)
        except StoreUnavailable as away:
            log.warning("shards_not_cancelled", extra={"count": len(self._open), "error": away.message})
        self._open.clear()
        return pieces

    def _back_off(self, reason: str) -> None:
        self.note = reason
        self._retry_at = time.monotonic() + self._failures.count_failure()

"""The job store's interface for workers, tests and tools: one method per Redis Function, of the same name."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from penstock.broker.records import (
    BatchStamp,
    Claim,
    ClaimRequest,
    Ending,
    Followed,
    GiveBack,
    KeptInput,
    LeaseRenewal,
    NewJob,
    QueueStats,
    Repair,
    Report,
    Reported,
    Settled,
    Submitted,
    SweepReport,
)
from penstock.job import Job, JobId, Payload
from penstock.model_spec import ModelInfo, WorkerInfo


class ReleaseReason(StrEnum):
    """Why a leased job goes back unfinished. Only `CRASHED` is charged: attempt kept, crash + 1, next run alone."""

    DRAIN = "drain"
    UNSTARTED = "unstarted"
    TOO_BIG = "too_big"
    CRASHED = "crashed"


class JobIndex(StrEnum):
    """The lists of jobs that are kept, of all owners and of each."""

    ALL = "index"
    INBOX = "inbox"  # failed, dead or expired, and not yet replayed or dismissed
    TAGGED = "tagged"  # of each tag


class CancelStatus(StrEnum):
    CANCELLED = "cancelled"  # the job was waiting: it ended at once
    REQUESTED = "requested"  # the job runs: it is flagged, and its output will be dropped
    FINAL = "final"  # the job had ended before
    MISSING = "missing"  # the job never existed, was collected, or belongs to another owner


class JobStore(Protocol):
    """Every call is one atomic, durable step; raises `StoreUnavailable` when Redis is away.

    After a lost reply every call but `claim` may be repeated: a repeated claim would take a second batch.
    """

    def submit(self, jobs: Sequence[NewJob], *, max_depth: int = 10_000) -> list[Submitted]:
        """Returns one answer per job, in order. Those of one queue are stored in one step, up to a thousand."""
        ...

    def close_queue(self, queue: str) -> None:
        """From now on no new job is stored there, but replays of its own jobs; what is known is answered as before."""
        ...

    def claim(self, request: ClaimRequest) -> Claim: ...

    def withdraw(self, queue: str, version: str, worker: str) -> bool:
        """End the worker's offer. False if there is none: a submit may have used it, and the answer is on the way."""
        ...

    def extend(
        self, queue: str, worker: str, *, lease_s: float, max_run_s: float, progressed: Sequence[JobId] = ()
    ) -> LeaseRenewal:
        """Push the worker's lease forward by `lease_s`; jobs held longer than `max_run_s` are taken back and named.

        For `progressed`, jobs that showed a sign of life since, that time starts again.
        """
        ...

    def report(self, reports: Sequence[Report]) -> list[Reported]:
        """Note how far jobs of one queue are, and append to their streams; fenced by token, one answer per item.

        The first chunk of a stream that begins anew replaces what an earlier one left.
        """
        ...

    def finish(self, endings: Sequence[Ending], *, worker: str, stamp: BatchStamp) -> list[Settled]:
        """Settle jobs of one queue, each with its verdict; fenced by token, one answer per item."""
        ...

    def retry(
        self, items: Sequence[GiveBack], *, worker: str, delay_s: float, code: str, message: str, traceback: str = ""
    ) -> list[Settled]:
        """Put jobs aside for `delay_s`; a job at its limit of attempts ends FAILED with `code` and `message`."""
        ...

    def release(self, items: Sequence[GiveBack], *, worker: str, reason: ReleaseReason, detail: str = "") -> list[Settled]:
        """Queue jobs again. `detail`: how the process of a `CRASHED` run died, for the error of a job that is given up."""
        ...

    def sweep(self, queue: str, *, gone: Sequence[str] = (), limit: int = 1_000) -> SweepReport:
        """Take back the jobs of workers that are `gone` or whose lease has passed; promote, expire and collect what is due.

        One call moves at most `limit` jobs, however much is due; the report says whether to call again.
        """
        ...

    def cancel(self, job: JobId, *, owner: str = "") -> CancelStatus: ...

    def forget(self, jobs: Sequence[JobId]) -> int:
        """Drop succeeded jobs of one queue before their time; returns how many were dropped. No tombstone stays.

        The caller has taken their outputs and deletes their blobs. Other jobs stay in the inbox to be replayed.
        """
        ...

    def reconcile(self, queue: str, *, cursor: str = "0", limit: int = 1_000) -> Repair: ...

    def read(self, job: JobId) -> Job | None:
        """The record with its place in the queue, or None if the job never existed or was collected."""
        ...

    def traceback(self, job: JobId) -> str:
        """What the model's code raised in the job's last attempt; empty if it is not kept, or the attempt raised nothing."""
        ...

    def result(self, job: JobId) -> tuple[Job, Payload | None] | None: ...

    def input(self, job: JobId) -> KeptInput | None:
        """The job's input, inline or by its blob's name; None if the job is unknown or its input is no longer kept.

        The blob may have been deleted although the record names it.
        """
        ...

    def follow(
        self, job: JobId, *, mark: str = "", seen: int = 0, limit: int = 256, with_output: bool = False
    ) -> Followed | None:
        """The record, and the next chunks for a reader who saw so many of the stream with that mark.

        Of a stream with another mark, the chunks from the first one on. None if the job never existed or was collected.
        """
        ...

    def collected_owner(self, job: JobId) -> str | None:
        """The owner of a collected job, while its tombstone lives; else None."""
        ...

    def was_collected(self, job: JobId) -> bool:
        """True while the tombstone of a collected job lives."""
        ...

    def dismiss(self, jobs: Sequence[JobId]) -> int:
        """Take jobs of one queue off the failed inbox; returns how many were there."""
        ...

    def newest(
        self, queue: str, index: JobIndex = JobIndex.ALL, *, owner: str = "", before: str = "", limit: int = 100, tag: str = ""
    ) -> list[JobId]:
        """The jobs of an index, newest first, at most `limit`, with serials smaller than `before`. `owner` "": those of all.

        `tag` names the jobs of TAGGED.
        """
        ...

    def records(self, jobs: Sequence[JobId]) -> list[Job]:
        """The records of jobs of one queue, in their order, without those that are not known."""
        ...

    def stats(self, queue: str) -> QueueStats: ...

    def models(self) -> list[ModelInfo]: ...

    def announce_model(self, info: ModelInfo) -> None: ...

    def workers(self) -> list[WorkerInfo]: ...

    def announce_worker(self, info: WorkerInfo, *, ttl_s: float = 20.0) -> int | None:
        """The registry's edition, another number once what workers serve has changed; None from a store that counts none."""
        ...

    def withdraw_worker(self, name: str) -> None: ...

"""One job: its states, the moves between them, and the record that every reader sees."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from penstock.job_id import JobId


class JobState(StrEnum):
    """The store's own states. Callers see `public`, which has six."""

    QUEUED = "queued"
    LEASED = "leased"
    DELAYED = "delayed"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    DEAD = "dead"

    @property
    def final(self) -> bool:
        return self in FINAL

    @property
    def public(self) -> str:
        """queued, running, succeeded, failed, cancelled or expired."""
        return _PUBLIC.get(self, self.value)


FINAL = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED, JobState.DEAD})
PUBLIC_STATES = ("queued", "running", "succeeded", "failed", "cancelled", "expired")
_PUBLIC = {JobState.LEASED: "running", JobState.DELAYED: "queued", JobState.DEAD: "failed"}

# The moves that the functions of the store make, and no others: tests/contract/test_moves.py holds the Lua to this table.
# QUEUED never becomes DEAD, because giving a job up needs an attempt.
MOVES: dict[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.LEASED, JobState.CANCELLED, JobState.EXPIRED}),
    JobState.LEASED: frozenset(JobState) - {JobState.LEASED},
    JobState.DELAYED: frozenset({JobState.QUEUED, JobState.CANCELLED, JobState.EXPIRED}),
}


class Priority(StrEnum):
    """Who goes first. The value is what callers write; `band` is the place in the queue."""

    INTERACTIVE = "interactive"
    BULK = "bulk"

    @property
    def band(self) -> int:
        return 0 if self is Priority.INTERACTIVE else 9


# The late band holds jobs whose deadline would force a tiny batch. kombu's priority steps are 0, 3, 6 and 9, and stock Flower
# adds those four up.
LATE_BAND = 6
BANDS = (0, LATE_BAND, 9)


class Call(StrEnum):
    """What is asked of the model. The value is stored with a job; the usual one is empty, which takes no memory."""

    PREDICT = ""
    EXPLAIN = "explain"
    # The input holds many rows (see `penstock.shard`), and so does the output.
    SHARD = "shard"


@dataclass(frozen=True, slots=True)
class JobError:
    """Why a job did not succeed: a stable code, a sentence for the caller, and whether the same input may work later."""

    code: str
    message: str
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """The batch that a job ran in, and the job's `place` in it, from 1. `reason` is why the batch was released (idle, full,
    wait, deadline, bucket, drain, solo, bulk).

    Seconds in the order of events: `batch_wait_s` from the claim until the inputs were touched, `decode_s`, `preprocess_s`,
    `device_wait_s` until the device was free, `inference_s`, `postprocess_s`.
    """

    id: str
    size: int
    reason: str
    preprocess_s: float = 0.0
    inference_s: float = 0.0
    postprocess_s: float = 0.0
    worker: str = ""
    batch_wait_s: float = 0.0
    decode_s: float = 0.0
    device_wait_s: float = 0.0
    place: int = 0


@dataclass(frozen=True, slots=True)
class Attempt:
    """One lease of a job. `number` counts all claims from 1, also those that were not charged. Moments are as in `Job`.

    `end` is empty while the attempt runs, else how it ended: released, retried, crashed, worker_lost, or the job's final public
    state. `delay_s` is the delay before the next attempt, at least. `worker` names the slot's incarnation that held the lease.
    """

    number: int
    worker: str
    batch: str
    claimed_at: float
    ended_at: float | None = None
    end: str = ""
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The sums of attempts that the record does not list, so that it stays small however often its job is claimed."""

    count: int = 0
    spent_s: float = 0.0
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Job:
    """The store's record of one job. Moments are Unix seconds by Redis' clock; absent ones have not happened.

    `queued_behind`: the number of its owner's jobs before it when it was stored. `tries`: its first and last attempts, in
    order. `trace`: the W3C `traceparent` of its request and, behind a space, the `tracestate`; empty without one. `replay_of`
    and `replayed_as` link a job with the job whose input it repeats; an old job that was repeated several times names the
    last one.
    """

    id: JobId
    state: JobState
    version: str
    priority: Priority
    created_at: float
    deadline_at: float
    attempts: int = 0
    crashes: int = 0
    owner: str = ""
    content_type: str = "application/json"
    started_at: float | None = None
    finished_at: float | None = None
    cancel_requested: bool = False
    error: JobError | None = None
    batch: BatchRecord | None = None
    position: int | None = None
    queued_behind: int = 0
    tries: tuple[Attempt, ...] = ()
    left_out: LeftOut = LeftOut()
    trace: str = ""
    replay_of: JobId | None = None
    replayed_as: JobId | None = None
    call: Call = Call.PREDICT

    @property
    def model(self) -> str:
        return self.id.model


@dataclass(frozen=True, slots=True)
class Payload:
    """Bytes with their media type: either the bytes themselves (`data`), or the name of a blob that has them (`blob`)."""

    content_type: str
    data: bytes = b""
    blob: str = ""


@dataclass(frozen=True, slots=True)
class BlobPlace:
    """Where payloads are kept that are too large for a record: an object store at `url`, or else files in `folder`.

    `copies_dir` is where this machine keeps copies of objects while a model process reads them.
    """

    folder: Path
    url: str = ""
    copies_dir: Path = Path("blob-copies")

"""Inputs and results of the store's transitions, and what it publishes: plain frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from penstock.job import BatchRecord, Call, Job, JobError, JobId, JobState, Payload, Priority, StreamPart


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to be stored. `deadline_s` and `result_ttl_s` count from the submit by Redis' clock.

    `reply_to` names the gateway channel to which the job's end is pushed. `max_open_jobs` limits the owner's jobs of this model
    that have not ended, this one included (0: no limit). `trace`: as in `Job`. `replay_of`: the ended job of the same model
    whose input this one repeats, which leaves the inbox. With `call` SHARD the job holds many rows, is bulk whatever its
    `priority`, and waits in a line of its own. The job is DELAYED for `delay_s` seconds before it is queued; they are a part of
    `deadline_s`.
    `tags`: words by which its caller finds it, each without a comma. `words`: what extensions are to know of the job, by their
    names; only the extension reads its word. `placing`: by which number of partitions its key was placed (`ModelInfo.placing`);
    None: the key can be in no other queue.
    """

    id: JobId
    version: str
    input: Payload
    priority: Priority = Priority.INTERACTIVE
    deadline_s: float = 3_600.0
    result_ttl_s: float = 86_400.0
    owner: str = ""
    idempotency_key: str = ""
    fingerprint: str = ""
    max_attempts: int = 3
    max_crashes: int = 2
    reply_to: str = ""
    max_open_jobs: int = 0
    call: Call = Call.PREDICT
    trace: str = ""
    replay_of: JobId | None = None
    delay_s: float = 0.0
    tags: tuple[str, ...] = ()
    words: Mapping[str, bytes | str] = field(default_factory=dict)
    placing: int | None = None


@dataclass(frozen=True, slots=True)
class KeptInput:
    """A job's input, inline or by its blob's name, and what was asked of the model."""

    payload: Payload
    call: Call = Call.PREDICT


class SubmitStatus(StrEnum):
    CREATED = "created"
    EXISTING = "existing"  # same idempotency key, same fingerprint: `id` is the first job's
    KEY_REUSED = "key_reused"  # same idempotency key, other fingerprint: nothing stored
    FULL = "full"  # the queue is at its limit: nothing stored
    RETIRED = "retired"  # the queue takes no jobs of this version, or none at all: nothing stored
    MOVED = "moved"  # the key was placed by an older number of partitions: nothing stored
    QUOTA = "quota"  # the owner is at its limit of open jobs: nothing stored
    UNDELIVERED = "undelivered"  # too many events of the owner are still to be delivered: nothing stored


@dataclass(frozen=True, slots=True)
class Submitted:
    """`depth` is the number of jobs waiting in the job's queue after this call."""

    status: SubmitStatus
    id: JobId
    depth: int


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """The request of a slot that is idle, or will be soon. Durations in seconds.

    The call takes at most `limit` jobs of `version` from `queue`. It takes fewer than `enough` only if nothing else of that
    queue is running (`idle`), the first job of the batch has waited `max_wait_s` (`wait`), or its slack is below `hurry_s`
    (`deadline`); else it takes none and says when to ask again. A full batch of `limit` needs `min_slack_s` of slack, and
    `slack_per_item_s` less for each missing item; jobs with less slack than the possible batch needs step over to the late
    band. `limit_bytes` bounds the inline input of one batch. `shard`: take the first shard of `version` in line, or nothing;
    without it a shard comes only as a suspect, alone. `offer`: if nothing waits, the next submit may make this claim on
    behalf of `worker`, whose channel then gets the answer (`HandedOver`); the worker's next claim replaces the offer or ends
    it.
    """

    queue: str
    version: str
    worker: str
    nonce: str
    limit: int
    enough: int = 1
    max_wait_s: float = 0.0
    min_slack_s: float = 0.0
    slack_per_item_s: float = 0.0
    hurry_s: float = 0.0
    lease_s: float = 15.0
    limit_bytes: int = 4 * 1024 * 1024
    shard: bool = False
    offer: bool = False


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """One job that is now leased to the caller; `token` proves the lease. Moments are Unix seconds by Redis' clock.

    `created_at`: since when the job waits, which is the end of its delay if it was submitted with one.
    """

    id: JobId
    token: str
    input: Payload
    priority: Priority
    created_at: float
    deadline_at: float
    attempts: int
    crashes: int
    call: Call = Call.PREDICT
    trace: str = ""
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """A job's change that its holder did not make: `lost` with its worker, or `finished` in `state` without a run.

    `worker` and `batch` are the last that held the job, if any did.
    """

    id: JobId
    event: str
    state: JobState
    version: str
    worker: str = ""
    batch: str = ""
    trace: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """The answer to a `ClaimRequest`.

    `reason` is why the batch was released: `idle`, `full`, `wait`, `deadline`, `solo` (a suspect, alone), `bulk` (a shard);
    empty if `jobs` is. `depth`: waiting jobs that ordinary claims can take. `shards`: waiting shards of this version.
    `retry_in_s`: when to ask again if jobs wait but none was taken (None: wait for a wake-up). `now`: Redis' clock. `messages`:
    what extensions hand to the worker, to be dealt with by the caller. `stepped_over`: jobs this call moved to the
    late band. `expired`: jobs this call ended unrun, past their deadline; `changes` names them. `gone`: jobs in line whose
    record was evicted or deleted, and which left the line.
    """

    jobs: tuple[ClaimedJob, ...] = ()
    reason: str = ""
    depth: int = 0
    retry_in_s: float | None = None
    now: float = 0.0
    messages: tuple[bytes, ...] = ()
    stepped_over: int = 0
    expired: int = 0
    changes: tuple[Change, ...] = ()
    shards: int = 0
    gone: int = 0


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of one leased job, for `finish`. `state` is final and not CANCELLED; `error_*` are empty on success.

    `traceback` is for the developer's eyes, and mostly empty.
    """

    id: JobId
    token: str
    state: JobState
    output: Payload | None = None
    error_code: str = ""
    error_message: str = ""
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class BatchStamp:
    """What every job of a settled batch records of the batch. Durations in seconds; see `BatchRecord`."""

    id: str = ""
    size: int = 1
    reason: str = ""
    preprocess_s: float = 0.0
    inference_s: float = 0.0
    postprocess_s: float = 0.0
    batch_wait_s: float = 0.0
    decode_s: float = 0.0
    device_wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class GiveBack:
    """One leased job returned without a verdict, for `release` and `retry`. `trace` is for the log."""

    id: JobId
    token: str
    trace: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What one leased job has to say while it runs. `fraction` None: no progress to note.

    `chunks` are the next ones of its stream, which restarted `restarts` times in this attempt and has `before` earlier chunks.
    """

    id: JobId
    token: str
    fraction: float | None = None
    note: str = ""
    restarts: int = 0
    before: int = 0
    chunks: tuple[bytes, ...] = ()


class Reported(StrEnum):
    """The store's answer to a report."""

    OK = "ok"
    STALE = "stale"  # the caller does not hold the job any more: nothing was written
    CANCELLED = "cancelled"  # noted; a cancel of the job was requested


class Settled(StrEnum):
    """The store's answer to one item of a finish, retry or release."""

    OK = "ok"
    ALREADY = "already"  # the same token settled it before: a repeat after a lost reply
    STALE = "stale"  # the caller does not hold the job any more: nothing was written
    CANCELLED = "cancelled"  # a cancel request stood: the job ended CANCELLED, the output was dropped
    DEAD = "dead"  # the limit of attempts or crashes was reached: the job was given up


@dataclass(frozen=True, slots=True)
class LeaseRenewal:
    """The answer to `extend`. `lost`: the worker's lease was taken back, and none of the jobs it held may be settled."""

    lost: bool = False
    cancelled: tuple[JobId, ...] = ()
    overrun: tuple[JobId, ...] = ()


@dataclass(frozen=True, slots=True)
class Absent:
    """Which lease holders of one queue are missing. `looked` is false while another sweeper looks and sweeps for all.

    `fresh`: how many are missing since this look; a second look soon tells whether they come back. `gone`: who did not.
    """

    looked: bool = True
    fresh: int = 0
    gone: tuple[str, ...] = ()


# What to do if the record of a live job is gone: penstock itself never deletes one.
GONE_HINT = "the store evicted or lost records: set maxmemory-policy noeviction, and let no other program delete its keys"


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What one `sweep` did, promotions and expiries included. `blobs` may now be deleted.

    `gone`: jobs that stood in a line but whose record was evicted or deleted. `more`: the limit was met, and more is due.
    """

    requeued: int = 0
    dead: int = 0
    expired: int = 0
    cancelled: int = 0
    promoted: int = 0
    collected: int = 0
    blobs: tuple[str, ...] = ()
    workers_lost: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    gone: int = 0
    more: bool = False

    @property
    def moved(self) -> int:
        return self.requeued + self.dead + self.expired + self.cancelled + self.promoted + self.collected


@dataclass(frozen=True, slots=True)
class Repair:
    """What `reconcile` found wrong and mended; all but `scanned` must stay 0. `cursor` continues the scan; "0" is its end.

    `gone`: jobs whose record was evicted or deleted; what was left of them has been cleared. `is_more_due`: others may be wrong
    as well, and the next page is to be looked at soon.
    """

    cursor: str = "0"
    scanned: int = 0
    orphans: int = 0
    tickets: int = 0
    gone: int = 0
    is_more_due: bool = False


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Counts of one version's jobs: `waiting`, delayed ones included, and `running` under a lease.

    With more than a thousand delayed jobs their versions are not read: the delayed jobs of all versions count.
    """

    waiting: int
    running: int


@dataclass(frozen=True, slots=True)
class QueueStats:
    """One model's queue at one moment, by Redis' clock. `ready` and `oldest_age_s` are keyed by band (0, 6, 9).

    `solo` jobs (suspects) are served before or between those of band 0, and their age counts there. An age is exact for a
    line of up to 256 jobs, and for jobs with the same time to their deadline; in a longer mixed line it is that of the oldest
    of 256. `open`: jobs that have not ended, by owner, and `planned`: those of them that wait for their start; jobs without an
    owner are not counted. `inbox`: jobs that ended failed, dead or expired and have not been replayed. `due`: delayed jobs
    whose time has come, which the next sweep of a worker makes ready.
    """

    model: str
    now: float
    ready: dict[int, int] = field(default_factory=dict)
    oldest_age_s: dict[int, float] = field(default_factory=dict)
    solo: int = 0
    delayed: int = 0
    leased: int = 0
    inbox: int = 0
    accepted: int = 0
    ended: dict[str, int] = field(default_factory=dict)  # by final state
    counters: dict[str, int] = field(default_factory=dict)  # redelivered:<why>, retried, stale, collected, repaired, ...
    open: dict[str, int] = field(default_factory=dict)
    planned: dict[str, int] = field(default_factory=dict)
    due: int = 0

    @property
    def depth(self) -> int:
        return sum(self.ready.values()) + self.solo


@dataclass(frozen=True, slots=True)
class Followed:
    """What a reader of a job's events looks at: the record, what the stream holds beyond what the reader saw, the output.

    `output`: None if the job did not succeed, and empty unless it was asked for.
    """

    job: Job
    stream: StreamPart = field(default_factory=StreamPart)
    output: Payload | None = None


# The limit for the chunks in one push, and for those that a gateway keeps for one reader.
PUSHED_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Push:
    """A state change pushed to a gateway that watches the job. `output` and the error are set at the end only.

    `stream`: set if nothing has changed but the job's stream; it has the new chunks if they are small, and else none.
    `version`: the one that ran, where it was read from the record.
    """

    id: JobId
    state: JobState
    output: Payload | None = None
    error_code: str = ""
    error_message: str = ""
    batch: BatchRecord | None = None
    stream: StreamPart | None = None
    version: str = ""

    def joined(self, later: Push) -> Push:
        """Both pushes as one, for a reader that has received neither. What is kept for a slow reader does not grow (D78)."""
        if self.stream is None or later.stream is None:
            return later if later.stream is None else replace(later, stream=None)
        return replace(later, stream=self.stream.joined(later.stream, most_bytes=PUSHED_BYTES))

    @classmethod
    def of_end(cls, job: Job, output: Payload | None) -> Push | None:
        """The end of a job, read from its record; None for a job that has not ended."""
        if not job.state.final:
            return None
        error = job.error or JobError("", "")
        return cls(job.id, job.state, output, error.code, error.message, job.batch)


@dataclass(frozen=True, slots=True)
class Wake:
    """The model has work."""


@dataclass(frozen=True, slots=True)
class CancelRequested:
    id: JobId


@dataclass(frozen=True, slots=True)
class HandedOver:
    """The answer to the claim that the slot had offered, made by a submit. The jobs are leased to the slot under `nonce`."""

    nonce: str
    claim: Claim


@dataclass(frozen=True, slots=True)
class RolloutChanged:
    """An operator changed a model, maybe another one than this slot's."""


Message = Wake | CancelRequested | HandedOver | RolloutChanged

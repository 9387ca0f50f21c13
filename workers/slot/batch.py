"""A slot's record of a batch, from its claim to the endings, retries and releases that the store gets. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import compress
from typing import TYPE_CHECKING

from msgspec import structs

from penstock.backoff import Backoff
from penstock.broker.contract import ReleaseReason
from penstock.broker.records import BatchStamp, ClaimedJob, Ending, GiveBack, Settled
from penstock.errors import InternalError
from penstock.job import Call, JobState, Payload, is_own
from penstock.model_spec import MAX_BATCH_SIZE, Limits
from penstock.shard import SHARD_MEDIA
from penstock.workers.ipc.frames import EXPIRED_CODE, INPUT_READING_CODE, BatchDone, Failed, Item, JobFacts, Outcome, Output

if TYPE_CHECKING:
    from penstock.broker.blobs.files import BlobFile

SOLO = "solo"
BULK = "bulk"
_NO_STAMP = BatchStamp()
_DEFAULTS = Limits()
_SHARD_INLINE_BYTES = 1_024

# The longest pause before another attempt, unless the first one is longer.
_MOST_RETRY_DELAY_S = 60.0


@dataclass(frozen=True, slots=True)
class Batch:
    """Jobs leased to one slot, from their claim to their settlement: the slot's one record of them.

    Fields below `device` are filled in on the way. `items`: the inputs, one per job. `fresh`: `device` was idle when the child
    got the batch. `profile_dir`: the folder in which the child records this batch's inference. `endings`: how the jobs ended,
    one per job. `urgent`: deadlines were near when it was claimed. `needless`: blobs of other jobs to
    delete once this one has succeeded. Moments are monotonic, except `leased_at`: the moment of the claim once more, as Unix
    time by Redis' clock.
    """

    jobs: tuple[ClaimedJob, ...]
    reason: str
    worker: str
    nonce: str
    claimed_at: float
    leased_at: float = 0.0
    device: str = ""
    items: tuple[Item, ...] = ()
    given_at: float = 0.0
    fresh: bool = False
    profile_dir: str = ""
    endings: tuple[Ending, ...] = ()
    stamp: BatchStamp = _NO_STAMP
    urgent: bool = False
    needless: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return len(self.jobs)

    @property
    def queue(self) -> str:
        """The queue that its jobs were claimed from."""
        return self.jobs[0].id.queue

    @property
    def is_solo(self) -> bool:
        return self.reason == SOLO

    @property
    def is_shard(self) -> bool:
        """Whether its one job holds the rows of a shard."""
        return self.jobs[0].call is Call.SHARD

    def accepted_at(self, job: ClaimedJob) -> float:
        """When the job was accepted, on this machine's monotonic clock."""
        return self.on_this_clock(job.created_at)

    def facts(self, job: ClaimedJob) -> JobFacts:
        """What a handler may ask about the job."""
        return JobFacts(str(job.id), job.attempts, job.priority.value, job.owner, self.on_this_clock(job.deadline_at))

    def on_this_clock(self, moment: float) -> float:
        """A moment by Redis' clock on this machine's monotonic clock."""
        # The claim is known on both clocks, so that a machine whose wall clock is wrong still measures right.
        return moment + self.claimed_at - self.leased_at


@dataclass(frozen=True, slots=True)
class ChildLoad:
    """The child's work: the number of batches, and the size and start of the batch at the device.

    `alone`: no other batch may join. `shards` are counted apart from `batches`: they delay no batch. `room`: how many more
    items a child takes that runs them side by side; None: it runs one batch after the other.
    """

    batches: int = 0
    size: int = 0
    since: float = 0.0
    alone: bool = False
    shards: int = 0
    room: int | None = None


IDLE = ChildLoad()


@dataclass(frozen=True, slots=True)
class Retry:
    """One job of `worker` to be tried again in `delay_s`, because its run ended with the retryable error `code`."""

    item: GiveBack
    worker: str
    delay_s: float
    code: str
    message: str
    traceback: str = ""

    @property
    def queue(self) -> str:
        return self.item.id.queue


@dataclass(frozen=True, slots=True)
class Release:
    """Jobs that `worker` gives back without an outcome. `detail`: how the process died, for jobs of a crashed one."""

    items: tuple[GiveBack, ...]
    worker: str
    reason: ReleaseReason
    detail: str = ""

    @property
    def queue(self) -> str:
        return self.items[0].id.queue

    def joined(self, other: Release) -> Release | None:
        """Both as one; None if they differ in more than their jobs, or are too many for one call."""
        # A worker's name is that of one queue.
        is_alike = (self.worker, self.reason, self.detail) == (other.worker, other.reason, other.detail)
        if not is_alike or len(self.items) + len(other.items) > MAX_BATCH_SIZE:
            return None
        return replace(self, items=self.items + other.items)


def with_inputs(batch: Batch, files: Mapping[str, BlobFile | None], *, asks: bool) -> tuple[Batch, list[ClaimedJob]]:
    """The batch with the items of those jobs whose inputs were found, and the other jobs.

    `files`: the blobs by name. `asks`: with the facts of each job.
    """
    pairs = [(job, _item(job, files)) for job in batch.jobs]
    missing = [job for job, item in pairs if item is None]
    jobs = batch.jobs if not missing else tuple(job for job, item in pairs if item is not None)
    items = tuple(_with_facts(batch, job, item) if asks else item for job, item in pairs if item is not None)
    return replace(batch, jobs=jobs, items=items), missing


def _with_facts(batch: Batch, job: ClaimedJob, item: Item) -> Item:
    return structs.replace(item, facts=batch.facts(job))


def _item(job: ClaimedJob, files: Mapping[str, BlobFile | None]) -> Item | None:
    if not job.input.blob:
        return Item(job.input.content_type, job.input.data, call=job.call)
    file = files[job.input.blob]
    if file is None:
        return None
    media, path = job.input.content_type, str(file.path)
    return Item(media, path=path, call=job.call, own=file.own, offset=file.offset, length=file.length, checksum=file.checksum)


def decide(
    batch: Batch, done: BatchDone, limits: Limits = _DEFAULTS, *, jitter: Callable[[], float] = random.random
) -> tuple[Batch, list[Retry]]:
    """The part of the batch that ended, with its endings, and a retry for each other job. `jitter` gives 0..1."""
    if len(done.outcomes) != batch.size:
        raise InternalError(f"batch {done.batch} had {batch.size} items and came back with {len(done.outcomes)} outcomes")
    endings: list[Ending] = []
    ended: list[ClaimedJob] = []
    retries: list[Retry] = []
    for job, outcome in zip(batch.jobs, done.outcomes, strict=True):
        if isinstance(outcome, Failed) and is_retryable(outcome, limits):
            delay_s = retry_delay_s(job.attempts, jitter(), limits)
            item = GiveBack(job.id, job.token, job.trace)
            retries.append(Retry(item, batch.worker, delay_s, outcome.code, outcome.message, outcome.traceback))
        else:
            endings.append(_ending(job, outcome))
            ended.append(job)
    return replace(batch, jobs=tuple(ended), endings=tuple(endings), stamp=stamp_of(batch, done)), retries


def sift_unread(batch: Batch, done: BatchDone) -> tuple[Batch, BatchDone, Batch]:
    """The part of the batch that ran, what became of it, and the part whose files had not arrived."""
    unread = [isinstance(one, Failed) and one.code == INPUT_READING_CODE for one in done.outcomes]
    if not any(unread) or len(unread) != batch.size:
        return batch, done, replace(batch, jobs=())
    ran = structs.replace(done, outcomes=[one for one, is_out in zip(done.outcomes, unread, strict=True) if not is_out])
    return _part(batch, [not is_out for is_out in unread]), ran, _part(batch, unread)


def _part(batch: Batch, chosen: Sequence[bool]) -> Batch:
    return replace(batch, jobs=tuple(compress(batch.jobs, chosen)), items=tuple(compress(batch.items, chosen)))


def _ending(job: ClaimedJob, outcome: Outcome) -> Ending:
    if isinstance(outcome, Output):
        return Ending(job.id, job.token, JobState.SUCCEEDED, Payload(outcome.content_type, outcome.data))
    return _failure(job, outcome.code, outcome.message, outcome.traceback)


def _failure(job: ClaimedJob, code: str, message: str, traceback: str = "") -> Ending:
    state = JobState.EXPIRED if code == EXPIRED_CODE else JobState.FAILED
    return Ending(job.id, job.token, state, error_code=code, error_message=message, traceback=traceback)


def fail(batch: Batch, jobs: Sequence[ClaimedJob], code: str, message: str, stamp: BatchStamp) -> Batch:
    """These jobs of the batch, all ended with the same error."""
    return replace(batch, jobs=tuple(jobs), endings=tuple(_failure(job, code, message) for job in jobs), stamp=stamp)


def is_retryable(failed: Failed, limits: Limits) -> bool:
    """Whether the handler says so, or the model's settings: they name its code, its exception, or a base class of that."""
    return failed.retryable or failed.code in limits.retry_on or any(kind in limits.retry_on for kind in failed.kinds)


def retry_delay_s(attempts: int, jitter: float, limits: Limits = _DEFAULTS) -> float:
    """Full jitter over delays that double, by default 1 s, 2 s, 4 s ... 60 s. `attempts` counts from 1."""
    delays = Backoff(limits.retry_delay_s, max(limits.retry_delay_s, _MOST_RETRY_DELAY_S), jitter=1.0)
    return delays.delay_s(max(1, attempts), chance=jitter)


def release(batch: Batch, reason: ReleaseReason, detail: str = "") -> Release:
    """All jobs of the batch, given back."""
    return Release(tuple(GiveBack(job.id, job.token, job.trace) for job in batch.jobs), batch.worker, reason, detail)


def stamp_of(batch: Batch, done: BatchDone) -> BatchStamp:
    # The stages of a shard are sums over its micro-batches, which overlap: they cannot be taken off its wait.
    in_child_s = 0.0 if batch.is_shard else done.decode_s + done.preprocess_s + done.device_wait_s
    return BatchStamp(
        id=batch.nonce,
        size=batch.size,
        reason=batch.reason,
        preprocess_s=done.preprocess_s,
        inference_s=done.inference_s,
        postprocess_s=done.postprocess_s,
        batch_wait_s=max(0.0, done.began_at - batch.claimed_at - in_child_s),
        decode_s=done.decode_s,
        device_wait_s=done.device_wait_s,
    )


def unrun_stamp(batch: Batch) -> BatchStamp:
    """The stamp of a batch, or a part of one, that the child never got."""
    return BatchStamp(batch.nonce, batch.size, batch.reason)


def stopped_stamp(batch: Batch, now: float) -> BatchStamp:
    """The stamp of a batch that was stopped while it ran: all its time in the child counts as inference."""
    waited_s = max(0.0, batch.given_at - batch.claimed_at)
    return BatchStamp(batch.nonce, batch.size, batch.reason, inference_s=max(0.0, now - batch.given_at), batch_wait_s=waited_s)


def blob_name(ending: Ending) -> str:
    """The name under which a large output is stored. It depends on the token: a run that lost its lease writes elsewhere."""
    return f"{ending.id.serial}.{blake2b(ending.token.encode(), digest_size=8).hexdigest()}.out"


def is_too_large(ending: Ending, inline_bytes: int) -> bool:
    """Whether an output goes to the blob store. Outputs of shards nearly always do: a whole run's would fill Redis' memory."""
    if ending.output is None:
        return False
    limit = _SHARD_INLINE_BYTES if ending.output.content_type == SHARD_MEDIA else inline_bytes
    return len(ending.output.data) > limit


def unneeded_blobs(batch: Batch, answers: Sequence[Settled]) -> tuple[list[str], list[tuple[str, str]]]:
    """Outputs that no caller will see; and blobs that no job needs any more (D13), each behind the serial of the job whose end
    made it needless.

    A stale job belongs to another worker now, and so does its input. Blobs that bear another job's serial are that one's.
    """
    unseen: list[str] = []
    needless: list[tuple[str, str]] = []
    for job, ending, answer in zip(batch.jobs, batch.endings, answers, strict=True):
        output = ending.output
        if answer in (Settled.STALE, Settled.CANCELLED) and output is not None and output.blob and is_own(job.id, output.blob):
            unseen.append(output.blob)
        is_done = answer is Settled.CANCELLED or (answer is not Settled.STALE and ending.state is JobState.SUCCEEDED)
        if is_done and job.input.blob and is_own(job.id, job.input.blob):
            needless.append((job.id.serial, job.input.blob))
        if batch.needless and is_done and answer is not Settled.CANCELLED:
            needless += [(job.id.serial, blob) for blob in batch.needless]
    return unseen, needless

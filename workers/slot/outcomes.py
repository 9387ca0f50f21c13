"""From what the child answered to what the store is told: one end, retry or return per job."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from penstock.backoff import Backoff
from penstock.broker.records import BatchStamp, ClaimedJob, Ending, GiveBack
from penstock.errors import InternalError
from penstock.job import JobState, Payload, Priority
from penstock.shard import SHARD_MEDIA
from penstock.workers.ipc.frames import BatchDone, Failed, Outcome, Output
from penstock.workers.slot.batcher import Batch

_RETRY = Backoff(1.0, 60.0, jitter=1.0)
_SHARD_INLINE_BYTES = 1_024


@dataclass(frozen=True, slots=True)
class Retry:
    """One job to be tried again in `delay_s`."""

    item: GiveBack
    delay_s: float
    code: str
    message: str


class Accepted(NamedTuple):
    """When a job was accepted, on this machine's monotonic clock, with which priority and in which trace."""

    priority: Priority
    at: float
    trace: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a batch that ran. `stamp` is what each of its jobs records of it; per ending, `inputs` holds the blob
    that its job had as its input, or an empty name, and `accepted` when that job came in.
    """

    endings: tuple[Ending, ...]
    retries: tuple[Retry, ...]
    stamp: BatchStamp
    inputs: tuple[str, ...] = ()
    accepted: tuple[Accepted, ...] = ()


def decide(held: Batch, done: BatchDone, *, jitter: Callable[[], float] = random.random) -> Verdict:
    """One ending or retry per job of `held`. `jitter` gives 0..1."""
    if len(done.outcomes) != held.size:
        raise InternalError(f"batch {done.batch} had {held.size} items and came back with {len(done.outcomes)} outcomes")
    endings: list[Ending] = []
    ended: list[ClaimedJob] = []
    retries: list[Retry] = []
    for job, outcome in zip(held.jobs, done.outcomes, strict=True):
        if isinstance(outcome, Failed) and outcome.retryable:
            retries.append(_retry(job, outcome, jitter()))
        else:
            endings.append(_ending(job, outcome))
            ended.append(job)
    inputs = tuple(job.input.blob for job in ended)
    return Verdict(tuple(endings), tuple(retries), stamp_of(held, done), inputs, accepted(held, ended))


def accepted(held: Batch, jobs: Iterable[ClaimedJob]) -> tuple[Accepted, ...]:
    # The claim is known on both clocks, so that a machine whose wall clock is wrong still measures right.
    shift = held.claimed_at - held.leased_at
    return tuple(Accepted(job.priority, job.created_at + shift, job.trace) for job in jobs)


def _ending(job: ClaimedJob, outcome: Outcome) -> Ending:
    if isinstance(outcome, Output):
        return Ending(job.id, job.token, JobState.SUCCEEDED, Payload(outcome.content_type, outcome.data))
    return failure(job, outcome.code, outcome.message)


def failure(job: ClaimedJob, code: str, message: str) -> Ending:
    return Ending(job.id, job.token, JobState.FAILED, error_code=code, error_message=message)


def _retry(job: ClaimedJob, outcome: Failed, jitter: float) -> Retry:
    return Retry(GiveBack(job.id, job.token, job.trace), retry_delay_s(job.attempts, jitter), outcome.code, outcome.message)


def retry_delay_s(attempts: int, jitter: float) -> float:
    """Full jitter over 1 s, 2 s, 4 s ... 60 s. `attempts` counts from 1."""
    return _RETRY.delay_s(max(1, attempts), chance=jitter)


def stamp_of(held: Batch, done: BatchDone) -> BatchStamp:
    # The stages of a shard are sums over its micro-batches, and run beside each other.
    in_child_s = 0.0 if held.shard else done.decode_s + done.preprocess_s + done.device_wait_s
    return BatchStamp(
        id=held.nonce,
        size=held.size,
        reason=held.reason,
        preprocess_s=done.preprocess_s,
        inference_s=done.inference_s,
        postprocess_s=done.postprocess_s,
        batch_wait_s=max(0.0, done.began_at - held.claimed_at - in_child_s),
        decode_s=done.decode_s,
        device_wait_s=done.device_wait_s,
    )


def stopped_stamp(held: Batch, now: float) -> BatchStamp:
    """Of a batch that was stopped while it ran: all its time in the child counts as its run."""
    waited_s = max(0.0, held.given_at - held.claimed_at)
    return BatchStamp(held.nonce, held.size, held.reason, inference_s=max(0.0, now - held.given_at), batch_wait_s=waited_s)


def give_back(jobs: Sequence[ClaimedJob]) -> list[GiveBack]:
    return [GiveBack(job.id, job.token, job.trace) for job in jobs]


def blob_name(ending: Ending) -> str:
    """The name under which a large output is stored: its token is in it, so that a run that lost its lease writes elsewhere."""
    return f"{ending.id.serial}.{blake2b(ending.token.encode(), digest_size=8).hexdigest()}.out"


def too_large(ending: Ending, inline_bytes: int) -> bool:
    """Whether an output goes to the blob store. Those of shards do: a run's would pile up in memory."""
    if ending.output is None:
        return False
    limit = _SHARD_INLINE_BYTES if ending.output.content_type == SHARD_MEDIA else inline_bytes
    return len(ending.output.data) > limit

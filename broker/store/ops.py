"""The store's operations, each described once: function, key, arguments, and what the reply means. Pure.

`RedisStore` and `AsyncStore` are two transports for these values: one for a thread, one for an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from penstock.broker.contract import CancelStatus, JobIndex, ReleaseReason
from penstock.broker.records import (
    Absent,
    BatchStamp,
    Claim,
    ClaimRequest,
    Ending,
    GiveBack,
    KeptInput,
    LeaseRenewal,
    NewJob,
    QueueStats,
    Repair,
    Settled,
    Submitted,
    SweepReport,
    Unfinished,
)
from penstock.broker.store import encoding as enc
from penstock.broker.store.encoding import Arg, ms, prefix
from penstock.job import Job, JobId, Payload

Reply = TypeVar("Reply")
Ended = tuple[Job, Payload | None]

_WITHOUT_OUTPUT, _WITH_OUTPUT = "0", "1"


class Operation(NamedTuple, Generic[Reply]):
    """One call of a Redis Function. `function` is its name without the library's hash, `key` its only key."""

    function: str
    key: str
    args: Sequence[Arg]
    decode: Callable[[Any], Reply]

    def words(self, suffix: str) -> tuple[Arg, ...]:
        """The Redis command that calls the function in the library with this suffix."""
        return ("FCALL", f"penstock_{self.function}_{suffix}", 1, self.key, *self.args)


class Command(NamedTuple, Generic[Reply]):
    """One plain Redis command, for what needs no function: the words of the command, and what its reply means."""

    words: Sequence[Arg]
    decode: Callable[[Any], Reply]


def submit(jobs: Sequence[NewJob], max_depth: int) -> Operation[list[Submitted]]:
    model = jobs[0].id.model
    return Operation("submit", prefix(model), enc.submit_args(jobs, max_depth), partial(enc.submit_reply, model=model))


def claim(request: ClaimRequest) -> Operation[Claim]:
    model = request.model
    return Operation("claim", prefix(model), enc.claim_args(request), partial(enc.claim_reply, model=model))


def extend(
    model: str, worker: str, *, lease_s: float, max_run_s: float, progressed: Sequence[JobId]
) -> Operation[LeaseRenewal]:
    args: list[Arg] = [worker, ms(lease_s), ms(max_run_s), *(job.serial for job in progressed)]
    return Operation("extend", prefix(model), args, partial(enc.extend_reply, model=model))


def finish(endings: Sequence[Ending], *, worker: str, stamp: BatchStamp) -> Operation[list[Settled]]:
    return Operation("finish", prefix(endings[0].id.model), enc.finish_args(endings, worker, stamp), enc.settled_reply)


def retry(items: Sequence[GiveBack], *, worker: str, delay_s: float, code: str, message: str) -> Operation[list[Settled]]:
    args: list[Arg] = [worker, ms(delay_s), code, message, *enc.pairs(items)]
    return Operation("retry", prefix(items[0].id.model), args, enc.settled_reply)


def release(items: Sequence[GiveBack], *, worker: str, reason: ReleaseReason, detail: str) -> Operation[list[Settled]]:
    args: list[Arg] = [worker, reason.value, detail, *enc.pairs(items)]
    return Operation("release", prefix(items[0].id.model), args, enc.settled_reply)


def sweep(model: str, *, gone: Sequence[str], limit: int) -> Operation[SweepReport]:
    return Operation("sweep", prefix(model), [limit, *gone], partial(enc.sweep_reply, model=model))


def absent(model: str, *, sweeper: str, pace_s: float, again_s: float) -> Operation[Absent]:
    return Operation("absent", prefix(model), [sweeper, ms(pace_s), ms(again_s)], enc.absent_reply)


def cancel(job: JobId, *, owner: str) -> Operation[CancelStatus]:
    return Operation("cancel", prefix(job.model), [job.serial, owner], lambda reply: CancelStatus(reply.decode()))


def forget(jobs: Sequence[JobId]) -> Operation[int]:
    return Operation("forget", prefix(jobs[0].model), [job.serial for job in jobs], int)


def dismiss(jobs: Sequence[JobId]) -> Operation[int]:
    return Operation("dismiss", prefix(jobs[0].model), [job.serial for job in jobs], int)


def reconcile(model: str, *, cursor: str, limit: int) -> Operation[Repair]:
    return Operation("reconcile", prefix(model), [cursor, limit], enc.repair_reply)


def reconcile_next(model: str, *, pace_s: float, limit: int) -> Operation[Repair]:
    return Operation("reconcile_next", prefix(model), [ms(pace_s), limit], enc.repair_reply)


def reject_foreign(model: str, message: bytes, *, celery_id: str, reason: str) -> Operation[None]:
    return Operation("reject_foreign", prefix(model), [message, celery_id, reason], lambda _: None)


def read(job: JobId) -> Operation[Job | None]:
    return Operation("read", prefix(job.model), [job.serial, _WITHOUT_OUTPUT], partial(enc.record_reply, job=job))


def result(job: JobId) -> Operation[Ended | None]:
    return Operation("read", prefix(job.model), [job.serial, _WITH_OUTPUT], partial(enc.read_reply, job=job))


def watch(job: JobId, *, channel: str, every_change: bool) -> Operation[Job | None]:
    mark = "+" if every_change else "="
    return Operation("watch", prefix(job.model), [job.serial, mark + channel], partial(enc.record_reply, job=job))


def ended(jobs: Sequence[JobId]) -> Operation[list[JobId]]:
    """Which of these jobs of one model have ended or are unknown."""
    model = jobs[0].model
    return Operation(
        "ended", prefix(model), [job.serial for job in jobs], lambda reply: [JobId(serial.decode(), model) for serial in reply]
    )


def kept_input(job: JobId) -> Operation[KeptInput | None]:
    return Operation("input", prefix(job.model), [job.serial], enc.input_reply)


def newest(model: str, index: JobIndex, *, owner: str, before: str, limit: int) -> Operation[list[JobId]]:
    args: list[Arg] = [index.value, owner, before, limit]
    return Operation("newest", prefix(model), args, lambda reply: [JobId(serial.decode(), model) for serial in reply])


def records(jobs: Sequence[JobId]) -> Operation[list[Job]]:
    model = jobs[0].model
    return Operation("records", prefix(model), [job.serial for job in jobs], partial(enc.list_reply, model=model))


def stats(model: str) -> Operation[QueueStats]:
    return Operation("stats", prefix(model), [], partial(enc.stats_reply, model=model))


def unfinished(model: str, version: str) -> Operation[Unfinished]:
    return Operation("unfinished", prefix(model), [version], lambda reply: Unfinished(*map(int, reply)))


def collected_owner(job: JobId) -> Command[str | None]:
    """The owner that the tombstone of a collected job names."""
    return Command(("GET", f"{prefix(job.model)}tomb:{job.serial}"), enc.text_reply)

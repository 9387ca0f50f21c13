"""The store's operations, each described once: function, key, arguments, and what the reply means. Pure.

`RedisStore` and `AsyncStore` are two transports for these values: one for a thread, one for an event loop. Their methods are
made from the functions here: `read = blocking(ops.read)`, `read = awaited(ops.read)`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial, update_wrapper
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

from penstock.broker.backlog import Demand
from penstock.broker.contract import CancelStatus, JobIndex, ReleaseReason
from penstock.broker.records import (
    Absent,
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
    Unfinished,
)
from penstock.broker.store import replies
from penstock.broker.store.positions import Arg, ClaimArgs, FinishHead, FinishItem, ReportItem, SubmitHead, SubmitItem
from penstock.broker.store.replies import SHORT_REASONS
from penstock.errors import InternalError
from penstock.job import Job, JobId, Payload, job_in, served_as

Reply = TypeVar("Reply")
Asked = ParamSpec("Asked")
Ended = tuple[Job, Payload | None]

# The queue of Celery's clients who name none, and the first part of the names of all queues.
APP_QUEUE = "penstock"
PRIORITY_SEPARATOR = "\x06\x16"
# At least; a key lives longer where the job's deadline and the time its result is kept are longer together.
IDEMPOTENCY_TTL_S = 48 * 3600.0
_WITHOUT_OUTPUT, _WITH_OUTPUT = "0", "1"
_NO_OUTPUT = Payload("")
# Characters of a job's serial.
_SERIAL_CHARS = 26
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


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


class BlockingCalls(Protocol):
    def run(self, operation: Operation[Reply], /) -> Reply: ...

    def send(self, command: Command[Reply], /) -> Reply: ...


class AwaitedCalls(Protocol):
    async def run(self, operation: Operation[Reply], /) -> Reply: ...

    async def send(self, command: Command[Reply], /) -> Reply: ...


def blocking(
    describe: Callable[Asked, Operation[Reply] | Command[Reply]],
) -> Callable[Concatenate[BlockingCalls, Asked], Reply]:
    """A method of a store that blocks: it takes what `describe` takes, and makes the call. It raises `StoreUnavailable`."""

    def call(store: BlockingCalls, /, *args: Asked.args, **named: Asked.kwargs) -> Reply:
        asked = describe(*args, **named)
        return store.run(asked) if isinstance(asked, Operation) else store.send(asked)

    update_wrapper(call, describe)
    return call


def awaited(
    describe: Callable[Asked, Operation[Reply] | Command[Reply]],
) -> Callable[Concatenate[AwaitedCalls, Asked], Coroutine[Any, Any, Reply]]:
    """The same for an event loop."""

    async def call(store: AwaitedCalls, /, *args: Asked.args, **named: Asked.kwargs) -> Reply:
        asked = describe(*args, **named)
        return await (store.run(asked) if isinstance(asked, Operation) else store.send(asked))

    update_wrapper(call, describe)
    return call


def prefix(queue: str) -> str:
    return f"ps:{{{queue}}}:"


def queue_name(queue: str) -> str:
    """Celery's name of a queue, which holds the tickets of band 0."""
    return f"{APP_QUEUE}.{{{queue}}}"


def priority_list(queue: str, priority: int) -> str:
    """Kombu's name of the list of a queue's tickets of another band."""
    return f"{queue}{PRIORITY_SEPARATOR}{priority}" if priority else queue


def ms(seconds: float) -> int:
    return round(seconds * 1000)


def submit(jobs: Sequence[NewJob], max_depth: int) -> Operation[list[Submitted]]:
    """One answer per job, in order. The jobs are of one queue and stored in one step, at most a thousand."""
    queue = jobs[0].id.queue
    return Operation("submit", prefix(queue), submit_args(jobs, max_depth), partial(replies.submit_reply, queue=queue))


def claim(request: ClaimRequest) -> Operation[Claim]:
    queue = request.queue
    return Operation("claim", prefix(queue), claim_args(request), partial(replies.claim_reply, queue=queue))


def withdraw(queue: str, version: str, worker: str) -> Operation[bool]:
    """End the worker's offer. False if there is none: a submit may have used it, and the answer is on the way."""
    return Operation("withdraw", prefix(queue), [version, worker], bool)


def extend(
    queue: str, worker: str, *, lease_s: float, max_run_s: float, progressed: Sequence[JobId] = ()
) -> Operation[LeaseRenewal]:
    """Push the worker's lease forward by `lease_s`; jobs held longer than `max_run_s` are taken back and named.

    That time starts again for `progressed`: jobs that showed a sign of life since the last call."""
    args: list[Arg] = [worker, ms(lease_s), ms(max_run_s), *(job.serial for job in progressed)]
    return Operation("extend", prefix(queue), args, partial(replies.extend_reply, queue=queue))


def finish(endings: Sequence[Ending], *, worker: str, stamp: BatchStamp) -> Operation[list[Settled]]:
    """Settle jobs of one queue, each with its verdict; fenced by token, one answer per item."""
    return Operation("finish", prefix(endings[0].id.queue), finish_args(endings, worker, stamp), replies.settled_reply)


def report(reports: Sequence[Report]) -> Operation[list[Reported]]:
    """Note how far jobs of one queue are, and append to their streams; fenced by token, one answer per item.

    The first chunk of a restarted stream replaces the chunks of the earlier one."""
    return Operation("report", prefix(reports[0].id.queue), report_args(reports), replies.reported_reply)


def retry(
    items: Sequence[GiveBack], *, worker: str, delay_s: float, code: str, message: str, traceback: str = ""
) -> Operation[list[Settled]]:
    """Put jobs aside for `delay_s`; a job at its limit of attempts ends FAILED with `code` and `message`."""
    args: list[Arg] = [worker, ms(delay_s), code, message, traceback, *_pairs(items)]
    return Operation("retry", prefix(items[0].id.queue), args, replies.settled_reply)


def release(items: Sequence[GiveBack], *, worker: str, reason: ReleaseReason, detail: str = "") -> Operation[list[Settled]]:
    """Queue jobs again. `detail`: how the process of a `CRASHED` run died, for the error of a job that is given up."""
    args: list[Arg] = [worker, reason.value, detail, *_pairs(items)]
    return Operation("release", prefix(items[0].id.queue), args, replies.settled_reply)


def sweep(queue: str, *, gone: Sequence[str] = (), limit: int = 1_000) -> Operation[SweepReport]:
    """Take back the jobs of workers that are `gone` or whose lease has passed; promote, expire and collect what is due.

    One call moves at most `limit` jobs, however much is due; the report says whether to call again."""
    return Operation("sweep", prefix(queue), [limit, *gone], partial(replies.sweep_reply, queue=queue))


def absent(queue: str, *, sweeper: str, pace_s: float, again_s: float) -> Operation[Absent]:
    return Operation("absent", prefix(queue), [sweeper, ms(pace_s), ms(again_s)], replies.absent_reply)


def cancel(job: JobId, *, owner: str = "") -> Operation[CancelStatus]:
    return Operation("cancel", prefix(job.queue), [job.serial, owner], lambda reply: CancelStatus(reply.decode()))


def forget(jobs: Sequence[JobId]) -> Operation[int]:
    """Drop succeeded jobs of one queue before their time: how many were dropped. Their tombstones stay for a minute.

    The caller has taken their outputs and deletes their blobs. Other jobs stay in the inbox to be replayed."""
    return Operation("forget", prefix(jobs[0].queue), [job.serial for job in jobs], int)


def dismiss(jobs: Sequence[JobId]) -> Operation[int]:
    """Take jobs of one queue off the failed inbox: how many were there."""
    return Operation("dismiss", prefix(jobs[0].queue), [job.serial for job in jobs], int)


def purge(queue: str, *, limit: int) -> Operation[tuple[int, bool]]:
    """Cancel waiting jobs, at most `limit` and a hundred: how many, and whether there may be more."""
    return Operation("purge", prefix(queue), [limit], lambda reply: (int(reply[0]), reply[1] == b"1"))


def reconcile(queue: str, *, cursor: str = "0", limit: int = 1_000) -> Operation[Repair]:
    return Operation("reconcile", prefix(queue), [cursor, limit], replies.repair_reply)


def reconcile_next(queue: str, *, pace_s: float, heal_s: float, limit: int = 1_000) -> Operation[Repair]:
    """`reconcile` the next page for all workers; nothing if any of them did so within `pace_s`, or within `heal_s` if more is
    due since then.
    """
    return Operation("reconcile_next", prefix(queue), [ms(pace_s), ms(heal_s), limit], replies.repair_reply)


def read(job: JobId) -> Operation[Job | None]:
    """The record with its place in the queue; None if the job never existed or was collected."""
    return Operation("read", prefix(job.queue), [job.serial, _WITHOUT_OUTPUT], partial(replies.record_reply, job=job))


def result(job: JobId) -> Operation[Ended | None]:
    return Operation("read", prefix(job.queue), [job.serial, _WITH_OUTPUT], partial(replies.read_reply, job=job))


def watch(job: JobId, *, channel: str, every_change: bool, owner: str | None = None) -> Operation[Job | None]:
    args: list[Arg] = [job.serial, ("+" if every_change else "=") + channel, owner_filter(owner)]
    return Operation("watch", prefix(job.queue), args, partial(replies.record_reply, job=job))


def owner_filter(owner: str | None) -> str:
    """Empty for any owner; the mark tells the owner "" from any owner."""
    return "" if owner is None else f"={owner}"


def ended(jobs: Sequence[JobId]) -> Operation[list[JobId]]:
    """Which of these jobs of one queue have ended or are unknown."""
    queue = jobs[0].queue
    return Operation(
        "ended", prefix(queue), [job.serial for job in jobs], lambda reply: [job_in(serial.decode(), queue) for serial in reply]
    )


def follow(
    job: JobId, *, mark: str = "", seen: int = 0, limit: int = 256, with_output: bool = False
) -> Operation[Followed | None]:
    """The record, and the next chunks for a reader who saw `seen` of the stream with that `mark`.

    Of a stream with another mark, the chunks from the first one on. None if the job never existed or was collected."""
    args: list[Arg] = [job.serial, _WITH_OUTPUT if with_output else _WITHOUT_OUTPUT, mark, seen, limit]
    return Operation("follow", prefix(job.queue), args, partial(replies.follow_reply, job=job))


def kept_input(job: JobId) -> Operation[KeptInput | None]:
    """The job's input, inline or by its blob's name; None if the job is unknown or its input is no longer kept.

    The blob may have been deleted although the record names it."""
    return Operation("input", prefix(job.queue), [job.serial], replies.input_reply)


def newest(
    queue: str, index: JobIndex = JobIndex.ALL, *, owner: str = "", before: str = "", limit: int = 100, tag: str = ""
) -> Operation[list[JobId]]:
    """The jobs of an index, newest first, at most `limit`, with serials smaller than `before`. `owner` "": those of all.

    `tag` names the jobs of TAGGED."""
    args: list[Arg] = [index.value, owner, before, limit, tag]
    return Operation("newest", prefix(queue), args, lambda reply: [job_in(serial.decode(), queue) for serial in reply])


def records(jobs: Sequence[JobId]) -> Operation[list[Job]]:
    """The records of jobs of one queue, in their order, without those that are not known."""
    queue = jobs[0].queue
    return Operation("records", prefix(queue), [job.serial for job in jobs], partial(replies.list_reply, queue=queue))


def stats(queue: str) -> Operation[QueueStats]:
    return Operation("stats", prefix(queue), [], partial(replies.stats_reply, queue=queue))


def demand(queue: str, versions: Sequence[str]) -> Operation[Demand]:
    """Cheaper than `stats`, for what asks each second."""
    return Operation("demand", prefix(queue), versions, partial(replies.demand_reply, versions=versions))


def unfinished(queue: str, version: str) -> Operation[Unfinished]:
    """How many jobs of this version have not ended."""
    return Operation("unfinished", prefix(queue), [version], lambda reply: Unfinished(*map(int, reply)))


def retire(queue: str, version: str = "") -> Operation[Unfinished]:
    """Close the queue for jobs of a version, empty: of any; unless there are unfinished ones, or else records (`waiting`)."""
    return Operation("retire", prefix(queue), [version], lambda reply: Unfinished(*map(int, reply)))


def retired(queue: str) -> Command[dict[str, int]]:
    """Since when (Unix ms) the queue is closed, by version."""
    words = ("ZRANGE", f"{prefix(queue)}retired", 0, -1, "WITHSCORES")
    return Command(words, lambda reply: {name.decode(): int(at) for name, at in zip(reply[::2], reply[1::2], strict=True)})


def reopen(queue: str, version: str, since: int) -> Operation[bool]:
    """End the closing that `retired` showed, which is to be read before the registry; False if it is another one now."""
    return Operation("reopen", prefix(queue), [version, since], bool)


def advance(queue: str, placing: int) -> Operation[Any]:
    """Refuse keys that were placed by an older number of partitions (`ModelInfo.placing`)."""
    return Operation("advance", prefix(queue), [placing], replies.text_reply)


def collected_owner(job: JobId) -> Command[str | None]:
    """The owner of a collected job, while its tombstone lives; else None."""
    return Command(("GET", f"{prefix(job.queue)}tomb:{job.serial}"), replies.text_reply)


def traceback(job: JobId) -> Command[str]:
    """What the model's code raised in the last attempt; empty if it is not kept, or the attempt raised nothing."""
    return Command(("HMGET", f"{prefix(job.queue)}job:{job.serial}", "traceback", "epoch"), replies.traceback_reply)


# The arguments of the longer calls.


def digest(owner: str, key: str) -> str:
    return hashlib.blake2b(f"{owner}\0{key}".encode(), digest_size=16).hexdigest() if key else ""


def first_job(queue: str, owner: str, key: str) -> Command[JobId | None]:
    """The job that an earlier request of this owner made with the same idempotency key; None if there is none."""
    return Command(("GET", f"{prefix(queue)}idem:{digest(owner, key)}"), partial(_first_job, queue=queue))


def _first_job(reply: bytes | None, *, queue: str) -> JobId | None:
    # Behind the serial stands the fingerprint of the request.
    return None if reply is None else job_in(reply[:_SERIAL_CHARS].decode(), queue)


def submit_args(jobs: Sequence[NewJob], max_depth: int) -> list[Arg]:
    told = any(job.words for job in jobs)
    args: list[Arg] = [*SubmitHead(max_depth=max_depth, key_ttl=ms(IDEMPOTENCY_TTL_S), told="1" if told else "")]
    for job in jobs:
        args += _submit_item(job)
        if told:
            args += words(job.words)
    return args


def _submit_item(job: NewJob) -> SubmitItem:
    return SubmitItem(
        serial=job.id.serial,
        version=job.version,
        band=served_as(job.priority, job.call).band,
        deadline=ms(job.deadline_s),
        ttl=ms(job.result_ttl_s),
        owner=job.owner,
        media=job.input.content_type,
        input=job.input.data,
        blob=job.input.blob,
        key=digest(job.owner, job.idempotency_key),
        fingerprint=job.fingerprint,
        terms=f"{job.max_attempts},{job.max_crashes}",
        watch=f"={job.reply_to}" if job.reply_to else "",
        most_open=job.max_open_jobs,
        call=job.call.value,
        trace=job.trace,
        replay_of=job.replay_of.serial if job.replay_of else "",
        delay=ms(job.delay_s),
        tags=",".join(job.tags),
        placing="" if job.placing is None or not job.idempotency_key else job.placing,
    )


def words(of: Mapping[str, Arg]) -> list[Arg]:
    """The words of extensions for a new job or run, in the order of the functions. `of`: by the extensions' names."""
    # Imported here, because a slot has these operations and submits nothing.
    from penstock.broker.store import library

    if unknown := of.keys() - (known := library.words()):
        raise InternalError(f"words for {', '.join(sorted(unknown))}; the functions know {', '.join(known)}")
    return [of.get(name, "") for name in known]


def claim_args(request: ClaimRequest) -> list[Arg]:
    return [
        *ClaimArgs(
            version=request.version,
            worker=request.worker,
            nonce=request.nonce,
            limit=request.limit,
            enough=min(request.enough, request.limit),
            max_wait=ms(request.max_wait_s),
            min_slack=ms(request.min_slack_s),
            slack_per_item=f"{request.slack_per_item_s * 1000:.3f}",
            hurry=ms(request.hurry_s),
            lease=ms(request.lease_s),
            limit_bytes=request.limit_bytes,
            shard="1" if request.shard else "",
            offer="1" if request.offer else "",
        )
    ]


def finish_args(endings: Sequence[Ending], worker: str, stamp: BatchStamp) -> list[Arg]:
    args: list[Arg] = [*FinishHead(worker=worker, stamp=_stamp_text(stamp))]
    for end in endings:
        args += _finish_item(end, end.output or _NO_OUTPUT)
    return args


def _finish_item(end: Ending, output: Payload) -> FinishItem:
    return FinishItem(
        serial=end.id.serial,
        token=end.token,
        state=end.state.value,
        media=output.content_type,
        output=output.data,
        blob=output.blob,
        code=end.error_code,
        message=end.error_message,
        traceback=end.traceback,
    )


def report_args(reports: Sequence[Report]) -> list[Arg]:
    args: list[Arg] = []
    for one in reports:
        args += ReportItem(
            serial=one.id.serial,
            token=one.token,
            progress="" if one.fraction is None else f"{one.fraction:.4g},{one.note}",
            restarts=one.restarts,
            before=one.before,
            chunks=b"".join(len(chunk).to_bytes(4, "big") + chunk for chunk in one.chunks),
        )
    return args


def _pairs(items: Sequence[GiveBack]) -> list[Arg]:
    return [part for item in items for part in (item.id.serial, item.token)]


def _stamp_text(stamp: BatchStamp) -> str:
    """Short, because a hash field over 64 bytes would cost the record its compact form. `finish` adds each job's place."""
    before = (stamp.preprocess_s, stamp.inference_s, stamp.postprocess_s)
    waits = (stamp.batch_wait_s, stamp.decode_s, stamp.device_wait_s)
    times = "|".join(_base36(round(seconds * 1e6)) for seconds in before + waits)
    return f"{stamp.id}|{stamp.size}|{SHORT_REASONS.get(stamp.reason, stamp.reason)}|{times}"


def _base36(number: int) -> str:
    digits = ""
    while number >= 36:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return _DIGITS[max(0, number)] + digits

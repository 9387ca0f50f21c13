"""Decodes the replies of Redis Functions and the messages that they publish: bytes and numbers become records. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from penstock.broker.backlog import Demand
from penstock.broker.records import (
    Absent,
    Change,
    Claim,
    ClaimedJob,
    Followed,
    KeptInput,
    LeaseRenewal,
    Push,
    QueueStats,
    Repair,
    Reported,
    Settled,
    SubmitStatus,
    Submitted,
    SweepReport,
)
from penstock.broker.store.positions import ChangeItem, ClaimedItem, ClaimHead, RecordFields
from penstock.errors import InternalError
from penstock.job import (
    BANDS,
    Attempt,
    BatchRecord,
    Call,
    Job,
    JobError,
    JobId,
    JobProgress,
    JobState,
    LeftOut,
    Payload,
    Priority,
    StreamPart,
    job_in,
    model_of,
)

# Behind the fields of a record stand its position and its output.
_FIELDS = len(RecordFields._fields) + 2
CLAIM_HEAD, _CLAIM_STRIDE, _CHANGE_STRIDE = len(ClaimHead._fields), len(ClaimedItem._fields), len(ChangeItem._fields)
_SWEEP_HEAD = 10
_STATES = {state.value.encode(): state for state in JobState}
_size_at = struct.Struct(">I").unpack_from
# The reasons for a batch's release, as its stamp writes them.
SHORT_REASONS = {"idle": "i", "full": "f", "wait": "w", "deadline": "d", "bucket": "b", "drain": "r", "solo": "s", "bulk": "k"}
_REASONS = {short: reason for reason, short in SHORT_REASONS.items()}
_PRIORITIES = {b"0": Priority.INTERACTIVE, b"9": Priority.BULK}


def submit_reply(reply: Sequence[Any], queue: str) -> list[Submitted]:
    depth = reply[0]
    return [
        Submitted(SubmitStatus(reply[i].decode()), job_in(reply[i + 1].decode(), queue), depth) for i in range(1, len(reply), 2)
    ]


def claim_reply(reply: Sequence[Any], queue: str) -> Claim:
    head = ClaimHead(*reply[:CLAIM_HEAD])
    messages_end = CLAIM_HEAD + head.messages
    start = messages_end + head.expired * _CHANGE_STRIDE
    return Claim(
        jobs=tuple(_claimed(reply, i, queue) for i in range(start, len(reply), _CLAIM_STRIDE)),
        reason=head.reason.decode(),
        depth=head.depth,
        retry_in_s=None if head.retry < 0 else head.retry / 1000,
        now=head.now / 1000,
        messages=tuple(reply[CLAIM_HEAD:messages_end]),
        stepped_over=head.stepped,
        expired=head.expired,
        changes=_changes(reply[messages_end:start], queue),
        shards=head.shards,
        gone=head.gone,
    )


def _claimed(reply: Sequence[Any], i: int, queue: str) -> ClaimedJob:
    job = ClaimedItem(*reply[i : i + _CLAIM_STRIDE])
    return ClaimedJob(
        id=job_in(job.serial.decode(), queue),
        token=job.token.decode(),
        input=Payload(job.media.decode(), job.input, job.blob.decode()),
        priority=_PRIORITIES[job.band],
        created_at=int(job.created) / 1000,
        deadline_at=int(job.deadline) / 1000,
        attempts=int(job.attempts),
        crashes=int(job.crashes),
        call=Call(job.call.decode()),
        trace=job.trace.decode(),
        owner=job.owner.decode(),
    )


def _changes(flat: Sequence[Any], queue: str) -> tuple[Change, ...]:
    return tuple(_change(flat[i : i + _CHANGE_STRIDE], queue) for i in range(0, len(flat), _CHANGE_STRIDE))


def _change(values: Sequence[bytes], queue: str) -> Change:
    change = ChangeItem(*values)
    _, worker, batch = _token_parts(change.token.decode())
    return Change(
        job_in(change.serial.decode(), queue),
        change.event.decode(),
        JobState(change.state.decode()),
        change.version.decode(),
        worker,
        batch,
        change.trace.decode(),
    )


def extend_reply(reply: Sequence[Any], queue: str) -> LeaseRenewal:
    ids = [job_in(serial.decode(), queue) for serial in reply[2:]]
    return LeaseRenewal(lost=reply[0] == b"lost", cancelled=tuple(ids[: reply[1]]), overrun=tuple(ids[reply[1] :]))


def settled_reply(reply: Sequence[bytes]) -> list[Settled]:
    return [Settled(answer.decode()) for answer in reply]


def reported_reply(reply: Sequence[bytes]) -> list[Reported]:
    return [Reported(answer.decode()) for answer in reply]


def absent_reply(reply: Sequence[Any]) -> Absent:
    return Absent(looked=reply[0] == b"1", fresh=reply[1], gone=tuple(name.decode() for name in reply[2:]))


def repair_reply(reply: Sequence[Any]) -> Repair:
    cursor, scanned, orphans, tickets, gone, *soon = reply
    return Repair(cursor.decode(), scanned, orphans, tickets, gone, is_more_due=soon == [1])


def text_reply(reply: bytes | None) -> str | None:
    return None if reply is None else reply.decode()


def traceback_reply(reply: Sequence[bytes | None]) -> str:
    kept, epoch = ((value or b"").decode() for value in reply)
    attempt, _, text = kept.partition("\n")
    return text if attempt == epoch else ""


def sweep_reply(reply: Sequence[Any], queue: str) -> SweepReport:
    requeued, dead, expired, cancelled, promoted, collected, lost, blobs, gone, more = reply[:_SWEEP_HEAD]
    names_end = _SWEEP_HEAD + lost + blobs
    names = [name.decode() for name in reply[_SWEEP_HEAD:names_end]]
    changes = _changes(reply[names_end:], queue)
    return SweepReport(
        requeued,
        dead,
        expired,
        cancelled,
        promoted,
        collected,
        blobs=tuple(names[lost:]),
        workers_lost=tuple(names[:lost]),
        changes=changes,
        gone=gone,
        more=more == b"1",
    )


def read_reply(record: Sequence[Any] | None, job: JobId) -> tuple[Job, Payload | None] | None:
    if not record:
        return None
    row, position, data = _row(record, job), record[-2], record[-1]
    state, finished_at = JobState(row.state), _moment(row.finished)
    started_at = _moment(row.started)
    decoded = Job(
        id=job,
        state=state,
        version=row.version,
        priority=_PRIORITIES[row.band.encode()],
        created_at=int(row.created) / 1000,
        deadline_at=int(row.deadline) / 1000,
        attempts=int(row.attempts or 0),
        crashes=int(row.crashes or 0),
        owner=row.owner,
        content_type=row.media,
        started_at=started_at,
        finished_at=finished_at,
        cancel_requested=row.cancel == "1",
        error=JobError(row.code, row.message) if row.code else None,
        batch=_parse_stamp(row.stamp, row.worker),
        position=position if position >= 0 else None,
        queued_behind=_queued_behind(row.terms),
        tries=_all_attempts(row.past, row.token or row.final_token, state, started=started_at or 0.0, finished=finished_at),
        left_out=_left_out(row.more),
        trace=row.trace,
        replay_of=job_in(row.replay_of, job.queue) if row.replay_of else None,
        replayed_as=job_in(row.replayed_as, job.queue) if row.replayed_as else None,
        call=Call(row.call),
        not_before=_moment(row.not_before),
        progress=_progress(row.progress, row.epoch, state) if row.progress else None,
        tags=tuple(row.tags.split(",")) if row.tags else (),
    )
    return decoded, Payload(row.out_media, data, row.out_blob) if state is JobState.SUCCEEDED else None


def _row(record: Sequence[Any], job: JobId) -> RecordFields:
    if len(record) != _FIELDS:
        raise InternalError(f"record of job {job} has {len(record)} fields, not {_FIELDS}")
    return RecordFields(*(value.decode() for value in record[:-2]))


def record_reply(reply: Sequence[Any] | None, job: JobId) -> Job | None:
    """Decode a reply as `read_reply` does, and drop the output."""
    decoded = read_reply(reply, job)
    return decoded and decoded[0]


def follow_reply(reply: Sequence[Any] | None, job: JobId) -> Followed | None:
    if not reply:
        return None
    record, mark, before, *chunks = reply
    decoded = read_reply(record, job)
    assert decoded is not None
    return Followed(decoded[0], StreamPart(mark.decode(), tuple(chunks), before), decoded[1])


def input_reply(reply: Sequence[Any] | None) -> KeptInput | None:
    media, blob, call, data = reply or (b"", b"", b"", None)
    if not blob and data is None:
        return None
    return KeptInput(Payload(media.decode(), data or b"", blob.decode()), Call(call.decode()))


def stats_reply(reply: Sequence[Any], queue: str) -> QueueStats:
    now, *rest = reply
    solo, delayed, leased, inbox, counted, owned, planned, due = rest[6:]
    counters = _counts(counted)
    ended = {name[6:]: n for name, n in counters.items() if name.startswith("ended:")}
    return QueueStats(
        model=model_of(queue),
        now=now / 1000,
        ready={band: rest[2 * i] for i, band in enumerate(BANDS)},
        oldest_age_s={band: rest[2 * i + 1] / 1000 for i, band in enumerate(BANDS)},
        solo=solo,
        delayed=delayed,
        leased=leased,
        inbox=inbox,
        accepted=counters.get("accepted", 0),
        ended=ended,
        counters={name: n for name, n in counters.items() if not name.startswith("ended:") and name != "accepted"},
        open={owner: n for owner, n in _counts(owned).items() if n > 0},
        planned={owner: n for owner, n in _counts(planned).items() if n > 0},
        due=due,
    )


def demand_reply(reply: Sequence[int], versions: Sequence[str]) -> Demand:
    now, accepted, ended, leased, *rest = reply
    waiting = dict(zip(versions, rest[::2], strict=True))
    due_in_s = {version: due / 1000 for version, due in zip(versions, rest[1::2], strict=True) if due >= 0}
    return Demand(now / 1000, accepted, ended, leased, waiting, due_in_s)


def _counts(flat: Sequence[bytes]) -> dict[str, int]:
    return {flat[i].decode(): int(flat[i + 1]) for i in range(0, len(flat), 2)}


def _frame(message: bytes, at: int) -> tuple[list[bytes], int]:
    fields = []
    for _ in range(8):
        (size,) = _size_at(message, at)
        at += 4
        fields.append(message[at : at + size])
        at += size
    return fields, at


def parse_pushes(message: bytes) -> Iterator[Push]:
    """Decode the state changes in one message of a gateway's channel: the queue, then 8 length-prefixed fields per job."""
    (size,) = _size_at(message)
    queue, at = message[4 : 4 + size].decode(), 4 + size
    while at < len(message):
        (serial, state, media, data, blob, code, text, stamp), at = _frame(message, at)
        if media and state == b"leased":
            stream = StreamPart(media.decode(), tuple(_chunks(data)), int(code))
            yield Push(job_in(serial.decode(), queue), JobState.LEASED, stream=stream)
            continue
        output = Payload(media.decode(), data, blob.decode()) if state == b"succeeded" else None
        yield Push(
            job_in(serial.decode(), queue), _STATES[state], output, code.decode(), text.decode(), _parse_stamp(stamp.decode())
        )


def _chunks(packed: bytes) -> Iterator[bytes]:
    """The chunks of a report, each of which stands behind its length."""
    at = 0
    while at < len(packed):
        (size,) = _size_at(packed, at)
        at += 4 + size
        yield packed[at - size : at]


def list_reply(reply: Sequence[Any], queue: str) -> list[Job]:
    """Decode the records of a page, without those that were collected since the page was looked up."""
    decoded = (read_reply(reply[i + 1], job_in(reply[i].decode(), queue)) for i in range(0, len(reply), 2))
    return [job for job, _ in filter(None, decoded)]


# A record keeps its batch and its attempts in short texts.


def _parse_stamp(text: str, worker: str = "") -> BatchRecord | None:
    if not text:
        return None
    batch, _, place = text.rpartition("|")
    name, size, reason, before, during, after, waited, decoded, queued = _of_all(batch)
    return BatchRecord(name, size, reason, before, during, after, worker, waited, decoded, queued, int(place))


@lru_cache(maxsize=64)
def _of_all(batch: str) -> tuple[str, int, str, float, float, float, float, float, float]:
    """The part of a stamp that all jobs of a batch share. Their ends are read together, so it is parsed once."""
    name, size, reason, *times = batch.split("|")
    before, during, after, waited, decoded, queued = (int(time, 36) / 1e6 for time in times)
    return name, int(size), _REASONS.get(reason, reason), before, during, after, waited, decoded, queued


def _token_parts(token: str) -> tuple[int, str, str]:
    """Epoch, worker and nonce; the nonce is the id of the batch that the job was claimed with."""
    epoch, _, rest = token.partition(":")
    worker, _, nonce = rest.rpartition(":")
    return int(epoch or 0), worker, nonce


def _all_attempts(past: str, token: str, state: JobState, *, started: float, finished: float | None) -> tuple[Attempt, ...]:
    """The attempts noted when they ended, followed by the one that is under way or that ended the job, if any."""
    noted = tuple(_noted(*entry.rsplit(",", 4)) for entry in past.split(";")) if past else ()
    number, worker, batch = _token_parts(token)
    if not token or (noted and noted[-1].number >= number):
        return noted
    return (*noted, Attempt(number, worker, batch, started, finished, state.public if state.final else ""))


def _moment(text: str) -> float | None:
    return int(text) / 1000 if text else None


def _progress(text: str, epoch: str, state: JobState) -> JobProgress | None:
    """None between two attempts: the work of the first is lost, and the second has not begun."""
    attempt, at, fraction, note = text.split(",", 3)
    if attempt != epoch or state in (JobState.QUEUED, JobState.DELAYED):
        return None
    return JobProgress(float(fraction), note, int(at) / 1000, int(attempt))


def _queued_behind(terms: str) -> int:
    """How many jobs stood before this one. `terms` holds its most attempts and most crashes, and this number if it is not 0."""
    _, _, *behind = terms.split(",")
    return int(behind[0]) if behind else 0


def _left_out(text: str) -> LeftOut:
    if not text:
        return LeftOut()
    count, spent, delays = (int(part) for part in text.split(","))
    return LeftOut(count, spent / 1000, delays / 1000)


def _noted(token: str, started: str, ended: str, how: str, delay: str) -> Attempt:
    number, worker, batch = _token_parts(token)
    return Attempt(number, worker, batch, int(started) / 1000, int(ended) / 1000, how, int(delay) / 1000)

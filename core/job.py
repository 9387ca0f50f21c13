"""One job: its id, its states, the moves between them, and the record that every reader sees.

An id has 26 sortable characters, the partition unless it is the first, a dash and the model. So the id alone names the queue,
and with it the Redis slot, that holds the job.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from penstock.errors import MalformedId

# The registry's keys bear this name where those of a queue bear its own.
RESERVED_NAME = "registry"
MODEL_NAME = re.compile(r"(?!registry$)[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
# `_SERIAL` repeats it: the patterns of the tree are literals, so that a test can try each against slow texts.
SERIAL_CHARS = 26
_SERIAL = re.compile(r"[0-9a-hjkmnp-tv-z]{26}")
# Each slot listens to all queues of its model, and each worker sweeps them.
MOST_PARTITIONS = 64
_PARTITION = re.compile(r"[1-9][0-9]?")
# Between a model and its partition in the name of a queue. No model has it in its name.
_QUEUE_MARK = ":"
# Crockford's base 32 in lower case: sorts like the number and has no i, l, o, u to misread.
_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_RANDOM_BITS = 80
_POOL_BYTES = 1_024
_PAIRS = [a + b for a in _DIGITS for b in _DIGITS]


class JobId(NamedTuple):
    """A job's public name. `serial` is unique within the model; `str()` is what callers see.

    `partition`: the part of its model in whose queue the job waits, and in whose keys it lies for good.
    """

    serial: str
    model: str
    partition: int = 0

    @property
    def queue(self) -> str:
        """The name of the job's queue."""
        return f"{self.model}{_QUEUE_MARK}{self.partition}" if self.partition else self.model

    def __str__(self) -> str:
        return f"{self.serial}.{self.partition}-{self.model}" if self.partition else f"{self.serial}-{self.model}"


def queue_of(model: str, partition: int) -> str:
    """The name of a queue: the model's in its first partition, `model:2` in its third."""
    return f"{model}{_QUEUE_MARK}{partition}" if partition else model


def queues_of(model: str, partitions: int) -> list[str]:
    """The queues of the model's first partitions."""
    return [queue_of(model, partition) for partition in range(partitions)]


def model_of(queue: str) -> str:
    return queue.partition(_QUEUE_MARK)[0]


def job_in(serial: str, queue: str) -> JobId:
    """The job of this serial in the queue."""
    model, _, partition = queue.partition(_QUEUE_MARK)
    return JobId(serial, model, int(partition)) if partition else JobId(serial, model)


class _Clock:
    """The last serial handed out, so that ids of one process ascend even within one millisecond."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0
        self._pool = b""

    def next(self) -> int:
        tick = time.time_ns() // 1_000_000
        with self._lock:
            fresh = tick << _RANDOM_BITS | self._random(9)
            # Within one millisecond (or a clock set back) a random step on from the last: ascending, and no easier to guess.
            self._last = fresh if tick > self._last >> _RANDOM_BITS else self._last + 1 + self._random(8)
            return self._last

    def _random(self, size: int) -> int:
        """`size` random bytes as a number. Drawn in blocks: one system call per id took a tenth of a gateway's time."""
        if len(self._pool) < size:
            self._pool = os.urandom(_POOL_BYTES)
        number, self._pool = self._pool[:size], self._pool[size:]
        return int.from_bytes(number, "big")


_clock = _Clock()


def new_serial() -> str:
    """26 characters: 48 bits of Unix milliseconds, 80 random bits (the ULID layout, github.com/ulid/spec, in lower case)."""
    number = _clock.next()
    return "".join([_PAIRS[number >> shift & 1023] for shift in range(120, -1, -10)])


def new_job_id(model: str, partition: int = 0) -> JobId:
    return JobId(new_serial(), model, partition)


def parse_job_id(text: str) -> JobId:
    """Split a public id; raises `MalformedId` when it cannot be one of ours."""
    front, dash, model = text.partition("-")
    serial, dot, partition = front.partition(".")
    has_serial = _SERIAL.fullmatch(serial) and (not dot or _PARTITION.fullmatch(partition))
    if not dash or not has_serial or not MODEL_NAME.fullmatch(model):
        raise MalformedId(f"{text[:80]!r} is not a job id; ids look like 01k9xw3c5t8ze2m4v6b7n0q1rs-square")
    return JobId(serial, model, int(partition)) if dot else JobId(serial, model)


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


# The longest delay of a job: it holds its place, its input and its version until it starts.
MAX_DELAY_S = 30 * 86_400.0

# The late band holds jobs whose deadline would force a tiny batch. kombu's priority steps are 0, 3, 6 and 9, and stock Flower
# adds those four up.
LATE_BAND = 6
BANDS = (0, LATE_BAND, 9)


class Call(StrEnum):
    """What the model should do with the input. The value is stored with a job; the usual one is empty and takes no memory."""

    PREDICT = ""
    EXPLAIN = "explain"
    # The input holds many rows (see `penstock.shard`), and so does the output.
    SHARD = "shard"


def served_as(priority: Priority, call: Call) -> Priority:
    """The priority of a job that was submitted with `priority`: a shard is bulk in any case."""
    return Priority.BULK if call is Call.SHARD else priority


@dataclass(frozen=True, slots=True)
class JobError:
    """Why a job did not succeed: a stable code, a sentence for the caller, and whether the same input may work later."""

    code: str
    message: str
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """The batch that a job ran in, and the job's `place` in it, from 1. `reason` is why the batch was released (idle, full,
    wait, deadline, bucket, drain, solo, bulk), or what an extension that drives the model says.

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
class JobProgress:
    """How far an attempt was `at` that moment, as its handler said: a `fraction` from 0 to 1, and a note."""

    fraction: float
    note: str
    at: float
    attempt: int


# Each chunk travels behind its length.
CHUNK_HEAD_BYTES = 4


@dataclass(frozen=True, slots=True)
class StreamPart:
    """Chunks of a job's stream, each a JSON text. `mark` changes each time the stream starts over.

    An empty mark: the job has no stream. `before`: how many chunks of the stream stand before these.
    """

    mark: str = ""
    chunks: tuple[bytes, ...] = ()
    before: int = 0

    def joined(self, later: StreamPart, *, most_bytes: int) -> StreamPart:
        """Both parts as one if `later` follows on this one and they are small together; else a part without chunks."""
        if later.mark == self.mark and later.before == self.before + len(self.chunks):
            chunks = self.chunks + later.chunks
            if sum(map(len, chunks)) + CHUNK_HEAD_BYTES * len(chunks) <= most_bytes:
                return StreamPart(self.mark, chunks, self.before)
        return StreamPart(later.mark, (), later.before)


@dataclass(frozen=True, slots=True)
class Job:
    """The store's record of one job. Moments are Unix seconds by Redis' clock; absent ones have not happened.

    `queued_behind`: the number of its owner's jobs before it when it was stored. `tries`: its first and last attempts, in
    order. `trace`: the W3C `traceparent` of its request and, behind a space, the `tracestate`; empty without one. `replay_of`
    and `replayed_as` link a job with the job whose input it repeats; an old job that was repeated several times names the
    last one. `not_before`: the end of the delay that the job was submitted with. `progress`: what the last attempt reported,
    if it did; None while the job waits for another one. `tags`: the words that its caller gave it.
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
    not_before: float | None = None
    progress: JobProgress | None = None
    tags: tuple[str, ...] = ()

    @property
    def model(self) -> str:
        return self.id.model


@dataclass(frozen=True, slots=True)
class Payload:
    """Bytes with their media type: either the bytes themselves (`data`), or the name of a blob that has them (`blob`)."""

    content_type: str
    data: bytes = b""
    blob: str = ""


def is_own(job: JobId, blob: str) -> bool:
    """Whether a blob is this job's and goes with it. A job that an extension submits may have others' blobs, and keeps them."""
    return blob.startswith(job.serial)


# The media type of an input that has several named parts: see `penstock.inputs.form`.
FORM_MEDIA = "application/vnd.penstock.form"
# The media type of an input with headers and query parameters of its request: see `penstock.inputs.request`.
REQUEST_MEDIA = "application/vnd.penstock.request"
# The media type of named arrays, as input and as output: see `penstock.tensors.tensor`.
TENSORS_MEDIA = "application/vnd.penstock.tensors"
PACKED_MEDIA = frozenset({FORM_MEDIA, REQUEST_MEDIA, TENSORS_MEDIA})
# An array in a file of numpy's. A model that lists this type takes arrays.
NPY_MEDIA = "application/x-npy"

# The charsets that texts may have, with Python's name of each. Each takes time in proportion to the text.
# Some of Python's other codecs do not: 2 MB of punycode take more than a minute.
CHARSETS = {
    "utf-8": "utf-8",
    "utf8": "utf-8",
    "us-ascii": "ascii",
    "ascii": "ascii",
    "iso-8859-1": "latin-1",
    "latin-1": "latin-1",
    "latin1": "latin-1",
    "iso-8859-15": "iso8859-15",
    "windows-1252": "cp1252",
    "utf-16": "utf-16",
    "utf-16le": "utf-16-le",
    "utf-16be": "utf-16-be",
}


def split_media_type(content_type: str) -> tuple[str, str]:
    """The media type alone, and its charset (`utf-8` unless it is named), both in lower case."""
    media, _, parameters = content_type.partition(";")
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return media.strip().lower(), value.strip().strip('"').lower()
    return media.strip().lower(), "utf-8"


def is_media_accepted(media: str, kinds: Sequence[str]) -> bool:
    """Whether one of the kinds is this media type; a kind may also be `image/*` or `*/*`."""
    return media in kinds or "*/*" in kinds or f"{media.partition('/')[0]}/*" in kinds


@dataclass(frozen=True, slots=True)
class BlobLocation:
    """Where payloads are kept that are too large for a record: an object store at `url`, or else files in `folder`.

    `copies_dir` is where this machine keeps copies of objects while a model process reads them.
    """

    folder: Path
    url: str = ""
    copies_dir: Path = Path("blob-copies")

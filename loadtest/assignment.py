"""The messages between `penstock bench` and its generator processes, and the frames that carry them over pipes."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, cast

import msgspec

from penstock.loadtest.generator.connection import HttpTarget
from penstock.loadtest.workload import CallStyle, Shape

LENGTH_BYTES = 4
_ARRAYS = ("due_at", "sent_at", "latencies_s", "statuses", "lag_s", "queue_s", "run_s", "sizes")


@dataclass(frozen=True, slots=True)
class Assignment:
    """One generator's part of a load: every `of`-th call from `number` on, or its share of a closed loop's connections.

    `requests` are sent in turn. `poll` is the request for a job's result, cut where the job's id belongs. `sample`: how many
    job ids the generator keeps.
    """

    target: HttpTarget
    requests: list[bytes]
    shape: Shape
    caller: CallStyle = CallStyle.SYNC
    poll: tuple[bytes, bytes] = (b"", b"")
    number: int = 0
    of: int = 1
    sample: int = 0

    @property
    def concurrency(self) -> int:
        """This generator's share of a closed loop's connections."""
        whole = self.shape.concurrency or 0
        return whole // self.of + (self.number < whole % self.of)


class Begin(msgspec.Struct, tag=True):
    """Sent when all generators are ready. `starts_at`: moment 0 of the schedule, by the machine's monotonic clock, which all
    processes share. The warm-up lies after it."""

    starts_at: float


class LoadProgress(msgspec.Struct, tag=True):
    """Counts since the start. `lag_s`: the longest delay of a request within the last second."""

    offered: int = 0
    good: int = 0
    bad: int = 0
    lag_s: float = 0.0


class LoadTally(msgspec.Struct, tag=True):
    """The arrays of one generator as bytes: doubles, except `statuses` and `sizes` (unsigned short), `queue_s` and `run_s`
    (float) and `reason_of` (byte, an index into `reasons`). Moments count from the end of the warm-up."""

    due_at: bytes = b""
    lag_s: bytes = b""
    sent_at: bytes = b""
    latencies_s: bytes = b""
    statuses: bytes = b""
    queue_s: bytes = b""
    run_s: bytes = b""
    sizes: bytes = b""
    reason_of: bytes = b""
    reasons: list[str] = []
    jobs: list[str] = []
    bodies: dict[int, str] = {}
    unfinished: int = 0
    starved: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    stopped_at: float = math.inf


class GeneratorFailure(msgspec.Struct, tag=True):
    """The generator could not begin."""

    message: str


GeneratorMessage = LoadProgress | LoadTally | GeneratorFailure
_encoder = msgspec.msgpack.Encoder()
_message_decoder = msgspec.msgpack.Decoder(GeneratorMessage)


def encode_frame(value: object) -> bytes:
    data = _encoder.encode(value)
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


def read_frame(stream: IO[bytes]) -> bytes:
    """The content of the next frame; empty at the end of the stream."""
    head = stream.read(LENGTH_BYTES)
    return stream.read(int.from_bytes(head, "big")) if len(head) == LENGTH_BYTES else b""


def decode_message(data: bytes) -> GeneratorMessage:
    return cast("GeneratorMessage", _message_decoder.decode(data))


@dataclass(slots=True)
class MergedTally:
    """The tallies of all generators as one. Moments are seconds from the end of the warm-up. `sent_at`, `latencies_s` and
    `statuses` have one entry per call that ended, in the same order."""

    due_at: array[float] = field(default_factory=lambda: array("d"))
    sent_at: array[float] = field(default_factory=lambda: array("d"))
    latencies_s: array[float] = field(default_factory=lambda: array("d"))
    statuses: array[int] = field(default_factory=lambda: array("H"))
    lag_s: array[float] = field(default_factory=lambda: array("d"))
    queue_s: array[float] = field(default_factory=lambda: array("f"))
    run_s: array[float] = field(default_factory=lambda: array("f"))
    sizes: array[int] = field(default_factory=lambda: array("H"))
    reasons: list[str] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)
    bodies: dict[int, str] = field(default_factory=dict)
    unfinished: int = 0
    starved: int = 0
    cpu_s: float = 0.0
    core_share: float = 0.0
    stopped_at: float = math.inf


def merged_tally(tallies: Sequence[LoadTally]) -> MergedTally:
    whole = MergedTally()
    for tally in tallies:
        for name in _ARRAYS:
            getattr(whole, name).frombytes(getattr(tally, name))
        whole.reasons += [tally.reasons[index] for index in tally.reason_of]
        whole.jobs += tally.jobs
        whole.bodies = {**tally.bodies, **whole.bodies}
        whole.unfinished += tally.unfinished
        whole.starved += tally.starved
        whole.cpu_s += tally.cpu_s
        whole.core_share = max(whole.core_share, tally.cpu_s / tally.wall_s if tally.wall_s else 0.0)
        whole.stopped_at = min(whole.stopped_at, tally.stopped_at)
    return whole

"""What happened to a model over the last days, in steps: how workers count it, and what a reader makes of it. Pure.

A step's numbers add up over processes and over time. Percentiles come from histograms whose buckets are a quarter of an octave
wide. The store makes the buckets of a step wider where it must to keep the step small.
"""

# D118: docs/design/store.md

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.broker.store.ops import Operation, ms, prefix
from penstock.broker.store.positions import Arg

# How long steps are, and how many of them are kept, as in history.lua.
LENGTHS_S = (10, 60, 300, 1800)
KEPT = (360, 360, 288, 336)
LONGEST_S = 7 * 86_400
SHORTEST_S = 300
# Numbers of the sums and of the highest values in a step, as in history.lua.
COVERED, ACCEPTED, SUCCEEDED, FAILED, CANCELLED, EXPIRED, ITEMS, BUSY, SLOT_TIME = 1, 2, 3, 4, 5, 6, 7, 9, 10
DEVICE_BUSY, DEVICE_TIME = 18, 19
REASONS = {"idle": 11, "full": 12, "efficiency": 13, "wait": 14, "deadline": 15, "solo": 16, "bulk": 17}
WAITING, OLDEST, RUNNING, SLOTS, WORKERS, MEMORY = 1, 2, 3, 4, 5, 6
PER_OCTAVE = 4
# Of 1 ms to 9 hours.
LAST_BUCKET = 100
# Bucket `n` holds durations in seconds above the bound before its own and up to its own; the last one also holds longer ones.
BOUNDS_S = tuple(2 ** (number / PER_OCTAVE) / 1000 for number in range(LAST_BUCKET))
Buckets = dict[int, int]
_DECODE = msgspec.msgpack.Decoder().decode
_MIB = 2**20


@dataclass(slots=True)
class HistoryCounts:
    """What one worker counted of one queue since its last write. Sums by number, and both histograms."""

    sums: Buckets = field(default_factory=dict)
    totals: Buckets = field(default_factory=dict)
    waits: Buckets = field(default_factory=dict)

    def packed(self) -> bytes:
        return msgspec.msgpack.encode([self.sums, self.totals, self.waits])


@dataclass(frozen=True, slots=True)
class HistoryWrite:
    """One write of a worker: its number, by which the store recognises a repeat, and what the worker has now."""

    writer: str
    number: int
    for_s: float
    slots: int
    memory_bytes: int
    counts: HistoryCounts


def note_history(queue: str, write: HistoryWrite | None = None) -> Operation[bool]:
    """Record a write; without one, record the store's own counts. Returns False if those were recorded a moment ago."""
    args: list[Arg] = []
    if write is not None:
        memory = write.memory_bytes // _MIB
        args = [write.writer, write.number, ms(write.for_s), write.slots, memory, write.counts.packed()]
    return Operation("note_history", prefix(queue), args, bool)


def read_history(queue: str, level: int) -> Operation[ReadHistory]:
    """The steps of `LENGTHS_S[level]`."""
    return Operation("history", prefix(queue), [level + 1], _read)


@dataclass(frozen=True, slots=True)
class HistoryStep:
    """One step, or several in one. `tops` are the highest values in it. A bucket is 2 ** `grain` quarters of an octave wide."""

    at: int
    sums: Mapping[int, int] = field(default_factory=dict)
    tops: Mapping[int, int] = field(default_factory=dict)
    totals: Mapping[int, int] = field(default_factory=dict)
    waits: Mapping[int, int] = field(default_factory=dict)
    grain: int = 0


@dataclass(frozen=True, slots=True)
class ReadHistory:
    """The steps of one queue, in no order. `now`: Unix seconds of the store's clock."""

    now: float
    packed: Sequence[bytes]

    @property
    def steps(self) -> list[HistoryStep]:
        """Decodes at each call. The steps of many queues take a second and much memory, so a reader takes a few queues at a
        time, in a thread.
        """
        return [_step(packed) for packed in self.packed]


def _read(reply: Sequence[Any]) -> ReadHistory:
    now, open_steps, *closed = reply
    return ReadHistory(int(now) / 1000, [*open_steps, *closed])


def _step(packed: bytes) -> HistoryStep:
    at, *maps, grain = _DECODE(packed)
    sums, tops, totals, waits = map(_as_map, maps)
    return HistoryStep(int(at), sums, tops, totals, waits, int(grain))


def _as_map(table: Any) -> Buckets:
    """Lua writes a table with the keys 1 to n as an array."""
    pairs = enumerate(table, 1) if isinstance(table, list) else table.items()
    return {int(number): int(value) for number, value in pairs}


def added(one: Mapping[int, int], other: Mapping[int, int]) -> Buckets:
    sums = dict(one)
    for number, value in other.items():
        sums[number] = sums.get(number, 0) + value
    return sums


def _highest(one: Mapping[int, int], other: Mapping[int, int]) -> Buckets:
    highest = dict(one)
    for number, value in other.items():
        highest[number] = max(highest.get(number, 0), value)
    return highest


def _side_by_side(one: Mapping[int, int], other: Mapping[int, int]) -> Buckets:
    """The highest values of two queues: the oldest job of both is the older one, the rest adds up."""
    return {**added(one, other), OLDEST: max(one.get(OLDEST, 0), other.get(OLDEST, 0))}


def coarser(buckets: Mapping[int, int], grain: int) -> Mapping[int, int]:
    if not grain:
        return buckets
    merged_buckets: Buckets = {}
    for number, count in buckets.items():
        first = number - number % 2**grain
        merged_buckets[first] = merged_buckets.get(first, 0) + count
    return merged_buckets


def _merged(one: HistoryStep, other: HistoryStep, tops: Mapping[int, int]) -> HistoryStep:
    grain = max(one.grain, other.grain)
    totals, waits = (
        added(coarser(mine, grain), coarser(its, grain)) for mine, its in ((one.totals, other.totals), (one.waits, other.waits))
    )
    return HistoryStep(one.at, added(one.sums, other.sums), tops, totals, waits, grain)


def merged(one: HistoryStep, other: HistoryStep) -> HistoryStep:
    """Two steps of one queue, one after the other, as one."""
    return _merged(one, other, _highest(one.tops, other.tops))


def together(one: HistoryStep, other: HistoryStep) -> HistoryStep:
    """The same step of two queues as one. `COVERED` is the longer of the two."""
    step = _merged(one, other, _side_by_side(one.tops, other.tops))
    covered = max(one.sums.get(COVERED, 0), other.sums.get(COVERED, 0))
    return HistoryStep(step.at, {**step.sums, COVERED: covered}, step.tops, step.totals, step.waits, step.grain)


def in_steps(steps: Iterable[HistoryStep], length_s: int) -> dict[int, HistoryStep]:
    """One queue's steps, by the start of the longer step that each belongs to."""
    longer: dict[int, HistoryStep] = {}
    for step in steps:
        at = step.at - step.at % length_s
        known = longer.get(at)
        longer[at] = (
            HistoryStep(at, step.sums, step.tops, step.totals, step.waits, step.grain) if known is None else merged(known, step)
        )
    return longer


def all_queues(queues: Iterable[Mapping[int, HistoryStep]]) -> dict[int, HistoryStep]:
    """The steps of several queues as those of one."""
    joined: dict[int, HistoryStep] = {}
    for steps in queues:
        for at, step in steps.items():
            known = joined.get(at)
            joined[at] = step if known is None else together(known, step)
    return joined


def level_for(range_s: float) -> int:
    """The level of the shortest steps that reach back this far."""
    return next(level for level, (length, kept) in enumerate(zip(LENGTHS_S, KEPT, strict=True)) if range_s <= length * kept)


def percentile_s(buckets: Mapping[int, int], grain: int, share: float) -> float | None:
    """The duration in seconds below which this share lies, in the middle of its bucket; None without any."""
    rank, seen = share * sum(buckets.values()), 0
    for number, count in sorted(buckets.items()):
        seen += count
        if seen >= rank:
            # On the scale of the buckets' bounds: the bucket ends behind its last quarter of an octave.
            return float(2 ** ((number - 1 + 2**grain / 2) / PER_OCTAVE)) / 1000
    return None


def percentile_error(grain: int) -> float:
    """How far a percentile may lie from the true one, as a share of it: 9 % with the finest buckets."""
    return float(2 ** (2**grain / 2 / PER_OCTAVE)) - 1

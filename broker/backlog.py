"""Times of a queue: the rate of its slots, how long it takes to drain, and whether a new job would meet its deadline.

Gateways use it to admit jobs, and workers to choose their number of slots. Pure; time is passed in.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from penstock.broker.partitions import partition_for, total
from penstock.broker.records import QueueStats
from penstock.errors import DeadlineUnlikely, Overloaded
from penstock.job import JobId, new_job_id
from penstock.model_spec import ModelInfo, ScalingInfo, SlotInfo

UNKNOWN_DRAIN_S = 5.0
# The assumed start time of a version that never started, and the extra time if another model must leave first.
UNKNOWN_START_S = 5.0
ROOM_COMES_S = 30.0
MIN_SAFETY_S = 0.005
SAFETY_SHARE = 0.15
STALE_S = 0.25
# A caller who was refused because no slot was ready counts as waiting for one for this long.
WANTED_S = 60.0
# The observed rate covers what the learned latencies do not include (decoding, settling, a busy machine). It counts only while
# fresh and never below a share of the learned rate, so that a short stall does not refuse every job.
OBSERVED_FRESH_S = 2.0
OBSERVED_FLOOR = 0.1
# A rate that was observed for this long, and for as long as this many batches take, is no stall. Then the learned rate only
# bounds it from above: the jobs of now may cost a thousand times what the jobs cost that the latencies were learned from.
SUSTAINED_S = 3.0
SUSTAINED_BATCHES = 4
SUSTAINED_MOST_S = 30.0


@dataclass(frozen=True, slots=True)
class SlotCapacity:
    """The throughput of the ready slots of one version, in jobs per second; 0 if not learned yet.

    `per_s`: at the best of all sizes. `full_per_s`: at the largest, which run while jobs wait; one cheap job that ran alone
    makes its small size look a thousand times better than the batches of all others. `start_s`: while no slot is ready, after
    how many seconds one should be; 0: not known. The other figures are then those of that one slot. `on_demand`: a
    worker has it started for the next job.
    """

    ready_slots: int = 0
    per_s: float = 0.0
    latency_s: dict[int, float] = field(default_factory=dict)
    full_per_s: float = 0.0
    start_s: float = 0.0
    on_demand: bool = False

    @property
    def is_served(self) -> bool:
        """Whether a new job will run: on a ready slot, or on one that is started for it."""
        return self.ready_slots > 0 or self.on_demand

    def batch_s(self, ahead: float) -> float:
        """The run time of the batch that will hold a job with `ahead` jobs before it."""
        if not self.latency_s:
            return 0.0
        fitting = [size for size in self.latency_s if size >= ahead + 1]
        return self.latency_s[min(fitting) if fitting else max(self.latency_s)]


def capacity_of(slots: Iterable[SlotInfo]) -> SlotCapacity:
    """Adds up the throughput of each ready slot; the latency of a batch size is that of the slowest slot."""
    count, per_s, full_per_s, latency_s = 0, 0.0, 0.0, dict[int, float]()
    for slot in slots:
        if slot.state != "ready":
            continue
        count += 1
        learned = {size: seconds for size, seconds in slot.latency_s.items() if seconds > 0.0}
        # A slot that overlaps batches counts as one slot per overlapping batch.
        overlap = max(1, slot.at_once)
        rates = [overlap * size / seconds for size, seconds in sorted(learned.items())]
        per_s += max(rates, default=0.0)
        # At least two sizes, because a single measurement may have met a machine that stood still.
        full_per_s += max(rates[-2:], default=0.0)
        for size, seconds in learned.items():
            latency_s[size] = max(seconds, latency_s.get(size, 0.0))
    return SlotCapacity(count, per_s, latency_s, full_per_s)


def on_demand(capacity: SlotCapacity, slots: Iterable[SlotInfo], scaling: Iterable[ScalingInfo]) -> SlotCapacity:
    """The capacity; of a version without a ready slot, that of the slot which a worker starts for its next job.

    `scaling`: what workers announce of it whose slots follow the work. A version whose slots cannot be loaded has none.
    """
    known = list(scaling)
    if capacity.ready_slots or not known or any(slot.state == "failed" for slot in slots):
        return capacity
    waits_s = [(info.start_s or UNKNOWN_START_S) + (0.0 if info.most else ROOM_COMES_S) for info in known]
    latency_s = next((info.latency_s for info in known if info.latency_s), {})
    one = capacity_of([SlotInfo("", "", "ready", latency_s=latency_s)])
    return replace(one, ready_slots=0, start_s=min(waits_s), on_demand=True)


@dataclass(frozen=True, slots=True)
class Demand:
    """A model's load at one moment of the store's clock: jobs accepted so far, ended by workers so far, leased now,
    and those that wait now, by version. `due_in_s`: until the first deadline of the most urgent ones, of versions for which
    some wait.
    """

    now: float
    accepted: int
    ended: int
    leased: int
    waiting: dict[str, int]
    due_in_s: dict[str, float] = field(default_factory=dict)


_BY_WORKERS = ("succeeded", "failed", "dead")


@dataclass(slots=True)
class Backlog:
    """An estimate of one model's queue between two reads of its statistics. Moments are monotonic seconds.

    `open`: by owner, the jobs that have not ended, without those whose start is to come. Owners take turns (D31), so another
    owner's long queue matters little.
    """

    depth: float = 0.0
    leased: int = 0
    depth_at: float = -math.inf
    stats_at: float = -math.inf
    observed_per_s: float = 0.0
    observed_at: float = -math.inf
    last: QueueStats | None = None
    # Moments, and how many jobs had ended by each; since the queue last ran empty, and at most `SUSTAINED_MOST_S` long.
    busy: deque[tuple[float, int]] = field(default_factory=deque)
    open: dict[str, int] = field(default_factory=dict)
    # The waiting jobs of each partition, of a model that has several.
    depths: dict[int, int] = field(default_factory=dict)
    # When a caller who waits for an answer was last refused because no slot was ready.
    refused_at: float = -math.inf

    def is_wanted(self, now: float) -> bool:
        """Whether jobs wait, or a caller would have had one run."""
        return self.depth > 0 or now - self.refused_at <= WANTED_S

    def new_job_id(self, info: ModelInfo, *, owner: str, key: str) -> JobId:
        """Of a job with this idempotency key, empty: with none; in the partition where it goes."""
        if info.partitions == 1:
            return new_job_id(info.name)
        return new_job_id(info.name, partition_for(self.depths, info.partitions, owner=owner, key=key))

    def record_submit(self, depth: int, now: float, *, owner: str = "", partition: int = 0) -> None:
        """The depth in the reply to a submit is that of its partition, and exact at this moment."""
        if self.depths:
            self.depths[partition] = depth
            depth = sum(self.depths.values())
        self.depth, self.depth_at = depth, now
        if owner:
            self.open[owner] = self.open.get(owner, 0) + 1

    def jobs_before(self, owner: str, own: float, waiting: float) -> float:
        """How many of the `waiting` jobs run before a job that has `own` jobs of its owner before it."""
        others = sum(min(count, own + 1) for other, count in self.open.items() if other != owner)
        return min(waiting, own + others) if owner and others else waiting

    def jobs_before_new(self, owner: str, waiting: float) -> float:
        """How many of the `waiting` jobs run before a job that the owner submits now."""
        return self.jobs_before(owner, self.open.get(owner, 0), waiting)

    def record_parts(self, parts: Sequence[QueueStats], now: float, *, batch_size: int) -> None:
        """Statistics of all partitions, in order."""
        self.depths = {number: part.depth for number, part in enumerate(parts)} if len(parts) > 1 else {}
        self.record_stats(total(parts), now, batch_size=batch_size)

    def record_stats(self, stats: QueueStats, now: float, *, batch_size: int) -> None:
        """Statistics of the queue; two of them show the real rate, if the queue never ran empty between them."""
        before, self.last = self.last, stats
        self.depth, self.leased = stats.depth, stats.leased
        self.depth_at = self.stats_at = now
        # A delayed job is ahead of no other job.
        self.open = {owner: count - stats.planned.get(owner, 0) for owner, count in stats.open.items()}
        ran_empty = before is None or min(before.depth, stats.depth) < batch_size
        self._note_busy(now, _ended_by_workers(stats), ran_empty=ran_empty)
        if before is None or ran_empty or stats.now <= before.now:
            return
        rate = (_ended_by_workers(stats) - _ended_by_workers(before)) / (stats.now - before.now)
        fresh = now - self.observed_at <= OBSERVED_FRESH_S
        self.observed_per_s = (self.observed_per_s + rate) / 2.0 if fresh else rate
        self.observed_at = now

    def _note_busy(self, now: float, ended: int, *, ran_empty: bool) -> None:
        if ran_empty or (self.busy and ended < self.busy[-1][1]):  # fewer: the store came back without its counters
            self.busy.clear()
        self.busy.append((now, ended))
        while self.busy[0][0] < now - SUSTAINED_MOST_S:
            self.busy.popleft()

    def sustained(self, capacity: SlotCapacity, now: float) -> float:
        """Jobs per second over the last seconds in which the queue never ran empty; 0 if these were too few."""
        if not self.busy or now - self.busy[-1][0] > OBSERVED_FRESH_S:
            return 0.0
        last_at, last = self.busy[-1]
        if last_at - self.busy[0][0] < SUSTAINED_S:
            return 0.0
        needed_s = max(SUSTAINED_S, SUSTAINED_BATCHES * max(capacity.latency_s.values(), default=0.0))
        earlier = next(((at, ended) for at, ended in reversed(self.busy) if last_at - at >= needed_s), None)
        return (last - earlier[1]) / (last_at - earlier[0]) if earlier else 0.0

    def is_stale(self, now: float) -> bool:
        return now - self.stats_at > STALE_S

    def rate(self, capacity: SlotCapacity, now: float) -> float:
        """Jobs of this queue that workers end per second; 0 if not known.

        While no slot is ready, the next start is unknown, and earlier observations do not predict it.
        """
        if not capacity.ready_slots:
            return 0.0
        if sustained := self.sustained(capacity, now):
            return min(capacity.per_s or sustained, sustained)
        if now - self.observed_at > OBSERVED_FRESH_S or self.observed_per_s <= 0.0:
            return capacity.full_per_s
        if capacity.full_per_s <= 0.0:
            return self.observed_per_s
        # Between two looks one batch more may end than the rate says, so a short observation never raises the rate.
        return min(capacity.full_per_s, max(self.observed_per_s, OBSERVED_FLOOR * capacity.full_per_s))

    def waiting(self, rate: float, now: float) -> float:
        """The last known depth, less the jobs that should have ended since."""
        return max(0.0, self.depth - rate * (now - self.depth_at)) if rate else float(self.depth)

    def drain_s(self, capacity: SlotCapacity, now: float) -> float:
        """Seconds until the queue is empty if no more jobs come; a guess if no rate is known."""
        rate = self.rate(capacity, now)
        if not rate:
            return after_start_s(self.depth, capacity) or UNKNOWN_DRAIN_S
        return self.waiting(rate, now) / rate


def _ended_by_workers(stats: QueueStats) -> int:
    """Jobs that workers ended. Cancelled and expired jobs say nothing about the wait of the next one."""
    return sum(stats.ended.get(state, 0) for state in _BY_WORKERS)


def predicted_s(backlog: Backlog, capacity: SlotCapacity, now: float, *, owner: str = "") -> float:
    """Seconds from now to the end of a job that this owner submits now; 0 while nothing is learned."""
    rate = backlog.rate(capacity, now)
    if not rate:
        return 0.0
    waiting = backlog.jobs_before_new(owner, backlog.waiting(rate, now))
    ahead = waiting + backlog.leased if waiting else 0.0
    return ahead / rate + capacity.batch_s(waiting)


def eta_s(position: float, backlog: Backlog, capacity: SlotCapacity, now: float) -> float | None:
    """Seconds until a job with `position` others before it has run; None while that is unknown."""
    rate = backlog.rate(capacity, now)
    if not rate:
        return after_start_s(position, capacity) or None
    return max(position, 0) / rate + capacity.batch_s(position)


def after_start_s(position: float, capacity: SlotCapacity) -> float:
    """The same while no slot is ready and one is expected: 0 while its start time is unknown."""
    if capacity.ready_slots or not capacity.start_s:
        return 0.0
    run_s = max(position, 0) / capacity.full_per_s if capacity.full_per_s else 0.0
    return capacity.start_s + run_s + capacity.batch_s(position)


def admit(backlog: Backlog, capacity: SlotCapacity, now: float, *, deadline_s: float, max_depth: int, owner: str = "") -> None:
    """Raises `Overloaded` if the queue is at its limit or the job would most likely miss its deadline."""
    rate = backlog.rate(capacity, now)
    waiting = backlog.waiting(rate, now)
    if waiting >= max_depth and not backlog.is_stale(now):
        raise queue_full(int(waiting), max_depth, drain_s=backlog.drain_s(capacity, now))
    # With an empty queue the prediction is one run. Refusing on that would refuse every job from then on.
    if not waiting:
        return
    safety_s = max(MIN_SAFETY_S, SAFETY_SHARE * deadline_s)
    expected_s = predicted_s(backlog, capacity, now, owner=owner)
    if expected_s + safety_s > deadline_s:
        before = max(1.0, backlog.jobs_before_new(owner, waiting))
        raise DeadlineUnlikely(
            f"with about {before:.0f} jobs waiting before it, this job would take about {expected_s:.3g} s; "
            f"its deadline is {deadline_s:g} s",
            retry_after_s=backlog.drain_s(capacity, now),
            hint="Try again after Retry-After, or allow a longer deadline_s.",
        )


class QueueFull(Overloaded):
    pass


def delayed_full(limit: int, *, drain_s: float) -> QueueFull:
    return QueueFull(
        f"As many jobs wait for this model as it may have, those with a later start included: the limit is {limit}",
        retry_after_s=drain_s,
        hint="Submit it later, cancel jobs that wait for their start, or raise max_queue_depth.",
    )


def queue_full(depth: int, limit: int, *, drain_s: float) -> QueueFull:
    return QueueFull(
        f"The model's queue is at its limit: {depth} waiting, the limit is {limit}",
        retry_after_s=drain_s,
        hint="Try again after Retry-After, add workers, or raise max_queue_depth.",
    )

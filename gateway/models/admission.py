"""Whether a job can still be answered in time: predicted wait, refusal, Retry-After. Pure; time is passed in."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.broker.records import QueueStats
from penstock.errors import DeadlineUnlikely, Overloaded
from penstock.model_spec import SlotInfo

UNKNOWN_DRAIN_S = 5.0
MIN_SAFETY_S = 0.005
SAFETY_SHARE = 0.15
STALE_S = 0.25
# An observed rate speaks for what the learned latencies do not see (decoding, settling, a busy machine), but only while fresh,
# and never so far that a short stall shuts the door.
OBSERVED_FRESH_S = 2.0
OBSERVED_FLOOR = 0.1


@dataclass(frozen=True, slots=True)
class SlotCapacity:
    """What the ready slots of one version can do. `per_s` is jobs per second, 0 when not learned yet."""

    ready_slots: int = 0
    per_s: float = 0.0
    latency_s: dict[int, float] = field(default_factory=dict)

    def batch_s(self, ahead: float) -> float:
        """The run time of the batch that a newcomer with `ahead` jobs before it will be part of."""
        if not self.latency_s:
            return 0.0
        fitting = [size for size in self.latency_s if size >= ahead + 1]
        return self.latency_s[min(fitting) if fitting else max(self.latency_s)]


def capacity_of(slots: Iterable[SlotInfo]) -> SlotCapacity:
    """Sum over the ready ones of the best size / latency; the latency kept per size is the slowest slot's."""
    count, per_s, latency_s = 0, 0.0, dict[int, float]()
    for slot in slots:
        if slot.state != "ready":
            continue
        count += 1
        learned = {size: seconds for size, seconds in slot.latency_s.items() if seconds > 0.0}
        per_s += max((size / seconds for size, seconds in learned.items()), default=0.0)
        for size, seconds in learned.items():
            latency_s[size] = max(seconds, latency_s.get(size, 0.0))
    return SlotCapacity(count, per_s, latency_s)


_BY_WORKERS = ("succeeded", "failed", "dead")


@dataclass(slots=True)
class Backlog:
    """An estimate of one model's queue between two looks at the store. Moments are monotonic seconds.

    `open`: by owner, the jobs that have not ended; owners take turns, so that the length of other lines matters little.
    """

    depth: float = 0.0
    leased: int = 0
    depth_at: float = -math.inf
    stats_at: float = -math.inf
    observed_per_s: float = 0.0
    observed_at: float = -math.inf
    last: QueueStats | None = None
    open: dict[str, int] = field(default_factory=dict)

    def submitted(self, depth: int, now: float, *, owner: str = "") -> None:
        """A submit's reply: exact at this moment."""
        self.depth, self.depth_at = depth, now
        if owner:
            self.open[owner] = self.open.get(owner, 0) + 1

    def before(self, owner: str, own: float, waiting: float) -> float:
        """How many of the `waiting` jobs go before the one with `own` jobs of its owner before it."""
        others = sum(min(count, own + 1) for other, count in self.open.items() if other != owner)
        return min(waiting, own + others) if owner and others else waiting

    def newcomer(self, owner: str, waiting: float) -> float:
        """The same for a job that its owner submits now."""
        return self.before(owner, self.open.get(owner, 0), waiting)

    def measured(self, stats: QueueStats, now: float, *, batch_size: int) -> None:
        """A look at the queue; two looks at a queue that never ran dry tell the real rate."""
        before, self.last = self.last, stats
        self.depth, self.leased = stats.depth, stats.leased
        self.depth_at = self.stats_at = now
        self.open = dict(stats.open)
        if before is None or min(before.depth, stats.depth) < batch_size or stats.now <= before.now:
            return
        rate = (_served(stats) - _served(before)) / (stats.now - before.now)
        fresh = now - self.observed_at <= OBSERVED_FRESH_S
        self.observed_per_s = (self.observed_per_s + rate) / 2.0 if fresh else rate
        self.observed_at = now

    def stale(self, now: float) -> bool:
        return now - self.stats_at > STALE_S

    def rate(self, capacity: SlotCapacity, now: float) -> float:
        """Jobs per second that the queue is served with; 0: not known."""
        if now - self.observed_at > OBSERVED_FRESH_S or self.observed_per_s <= 0.0:
            return capacity.per_s
        if capacity.per_s <= 0.0:
            return self.observed_per_s
        return min(capacity.per_s, max(self.observed_per_s, OBSERVED_FLOOR * capacity.per_s))

    def waiting(self, rate: float, now: float) -> float:
        """The depth last seen, less what must have been served since."""
        return max(0.0, self.depth - rate * (now - self.depth_at)) if rate else float(self.depth)

    def drain_s(self, capacity: SlotCapacity, now: float) -> float:
        """Seconds until the queue is empty if nothing more comes; a guess where no rate is known."""
        rate = self.rate(capacity, now)
        return self.waiting(rate, now) / rate if rate else UNKNOWN_DRAIN_S


def _served(stats: QueueStats) -> int:
    """Jobs that workers ended. Cancelled and expired ones say nothing of the next one's wait."""
    return sum(stats.ended.get(state, 0) for state in _BY_WORKERS)


def predicted_s(backlog: Backlog, capacity: SlotCapacity, now: float, *, owner: str = "") -> float:
    """Seconds from now to the end of a job of this owner submitted now; 0 while nothing is learned."""
    rate = backlog.rate(capacity, now)
    if not rate:
        return 0.0
    waiting = backlog.newcomer(owner, backlog.waiting(rate, now))
    ahead = waiting + backlog.leased if waiting else 0.0
    return ahead / rate + capacity.batch_s(waiting)


def eta_s(position: float, backlog: Backlog, capacity: SlotCapacity, now: float) -> float | None:
    """Seconds until the job with `position` others before it has run, or None while the rate is not known."""
    rate = backlog.rate(capacity, now)
    return max(position, 0) / rate + capacity.batch_s(position) if rate else None


def admit(backlog: Backlog, capacity: SlotCapacity, now: float, *, deadline_s: float, max_depth: int, owner: str = "") -> None:
    """Raises `Overloaded` when the queue is at its limit or the job would most likely miss its deadline."""
    rate = backlog.rate(capacity, now)
    waiting = backlog.waiting(rate, now)
    if waiting >= max_depth and not backlog.stale(now):
        raise queue_full(int(waiting), max_depth, drain_s=backlog.drain_s(capacity, now))
    safety_s = max(MIN_SAFETY_S, SAFETY_SHARE * deadline_s)
    expected_s = predicted_s(backlog, capacity, now, owner=owner)
    # With an empty queue the prediction is one run; refusing on it would shut the door for good.
    if waiting and expected_s + safety_s > deadline_s:
        before = max(1.0, backlog.newcomer(owner, waiting))
        raise DeadlineUnlikely(
            f"with about {before:.0f} waiting before it, this job would take some {expected_s:.3g} s; "
            f"its deadline is {deadline_s:g} s",
            retry_after_s=backlog.drain_s(capacity, now),
            hint="Try again after Retry-After, or allow a longer deadline_s.",
        )


class QueueFull(Overloaded):
    pass


def queue_full(depth: int, limit: int, *, drain_s: float) -> QueueFull:
    return QueueFull(
        f"The model's queue is at its limit: {depth} waiting, the limit is {limit}",
        retry_after_s=drain_s,
        hint="Try again after Retry-After, add workers, or raise max_queue_depth.",
    )

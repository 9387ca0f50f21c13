"""The arrivals per second of a model and the rate of its slots, from the store's counts. Time is passed in."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.broker.backlog import Backlog, Demand, capacity_of
from penstock.broker.records import QueueStats
from penstock.model_spec import SlotInfo

# Arrivals are averaged over about this many seconds.
ARRIVALS_S = 5.0


def joined(parts: Sequence[Demand]) -> Demand:
    """The demand of a model over all its queues; takes at least one part."""
    waiting: Counter[str] = Counter()
    due_in_s: dict[str, float] = {}
    for part in parts:
        waiting.update(part.waiting)
        for version, due in part.due_in_s.items():
            due_in_s[version] = min(due, due_in_s.get(version, math.inf))
    accepted, ended, leased = (sum(counts) for counts in zip(*((p.accepted, p.ended, p.leased) for p in parts), strict=True))
    return Demand(max(part.now for part in parts), accepted, ended, leased, dict(waiting), due_in_s)


@dataclass(slots=True)
class ModelDemand:
    """The demand of one model. `backlog` is the estimate that gateways also use to admit jobs."""

    backlog: Backlog = field(default_factory=Backlog)
    arrivals_per_s: float = 0.0
    last: Demand | None = None

    def waiting(self, version: str) -> int:
        return self.last.waiting.get(version, 0) if self.last else 0

    def due_in_s(self, version: str) -> float:
        """Seconds until the first deadline of the waiting jobs; infinity if none waits."""
        return self.last.due_in_s.get(version, math.inf) if self.last else math.inf

    def note(self, demand: Demand, now: float, *, batch_size: int) -> None:
        """`now` is monotonic."""
        before, self.last = self.last, demand
        stats = QueueStats(
            "", demand.now, ready={0: sum(demand.waiting.values())}, leased=demand.leased, ended={"succeeded": demand.ended}
        )
        self.backlog.record_stats(stats, now, batch_size=batch_size)
        if before is None or demand.now <= before.now or demand.accepted < before.accepted:
            return
        passed_s = demand.now - before.now
        kept = math.exp(-passed_s / ARRIVALS_S)
        self.arrivals_per_s = kept * self.arrivals_per_s + (1 - kept) * (demand.accepted - before.accepted) / passed_s

    def rates(self, slots: Mapping[str, Iterable[SlotInfo]], now: float) -> dict[str, float]:
        """Jobs per second of the ready slots of each version; `slots` are those of all workers, by version."""
        capacities = {version: capacity_of(infos) for version, infos in slots.items()}
        full = sum(capacity.full_per_s for capacity in capacities.values())
        total = capacity_of(slot for infos in slots.values() for slot in infos)
        rate = self.backlog.rate(total, now)
        if not full:
            return {version: rate if len(capacities) == 1 else 0.0 for version in capacities}
        return {version: rate * capacity.full_per_s / full for version, capacity in capacities.items()}

"""Worker processes that scale one model by themselves, simulated second by second. Each knows of the others what they announced
some seconds ago, as in the registry.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from penstock.extensions.autoscaling.worker.policy import VersionReading, VersionScaler
from penstock.extensions.autoscaling.worker.shares import HostSlots
from penstock.model_spec import ScalingPolicy

# How old another worker's announcement is: a beat.
STALE_S = 4
ARRIVALS_KEPT = 0.8


@dataclass
class Host:
    """`ready_at`: when each of its slots is ready. `most`: how many it can have."""

    name: str
    scaler: VersionScaler
    most: int
    ready_at: list[float] = field(default_factory=list)
    starts: int = 0
    history: deque[int] = field(default_factory=lambda: deque(maxlen=STALE_S))

    @property
    def slots(self) -> int:
        return len(self.ready_at)

    def ready(self, now: float) -> int:
        return sum(at <= now for at in self.ready_at)

    def bring_to(self, count: int, now: float, start_s: float) -> None:
        self.starts += max(0, count - self.slots)
        self.ready_at = sorted(self.ready_at)[:count] + [now + start_s] * max(0, count - self.slots)


class SimulatedFleet:
    """`per_slot`: jobs per second of a slot. `now` begins at 0."""

    def __init__(
        self, policy: ScalingPolicy, *, hosts: int, start_s: float, per_slot: float, deadline_s: float = 3_600.0
    ) -> None:
        self.policy, self.start_s, self.per_slot = policy, start_s, per_slot
        names = [f"host-{number}" for number in range(hosts)]
        self.hosts = [Host(name, VersionScaler(name, policy, deadline_s, used_at=0.0), policy.max_slots) for name in names]
        for host in self.hosts:
            host.bring_to(policy.min_slots, -start_s, start_s)
            host.starts = 0
        self.now, self.waiting, self.arrivals = 0.0, 0.0, 0.0
        self.reasons: list[str] = []

    @property
    def slots(self) -> int:
        return sum(host.slots for host in self.hosts)

    @property
    def ready(self) -> int:
        return sum(host.ready(self.now) for host in self.hosts)

    @property
    def starts(self) -> int:
        return sum(host.starts for host in self.hosts)

    @property
    def backlog_s(self) -> float:
        return self.waiting / (self.per_slot * self.ready) if self.ready else float("inf") if self.waiting else 0.0

    def run(self, seconds: int, *, arrivals: float = 0.0) -> None:
        for _ in range(seconds):
            self._second(arrivals)

    def submit(self, jobs: float) -> None:
        self.waiting += jobs

    def _second(self, arrivals: float) -> None:
        self.now += 1.0
        self.arrivals = ARRIVALS_KEPT * self.arrivals + (1 - ARRIVALS_KEPT) * arrivals
        busy = bool(self.waiting or arrivals)
        self.waiting = max(0.0, self.waiting + arrivals - self.per_slot * self.ready)
        for host in self.hosts:
            reading = self._reading(host, busy)
            if target := host.scaler.decide(reading, self.now):
                self.reasons.append(target.reason.value)
                host.bring_to(target.slots, self.now, self.start_s)
        for host in self.hosts:
            host.history.append(host.slots)

    def _reading(self, host: Host, busy: bool) -> VersionReading:
        hosts = {one.name: HostSlots(self._known(one, host), self.policy.min_slots, one.most) for one in self.hosts}
        rate = self.per_slot * self.ready
        return VersionReading(
            round(self.waiting),
            self.arrivals,
            self.ready,
            rate,
            self.start_s,
            busy and host.ready(self.now) > 0,
            hosts,
            slot_rate=self.per_slot,
        )

    def _known(self, one: Host, by: Host) -> int:
        return one.slots if one is by or not one.history else one.history[0]

"""Decides how many slots of one version a worker process should have. Pure; time is passed in.

It adds slots if the backlog would exceed the goal for as long as a load takes, removes them after a rest, and removes the last
ones after idleness.
D112: docs/design/workers-and-devices.md
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from penstock.extensions.autoscaling.worker.shares import HostSlots, shares
from penstock.model_spec import ScalingPolicy

# A slot that is busy for more than this share of its time makes jobs wait for each other.
BUSY_SHARE = 0.7
# At least two readings of the queue, so that one crowded moment starts no slot.
LEAST_PRESSURE_S = 1.5
# The assumed time of a load that was not measured yet.
UNKNOWN_START_S = 5.0
LEAST_REST_S = 15.0
REST_LOADS = 3.0
# Half of a job's time is for its wait, the rest for its run and for what goes wrong.
DEADLINE_SHARE = 0.5
LEAST_WAIT_S = 0.05


class Reason(StrEnum):
    """Why the number of a version's slots changed."""

    START = "start"  # the worker started, or an operator gave the number back
    BACKLOG = "backlog"  # waiting jobs would take longer than the goal
    REST = "rest"  # fewer were needed for a while
    IDLE = "idle"  # nothing was asked for during idle_unload_s
    DEMAND = "demand"  # a job waits, and the version had no slot
    ROOM = "room"  # another model on the device needs the memory


@dataclass(frozen=True, slots=True)
class VersionReading:
    """One version at one moment. `waiting` jobs, over all workers; `due_in_s`: until the deadline of the first of them;
    `arrivals_per_s` of the last seconds; `rate`: jobs per second of its `ready` slots over all workers, 0 if not known;
    `start_s`: how long a slot takes until it is ready, 0 if not known; `is_running`: slots of this process run something, or
    did since the last reading. `hosts`: by worker, this one included.
    """

    waiting: int
    arrivals_per_s: float
    ready: int
    rate: float
    start_s: float
    is_running: bool
    hosts: Mapping[str, HostSlots]
    # Jobs per second of a slot when there last was one; 0 if there never was.
    slot_rate: float = 0.0
    due_in_s: float = math.inf

    @property
    def per_slot(self) -> float:
        """Jobs per second of one slot; 0 if not known."""
        return self.rate / self.ready if self.ready and self.rate else self.slot_rate

    @property
    def backlog_s(self) -> float:
        """Seconds until the waiting jobs have run; infinity if no slot is ready or their run time is not known."""
        if not self.waiting:
            return 0.0
        return self.waiting / self.rate if self.ready and self.rate else math.inf

    @property
    def announced(self) -> int:
        """Slots that exist or are being started, over all workers."""
        return sum(host.now for host in self.hosts.values())


@dataclass(frozen=True, slots=True)
class Target:
    slots: int
    reason: Reason


@dataclass(slots=True)
class VersionScaler:
    """The state of one version in the process `name`. `deadline_s`: the default deadline of its jobs.

    Moments are monotonic seconds.
    """

    name: str
    policy: ScalingPolicy
    deadline_s: float
    used_at: float
    _pressed_since: float | None = field(default=None)
    _calm_since: float | None = field(default=None)
    _most_needed: int = field(default=0)

    @property
    def goal_s(self) -> float:
        return min(self.policy.goal_s, DEADLINE_SHARE * self.deadline_s)

    def decide(self, reading: VersionReading, now: float) -> Target | None:
        """How many slots this process should have from now on, and why; None for no change."""
        if reading.waiting or reading.is_running:
            self.used_at = now
        own = reading.hosts[self.name].now
        if self._is_idle(now):
            self._pressed_since = self._calm_since = None
            return Target(0, Reason.IDLE) if own else None
        self._note_pressure(reading, now)
        share = self._share(reading)
        if share > own:
            return self._up(reading, own, share, now)
        return self._down(reading, own, share, now)

    def _is_idle(self, now: float) -> bool:
        return self.policy.idle_unload_s is not None and now - self.used_at >= self.policy.idle_unload_s

    def _note_pressure(self, reading: VersionReading, now: float) -> None:
        # Jobs with short deadlines are refused before a long backlog can build up, so their own deadline counts.
        if reading.backlog_s <= min(self.goal_s, max(LEAST_WAIT_S, DEADLINE_SHARE * reading.due_in_s)):
            self._pressed_since = None
        elif self._pressed_since is None:
            self._pressed_since = now

    def _share(self, reading: VersionReading) -> int:
        return shares(self.needed(reading), reading.hosts)[self.name]

    def needed(self, reading: VersionReading) -> int:
        """Slots over all workers that match the arrivals and clear the queue within the goal; at least one."""
        per_slot = reading.per_slot
        if not per_slot:
            # The speed of a slot is not known: start with one, and add one whenever jobs wait for too long.
            return max(1, reading.announced + (1 if self._pressed_since is not None and reading.ready else 0))
        keeps_up = reading.arrivals_per_s / (BUSY_SHARE * per_slot)
        return max(1, math.ceil(keeps_up + reading.waiting / self.goal_s / per_slot - 1e-9))

    # More slots.

    def _up(self, reading: VersionReading, own: int, share: int, now: float) -> Target | None:
        self._calm_since = None
        least = reading.hosts[self.name].least
        if reading.waiting and not reading.announced:
            return Target(share, Reason.DEMAND)
        if own < least and (own or reading.waiting or self.policy.idle_unload_s is None):
            return Target(least, Reason.START)
        if self._pressed_since is None or not self._pays(reading):
            return None
        if now - self._pressed_since < max(LEAST_PRESSURE_S, self._start_s(reading)):
            return None
        # The next step waits until these slots have had their effect.
        self._pressed_since = now
        return Target(share, Reason.BACKLOG)

    def _pays(self, reading: VersionReading) -> bool:
        """Whether there will still be work when one more slot is ready. A slot that would come too late is not started."""
        if not (reading.ready and reading.rate):
            return True
        return reading.waiting + (reading.arrivals_per_s - reading.rate) * self._start_s(reading) > 0

    def _start_s(self, reading: VersionReading) -> float:
        return reading.start_s or UNKNOWN_START_S

    # Fewer slots.

    def _down(self, reading: VersionReading, own: int, share: int, now: float) -> Target | None:
        if share >= own or self._pressed_since is not None:
            self._calm_since = None
            return None
        if self._calm_since is None:
            self._calm_since, self._most_needed = now, share
        self._most_needed = max(self._most_needed, share)
        if now - self._calm_since < max(LEAST_REST_S, REST_LOADS * self._start_s(reading)):
            return None
        self._calm_since = None
        return Target(self._most_needed, Reason.REST)

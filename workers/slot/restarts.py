"""When a slot's child is started again, how long its device rests before, and when a working child is replaced."""

from __future__ import annotations

from penstock.backoff import Backoff
from penstock.model_spec import Limits
from penstock.workers.slot.child_process import ChildProcess

_MEASURE_EVERY_S = 0.02
_WORN_SHARE = 0.8
_BACKOFF = Backoff(1.0, 60.0)
_MOST_FAULTS, _FAULT_WINDOW_S = 3, 60.0
_REST = Backoff(60.0, 600.0)


class Restarts:
    """How long to wait before the next start: not at all, then 1 s, 2 s, 4 s ... 60 s, until a batch succeeds."""

    def __init__(self) -> None:
        self._failures = 0
        self.total = 0

    def on_failure(self) -> float:
        delay = _BACKOFF.delay_s(self._failures)
        self._failures += 1
        self.total += 1
        return delay

    def on_success(self) -> None:
        self._failures = 0


class DeviceHealth:
    """Counts the faults of one slot's device. After three within a minute it rests for a minute, then two, four, ... ten.

    Moments are monotonic and passed in.
    """

    def __init__(self) -> None:
        self._recent: list[float] = []
        self._rests = 0
        self._trusted_at = float("inf")

    def on_fault(self, now: float) -> float:
        """Seconds to rest, or 0.0. A minute without a fault after a rest clears the count."""
        if now > self._trusted_at:
            self._rests, self._recent, self._trusted_at = 0, [], float("inf")
        self._recent = [*(at for at in self._recent if now - at < _FAULT_WINDOW_S), now]
        if len(self._recent) < _MOST_FAULTS and not self._rests:
            return 0.0
        self._rests += 1
        rest_s = _REST.delay_s(self._rests)
        self._trusted_at = now + rest_s + _FAULT_WINDOW_S
        return rest_s


class Recycling:
    """Replaces one child between two batches, before a leak meets the memory limit inside one.

    A worn child is given no more shards. Once it has no shard left it `is_due`: it is given nothing more, and ends when it is
    empty.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._measure_at = float("-inf")
        self.runs = 0
        self.is_worn = False
        self.is_due = False
        self.due_at = float("-inf")

    def check(self, child: ChildProcess, now: float) -> bool:
        """Look at the child's wear. True when its replacement has just become due."""
        if not self.is_worn:
            self.is_worn = self._has_spent_its_runs() or self._is_bloated(child, now)
        # A shard may run for minutes. It ends first, and online batches continue meanwhile.
        if not self.is_worn or self.is_due or child.in_flight.has_shards:
            return False
        self.is_due, self.due_at = True, now
        return True

    def _has_spent_its_runs(self) -> bool:
        most = self._limits.recycle_after_batches
        return most is not None and self.runs >= most

    def _is_bloated(self, child: ChildProcess, now: float) -> bool:
        limit = self._limits.memory_limit_bytes
        if not limit or now < self._measure_at:
            return False
        self._measure_at = now + _MEASURE_EVERY_S
        return child.resident_bytes() > limit * _WORN_SHARE

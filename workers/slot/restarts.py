"""When a slot's child is started again, and when it is replaced while it still works."""

from __future__ import annotations

from penstock.backoff import Backoff
from penstock.model_spec import Limits
from penstock.workers.slot.child_process import ChildProcess

_MEASURE_EVERY_S = 0.02
_WORN_SHARE = 0.8
_BACKOFF = Backoff(1.0, 60.0)


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

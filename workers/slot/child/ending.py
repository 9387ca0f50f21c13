"""When a child should end, why it ended, and what follows: wear, time limits, the batches lost with it, restarts.

Pure but for a look at the child's memory: moments are monotonic and passed in.
"""

from __future__ import annotations

from penstock.backoff import Backoff
from penstock.model_spec import Limits
from penstock.workers.ipc.frames import DeviceLost
from penstock.workers.slot.batch import Batch
from penstock.workers.slot.child.events import Cause
from penstock.workers.slot.child.in_flight import InFlight
from penstock.workers.slot.child.process import ChildProcess

_MEASURE_EVERY_S = 0.02
_WORN_SHARE = 0.8
_BACKOFF = Backoff(1.0, 60.0)
_MOST_FAULTS, _FAULT_WINDOW_S = 3, 60.0
_REST = Backoff(60.0, 600.0)


class Restarts:
    """How long to wait before the next start: not at all, then 1 s, 2 s, 4 s ... 60 s, until a batch succeeds."""

    def __init__(self) -> None:
        self.failures = 0
        self.total = 0

    def on_failure(self) -> float:
        delay = _BACKOFF.delay_s(self.failures)
        self.failures += 1
        self.total += 1
        return delay

    def on_success(self) -> None:
        self.failures = 0


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

    Without a limit (`is_limited`) no child wears. A worn child is given no more shards. Once it has no shard left it `is_due`:
    it is given nothing more, and ends when it is empty.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.is_limited = limits.recycle_after_batches is not None or bool(limits.memory_limit_bytes)
        self._measure_at = float("-inf")
        # How many batches came back, and how many of them count as one: several where each item is a batch.
        self.runs = 0
        self.items_per_run = 1
        self.is_worn = False
        self.is_due = False
        self.due_at = float("-inf")

    def wear_out(self) -> None:
        """Have the child replaced, whatever its limits."""
        self.is_limited = self.is_worn = True

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
        return most is not None and self.batches >= most

    @property
    def batches(self) -> int:
        return self.runs // self.items_per_run

    def _is_bloated(self, child: ChildProcess, now: float) -> bool:
        limit = self._limits.memory_limit_bytes
        if not limit or now < self._measure_at:
            return False
        self._measure_at = now + _MEASURE_EVERY_S
        return child.resident_bytes() > limit * _WORN_SHARE


class ChildEnd:
    """The facts of the end of one child, collected from its start on."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.recycling = Recycling(limits)
        self.is_hung = False
        # Why the slot ends the child; its exit alone would look like a kill for lack of memory.
        self.why = ""
        self.fault: DeviceLost | None = None

    def on_hung(self, *, is_ready: bool) -> None:
        ran, limit_s = ("ran", self._limits.max_run_s) if is_ready else ("loaded for", self._limits.load_timeout_s)
        self.is_hung, self.why = True, f"killed: {ran} longer than {limit_s:g} s"

    def reason(self, *, is_ready: bool) -> str:
        """As in `ChildExited`."""
        if self.recycling.is_due or self.is_hung:
            return "recycled" if self.recycling.is_due else "timeout"
        if self.fault:
            return "device"
        return "crashed" if is_ready else "unloadable"

    def causes(self, in_flight: InFlight) -> list[tuple[Batch, Cause]]:
        """For each batch of the child, why it is lost."""
        suspects = in_flight.suspects(is_hung=self.is_hung)
        return [(batch, self._cause(in_flight, batch) if is_suspect else Cause.UNSTARTED) for batch, is_suspect in suspects]

    def _cause(self, in_flight: InFlight, batch: Batch) -> Cause:
        # D26: an error that no input can cause is not charged.
        if self.fault and self.fault.broken:
            return Cause.UNSTARTED
        return Cause.TIMED_OUT if self.is_hung and in_flight.is_sole_suspect(batch) else Cause.CRASHED

"""The progress of a run in numbers. Pure: times are passed in."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from penstock.run import RunCounts

_SPAN_S = 10.0


@dataclass(frozen=True, slots=True)
class RunProgress:
    """`rows_per_s`: over the last seconds. `busy`: the devices' busy share since the start. `note`: what the run waits for.

    `share`: the completed share of the input, 0 to 1; None if unknown.
    """

    counts: RunCounts = field(default_factory=RunCounts)
    stage: str = ""
    rows_per_s: float = 0.0
    busy: float | None = None
    elapsed_s: float = 0.0
    note: str = ""
    share: float | None = None

    @property
    def eta_s(self) -> float | None:
        """Seconds until the last row at this rate; None while the rate or the rest is unknown."""
        rows = self.counts.done + self.counts.failed
        total = rows / self.share if self.counts.total is None and self.share else self.counts.total
        return None if total is None or self.rows_per_s <= 0.0 else max(0.0, (total - rows) / self.rows_per_s)


class ProgressMeter:
    """Counts finished rows and seconds on devices. Times are monotonic seconds."""

    # `share`: the share of the input behind the rows so far, where the number of rows is unknown.

    def __init__(self, counts: RunCounts, *, now: float) -> None:
        self.counts = counts
        self._started_at = now
        self._before = counts.done + counts.failed
        self._samples: deque[tuple[float, int]] = deque([(now, self._before)])
        self._device_s = 0.0
        self.share: float | None = None

    def add_rows(self, *, done: int, failed: int, now: float) -> None:
        self.counts = RunCounts(total=self.counts.total, done=self.counts.done + done, failed=self.counts.failed + failed)
        self._samples.append((now, self.counts.done + self.counts.failed))
        while len(self._samples) > 2 and now - self._samples[1][0] > _SPAN_S:
            self._samples.popleft()

    def add_device_time(self, seconds: float) -> None:
        self._device_s += seconds

    def measure(self, now: float, *, slots: int, stage: str = "", note: str = "") -> RunProgress:
        elapsed_s = now - self._started_at
        first_at, first = self._samples[0]
        recent_s = now - first_at
        rate = (self.counts.done + self.counts.failed - first) / recent_s if recent_s > 0 else 0.0
        busy = min(1.0, self._device_s / (elapsed_s * slots)) if elapsed_s > 0 and slots else None
        return RunProgress(self.counts, stage, rate, busy, elapsed_s, note, self._share())

    def _share(self) -> float | None:
        if self.counts.total is None:
            return self.share
        return (self.counts.done + self.counts.failed) / self.counts.total if self.counts.total else None

    def mean_rate(self, now: float) -> float:
        """Rows per second since the start of this drive."""
        elapsed_s = now - self._started_at
        return (self.counts.done + self.counts.failed - self._before) / elapsed_s if elapsed_s > 0 else 0.0

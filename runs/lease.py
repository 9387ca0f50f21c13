"""The lease of a run that this process drives: renewed in the store, which keeps the record and passes on requests to stop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from penstock.broker.contract import UpdateStatus
from penstock.broker.run_contract import RunChange
from penstock.broker.store.runs import RunStore
from penstock.errors import StoreUnavailable
from penstock.run import Run, RunCounts, RunPart
from penstock.runs.driver import StopReason
from penstock.runs.model_lookup import Slots
from penstock.runs.progress import RunProgress

log = logging.getLogger("penstock.runs")
T = TypeVar("T")

LEASE_S = 15.0
# The driver stops writing this long before the lease ends, because the store's answers take time.
_MARGIN_S = 2.0
BEAT_S = 1.0
_BEATS_PER_SLOT_COUNT = 2
_WRITE_TIMEOUT_S = 30.0
_RETRY_PAUSE_S = 0.25
_STOPS = {
    UpdateStatus.CANCEL: StopReason.CANCEL,
    UpdateStatus.LEAVE: StopReason.INTERRUPT,
    UpdateStatus.LOST: StopReason.LOST,
    UpdateStatus.FINAL: StopReason.LOST,
}
# The store had the record, and this process is its driver.
_GRANTED = (UpdateStatus.OK, UpdateStatus.CANCEL, UpdateStatus.LEAVE)


@dataclass(frozen=True, slots=True)
class OwnedRun:
    """A run, and the name under which this process drives it since `taken_at`, a moment of the store's clock."""

    run: Run
    driver: str
    taken_at: float


class RunLease:
    """Renews the lease from a thread of its own, over a connection of its own, until `close`. A `RunWatch` for the driver.

    While the store is away the thread keeps trying. If another driver takes the run meanwhile, the reason to stop is `LOST`.
    """

    def __init__(
        self,
        owned: OwnedRun,
        runs: RunStore,
        *,
        count_slots: Callable[[], Slots],
        on_progress: Callable[[RunProgress], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._confirmed_at = float("-inf")
        self._owned, self._runs, self._count_slots, self._on_progress = owned, runs, count_slots, on_progress
        self._slots = Slots()
        self._stop, self._interrupted = StopReason.GO_ON, False
        self._built_at = clock()
        self._progress: RunProgress | None = None
        # For a part: its own counts in the store, and those of the other parts at that moment.
        self._reported, self._others = owned.run.counts, RunCounts()
        self._ended = threading.Event()
        # The thread of the lease and the thread that ends the run write the record over one connection.
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._keep_beating, name="run-beat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def stop_reason(self) -> StopReason:
        if not self._stop and self.left_s() < 0.0:
            return StopReason.EXPIRE
        return self._stop

    def is_hurried(self) -> bool:
        return self._interrupted or self._stop is StopReason.LOST

    def now(self) -> float:
        """The store's clock, estimated since the take, because hosts' clocks differ and the store may be unreachable."""
        return self._owned.taken_at + self._clock() - self._built_at

    def left_s(self) -> float:
        """The time until the run's deadline; infinite for a run without one."""
        run = self._owned.run
        return run.created_at + run.spec.deadline_s - self.now() if run.spec.deadline_s else float("inf")

    def is_held(self) -> bool:
        """Whether no other driver can have the run: the store granted the lease, and by our clock it has not ended."""
        return self._clock() < self._confirmed_at + LEASE_S - _MARGIN_S

    def counts_of_run(self, own: RunCounts) -> RunCounts:
        """The run's counts; for a part, including those of the other parts at the last beat."""
        others = self._others
        if self._owned.run.part is None:
            return own
        return RunCounts(total=others.total, done=own.done + others.done, failed=own.failed + others.failed)

    def slots(self) -> Slots:
        return self._slots

    def on_progress(self, progress: RunProgress) -> None:
        self._progress = progress
        self._on_progress(progress)

    @property
    def last_progress(self) -> RunProgress | None:
        return self._progress

    def interrupt(self) -> None:
        """Ask the driver to leave the run at its next commit, so that it can be resumed."""
        self._interrupted = True
        self._stop = self._stop or StopReason.INTERRUPT

    def refresh_slots(self) -> None:
        try:
            with self._lock:
                self._slots = self._count_slots()
        except StoreUnavailable as away:
            log.info("slots_not_counted", extra={"run": self._owned.run.id, "error": away.message})

    def refresh_others(self) -> None:
        """Read the progress of the other parts of the run."""
        run = self._owned.run
        whole = self._runs.read(run.part_of) if run.part else None
        if whole is not None:
            all_rows, own = whole.counts, self._reported
            self._others = RunCounts(total=all_rows.total, done=all_rows.done - own.done, failed=all_rows.failed - own.failed)

    def beat(self) -> None:
        progress = self._progress
        change = RunChange()
        if progress is not None:
            change = RunChange(counts=progress.counts, rows_per_s=progress.rows_per_s, busy=progress.busy)
        try:
            with self._lock:
                self._follow(self._update(change, LEASE_S))
                self.refresh_others()
        except StoreUnavailable as away:
            log.info("run_not_updated", extra={"run": self._owned.run.id, "error": away.message})

    def _follow(self, status: UpdateStatus) -> None:
        if status is UpdateStatus.MISSING:
            # D42: the store lost its records; the journal beside the output still has the run. Creating the record again lets
            # others find the run under its id.
            run = self._owned.run
            self._runs.create(run.part_of or run.id, run.spec, owner=run.owner)
            if run.part is None:
                self._runs.take(run.id, self._owned.driver, lease_s=LEASE_S)
            else:
                # The next driver cuts the run again and finds the journals of its parts.
                self._stop = StopReason.LOST
        self._stop = _STOPS.get(status, self._stop)

    def write(self, change: RunChange, *, lease_s: float = LEASE_S) -> UpdateStatus | None:
        """Write a change; retry for half a minute while the store is unreachable. None if it stays so."""
        return self._insist(lambda: self._update(change, lease_s))

    def split(self, parts: Sequence[RunPart], counts: RunCounts) -> UpdateStatus | None:
        """Write the parts of the run; otherwise as `write`."""
        return self._insist(lambda: self._runs.split(self._owned.run.id, self._owned.driver, parts, counts))

    def parts(self) -> list[Run] | None:
        """The parts of the run; None if the store stays unreachable."""
        return self._insist(lambda: self._runs.parts(self._owned.run.id))

    def _insist(self, call: Callable[[], T]) -> T | None:
        give_up_at = time.monotonic() + _WRITE_TIMEOUT_S
        while True:
            try:
                with self._lock:
                    return call()
            except StoreUnavailable as away:
                log.warning("run_not_updated", extra={"run": self._owned.run.id, "error": away.message})
                if time.monotonic() > give_up_at:
                    return None
                time.sleep(_RETRY_PAUSE_S)

    def _update(self, change: RunChange, lease_s: float) -> UpdateStatus:
        # The lease counts from before the call: the answer may be late, and this process may freeze before it reads it.
        sent_at = self._clock()
        status = self._runs.update(self._owned.run.id, self._owned.driver, change, lease_s=lease_s)
        if status in _GRANTED and lease_s >= LEASE_S:
            self._confirmed_at = max(self._confirmed_at, sent_at)
        if status in _GRANTED and change.counts is not None:
            self._reported = change.counts
        return status

    def _keep_beating(self) -> None:
        turn = 0
        while not self._ended.wait(BEAT_S):
            turn += 1
            self.beat()
            if turn % _BEATS_PER_SLOT_COUNT == 0:
                self.refresh_slots()

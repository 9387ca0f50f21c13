"""A run held by this process: its lease is renewed, its record kept up to date, and what is asked of it is heard."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from penstock.broker.run_contract import RunChange, Runs, UpdateStatus
from penstock.errors import StoreUnavailable
from penstock.run import Run
from penstock.runs.driver import StopReason
from penstock.runs.model_lookup import Slots
from penstock.runs.progress import RunProgress

log = logging.getLogger("penstock.runs")

LEASE_S = 15.0
BEAT_S = 1.0
_SLOTS_EVERY = 2
_LAST_WORD_S = 30.0
_PAUSE_S = 0.25
_STOPS = {UpdateStatus.CANCEL: StopReason.CANCEL, UpdateStatus.LOST: StopReason.LOST, UpdateStatus.FINAL: StopReason.LOST}


@dataclass(frozen=True, slots=True)
class OwnedRun:
    """Which run, and the name under which this process drives it."""

    run: Run
    driver: str


class RunLease:
    """Beats from a thread of its own, over connections of its own, until `close`. Answers the driver without waiting.

    While the store is away it beats on; a run that another driver took meanwhile ends here with `StopReason.LOST`.
    """

    def __init__(
        self, held: OwnedRun, runs: Runs, *, count_slots: Callable[[], Slots], told: Callable[[RunProgress], None]
    ) -> None:
        self._held, self._runs, self._count_slots, self._told = held, runs, count_slots, told
        self._slots = Slots()
        self._stop = StopReason.GO_ON
        wanted = held.run.spec.deadline_s
        self._expires_at = held.run.created_at + wanted if wanted else float("inf")
        self._progress: RunProgress | None = None
        self._ended = threading.Event()
        # The record is written by the beat and by whoever ends the run, over one connection.
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._beat_on, name="run-beat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def stop(self) -> StopReason:
        if not self._stop and time.time() > self._expires_at:
            return StopReason.EXPIRE
        return self._stop

    def slots(self) -> Slots:
        return self._slots

    def told(self, progress: RunProgress) -> None:
        self._progress = progress
        self._told(progress)

    @property
    def last(self) -> RunProgress | None:
        return self._progress

    def interrupt(self) -> None:
        """Leave the run as it is, to be resumed."""
        self._stop = self._stop or StopReason.INTERRUPT

    def look_at_slots(self) -> None:
        try:
            with self._lock:
                self._slots = self._count_slots()
        except StoreUnavailable as away:
            log.info("slots_not_counted", extra={"run": self._held.run.id, "error": away.message})

    def beat(self) -> None:
        progress = self._progress
        change = RunChange()
        if progress is not None:
            change = RunChange(counts=progress.counts, rows_per_s=progress.rows_per_s, busy=progress.busy)
        try:
            with self._lock:
                self._heed(self._runs.update(self._held.run.id, self._held.driver, change, lease_s=LEASE_S))
        except StoreUnavailable as away:
            log.info("run_not_updated", extra={"run": self._held.run.id, "error": away.message})

    def _heed(self, word: UpdateStatus) -> None:
        if word is UpdateStatus.MISSING:
            # The store lost its memory. The journal beside the output has not; others find the run again under its name.
            run = self._held.run
            self._runs.create(run.id, run.spec, owner=run.owner)
            self._runs.take(run.id, self._held.driver, lease_s=LEASE_S)
        self._stop = _STOPS.get(word, self._stop)

    def say(self, change: RunChange, *, lease_s: float = LEASE_S) -> UpdateStatus | None:
        """Write a change for sure: asked again while the store is away, for half a minute. None when it stayed away."""
        give_up_at = time.monotonic() + _LAST_WORD_S
        while True:
            try:
                with self._lock:
                    return self._runs.update(self._held.run.id, self._held.driver, change, lease_s=lease_s)
            except StoreUnavailable as away:
                log.warning("run_not_updated", extra={"run": self._held.run.id, "error": away.message})
                if time.monotonic() > give_up_at:
                    return None
                time.sleep(_PAUSE_S)

    def _beat_on(self) -> None:
        turn = 0
        while not self._ended.wait(BEAT_S):
            turn += 1
            self.beat()
            if turn % _SLOTS_EVERY == 0:
                self.look_at_slots()

"""The sweeper: does what is due in the queues of this worker's models, and takes back what other workers lost.

Every worker sweeps. Each step is one atomic function of the store, so that several sweepers do no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import structlog

from penstock.broker.blobs.files import BlobStore
from penstock.broker.records import Change, Repair, SweepReport
from penstock.errors import StoreUnavailable
from penstock.failpoints import failpoint
from penstock.workers.fleet.orphan_blobs import OrphanCollector, RecordLookup

log = structlog.get_logger(__name__)
JOBS_TAKEN_BACK = "jobs_taken_back"
JOBS_GIVEN_UP = "jobs_given_up"
RECORDS_REPAIRED = "records_repaired"
SWEEP_MISSED = "sweep_missed"
SWEEP_AMNESTY = "sweep_amnesty"

# A slot whose subscription broke subscribes again within milliseconds; one that is still missing after this is gone.
_LOOK_AGAIN_S = 0.4
_RECONCILE_S = 30.0


class SweepStore(RecordLookup, Protocol):
    """The part of the store that a sweep calls."""

    def absent(self, model: str) -> Sequence[str]: ...

    def sweep(self, model: str, *, gone: Sequence[str] = ()) -> SweepReport: ...

    def reconcile(self, model: str, *, cursor: str = "0") -> Repair: ...


class SweepObserver(Protocol):
    """Counts what sweeps do."""

    def swept(self, report: SweepReport) -> None: ...

    def on_repaired(self, found: Repair) -> None: ...


class Sweeper:
    """One call sweeps every model: promotes, expires and collects what is due, and takes back the jobs of dead workers.

    Every half minute it compares each model's records with its queue, and every ten minutes it collects blobs without a record.
    `models` may grow meanwhile. `on_changes` gets the jobs that a sweep ended or took back.
    """

    def __init__(
        self,
        store: SweepStore,
        blobs: BlobStore,
        models: Collection[str],
        *,
        lease_s: float,
        beat_s: float,
        observer: SweepObserver,
        on_changes: Callable[[Sequence[Change]], None] = lambda changes: None,
    ) -> None:
        self._store = store
        self._blobs = blobs
        self._models = models
        self._lease_s = lease_s
        self._beat_s = beat_s
        self._observer = observer
        self._on_changes = on_changes
        self._orphans = OrphanCollector(store, blobs)
        self._missing: dict[str, frozenset[str]] = {}
        self._cursors: dict[str, str] = {}
        self._reconcile_at = 0.0
        self._last_run_at: float | None = None
        # When the link to the store last came back. A fresh process has seen no link break: whoever is missing is gone,
        # mostly this worker's own predecessor.
        self._linked_at: float | None = float("-inf")
        self._quiet_until = float("-inf")
        self._newly_missing = False

    def run_once(self, now: float) -> float | None:
        """Seconds until the next call, if that should come soon. Raises `StoreUnavailable`. `now` is monotonic."""
        self._newly_missing = False
        try:
            if not self._is_quiet(now):
                self._sweep_all(now)
        except StoreUnavailable:
            self._linked_at = None
            self._missing.clear()
            raise
        return _LOOK_AGAIN_S if self._newly_missing else None

    def _is_quiet(self, now: float) -> bool:
        """Whether to take nothing back yet: this process was stopped for a while, so others may only seem dead to it.

        They get the time of one beat to renew their leases.
        """
        if self._last_run_at is not None and now - self._last_run_at > self._lease_s / 2:
            log.warning(SWEEP_AMNESTY, blind_s=round(now - self._last_run_at, 1))
            self._quiet_until = now + self._beat_s
            self._linked_at = None
        self._last_run_at = now
        return now < self._quiet_until

    def _sweep_all(self, now: float) -> None:
        # Sorted into a list of its own, because the beat's thread adds models.
        for model in sorted(self._models):
            self._sweep(model, self._gone(model, now))
        if self._linked_at is None:
            self._linked_at = now
        if now >= self._reconcile_at:
            self._reconcile_all()
            self._reconcile_at = now + _RECONCILE_S
        self._orphans.run_once(now)

    def _gone(self, model: str, now: float) -> list[str]:
        """Lease holders whose presence is missing for the second time in a row.

        For a while after the link to the store came back nobody counts as gone: after a restart of Redis all are missing.
        """
        # D5: presence is a subscription.
        missing = frozenset(self._store.absent(model))
        before, self._missing[model] = self._missing.get(model, frozenset()), missing
        self._newly_missing = self._newly_missing or not missing <= before
        settled = self._linked_at is not None and now - self._linked_at > self._lease_s * 2 / 3
        return sorted(missing & before) if settled else []

    def _sweep(self, model: str, gone: Sequence[str]) -> None:
        failpoint("in_sweep")
        # D18: one call promotes, expires, collects and takes back.
        report = self._store.sweep(model, gone=gone)
        self._observer.swept(report)
        # D28: whoever ends a job without a worker logs it.
        if report.changes:
            self._on_changes(report.changes)
        self._blobs.delete_all(report.blobs)
        if report.requeued or report.cancelled:
            log.warning(
                JOBS_TAKEN_BACK, model=model, requeued=report.requeued, workers=list(report.workers_lost), gone=len(gone)
            )
        if report.dead:
            log.warning(JOBS_GIVEN_UP, model=model, jobs=report.dead)

    def _reconcile_all(self) -> None:
        for model in sorted(self._models):
            found = self._store.reconcile(model, cursor=self._cursors.get(model, "0"))
            self._cursors[model] = found.cursor
            self._observer.on_repaired(found)
            if found.orphans or found.tickets:
                log.error(RECORDS_REPAIRED, model=model, orphans=found.orphans, tickets=found.tickets)

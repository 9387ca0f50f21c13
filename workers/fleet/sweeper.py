"""The sweeper: does what is due in the queues of this worker's models, and takes back what other workers lost.

Every worker has one, and the store lets one of them look and sweep for all: every half `sweep_s`, whichever comes first. Each
step is one atomic function of the store, so that several sweepers at once do no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol, TypeVar

import structlog

from penstock.broker.blobs.files import BlobStore
from penstock.broker.records import GONE_HINT, Absent, Change, Repair, SweepReport
from penstock.errors import StoreUnavailable
from penstock.failpoints import failpoint
from penstock.workers.fleet.orphan_blobs import OrphanCollector, RecordLookup, serial_of
from penstock.workers.slot.needless import NeedlessBlobs

log = structlog.get_logger(__name__)
JOBS_TAKEN_BACK = "jobs_taken_back"
JOBS_GIVEN_UP = "jobs_given_up"
RECORDS_REPAIRED = "records_repaired"
RECORDS_GONE = "records_gone"
SWEEP_MISSED = "sweep_missed"
MODEL_NOT_SWEPT = "model_not_swept"
SWEEP_AMNESTY = "sweep_amnesty"

# A slot whose subscription broke subscribes again within milliseconds; one that is still missing after this is gone.
_LOOK_AGAIN_S = 0.4
# A second look may come a little early by the store's clock.
_MISSING_FOR_S = 0.35
_RECONCILE_S = 30.0
# D122: once something was found wrong, pages of a thousand records follow each other like this, so that claims and submits keep
# most of the store.
_HEAL_S = 0.2
# Each sweep of a queue moves at most a thousand jobs, so that no call blocks the store for long. Where more is due, sweeps
# follow each other, queues in turn; after this many the sweeper looks around first.
SLICES = 20
_GO_ON_S = 0.01


_Done = TypeVar("_Done")


class SweepStore(RecordLookup, Protocol):
    """The part of the store that a sweep calls."""

    def absent(self, queue: str, *, sweeper: str, pace_s: float, again_s: float) -> Absent: ...

    def sweep(self, queue: str, *, gone: Sequence[str] = ()) -> SweepReport: ...

    def reconcile_next(self, queue: str, *, pace_s: float, heal_s: float) -> Repair: ...


class SweepObserver(Protocol):
    """Counts what sweeps do."""

    def swept(self, report: SweepReport) -> None: ...

    def on_repaired(self, repair: Repair) -> None: ...


class Sweeper:
    """One call sweeps every queue: promotes, expires and collects what is due, and takes back the jobs of dead workers.

    Every half minute one sweeper compares a page of each queue's records with its lines, page after page where something was
    wrong, and every ten minutes each collects blobs without a record. An error in one queue is logged, and the others are
    swept. `name` is unlike that of any other sweeper. `queues` may grow meanwhile. `on_changes` gets the jobs that a sweep
    ended or took back.
    """

    def __init__(
        self,
        store: SweepStore,
        blobs: BlobStore,
        queues: Collection[str],
        *,
        name: str,
        needless: NeedlessBlobs,
        lease_s: float,
        beat_s: float,
        sweep_s: float,
        observer: SweepObserver,
        on_changes: Callable[[Sequence[Change]], None] = lambda changes: None,
    ) -> None:
        self._store = store
        self._needless = needless
        self._queues = queues
        self._name = name
        self._pace_s = sweep_s / 2
        self._lease_s = lease_s
        self._beat_s = beat_s
        self._observer = observer
        self._on_changes = on_changes
        self._orphans = OrphanCollector(store, blobs)
        self._reconcile_at = self._heal_at = 0.0
        # Queues with records that this sweeper found wrong, the next one first.
        self._healing: list[str] = []
        self._last_run_at: float | None = None
        # When the link to the store last came back. A fresh process has seen no link break: a missing holder is gone,
        # usually this worker's own predecessor.
        self._linked_at: float | None = float("-inf")
        self._quiet_until = float("-inf")
        self._look_again = False

    def run_once(self, now: float) -> float | None:
        """Seconds until the next call, if that should come soon. Raises `StoreUnavailable`. `now` is monotonic."""
        self._look_again, left = False, False
        try:
            if not self._is_quiet(now):
                left = self._sweep_all(now)
        except StoreUnavailable:
            self._linked_at = None
            raise
        soon = {_GO_ON_S: left, _HEAL_S: bool(self._healing), _LOOK_AGAIN_S: self._look_again}
        return min((wait_s for wait_s, is_due in soon.items() if is_due), default=None)

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

    def _sweep_all(self, now: float) -> bool:
        """Whether more is due than one call of the sweeper does."""
        # Sorted into a list of its own, because the beat's thread adds queues.
        queues = sorted(self._queues)
        absences = self._on_each(queues, lambda queue: self._to_sweep(queue, now))
        left = self._sweep_in_slices({queue: absent.gone for queue, absent in absences.items() if absent.looked})
        if self._linked_at is None:
            self._linked_at = now
        self._reconcile_due(queues, now)
        self._orphans.run_once(now)
        return left

    def _sweep_in_slices(self, gone: dict[str, tuple[str, ...]]) -> bool:
        """Sweep each of these queues until nothing more is due there; whether that took too long. `gone`: lease holders."""
        left: Sequence[str] = list(gone)
        for _ in range(SLICES):
            # A worker that held more than one sweep takes back is still gone in the next.
            swept = self._on_each(left, lambda queue: self._sweep(queue, gone[queue]))
            left = [queue for queue, is_more in swept.items() if is_more]
            if not left:
                break
        return bool(left)

    def _on_each(self, queues: Iterable[str], step: Callable[[str], _Done]) -> dict[str, _Done]:
        """What `step` returned, by queue; without the queues where it failed. Raises `StoreUnavailable`, which concerns all."""
        done = {}
        for queue in queues:
            try:
                done[queue] = step(queue)
            except StoreUnavailable:
                raise
            except Exception:
                log.exception(MODEL_NOT_SWEPT, model=queue)
        return done

    def _to_sweep(self, queue: str, now: float) -> Absent:
        """Who is missing of the queue's lease holders, or that another sweeper looks and sweeps for all just now.

        For a while after the link to the store came back, none counts as gone: after a restart of Redis all are missing. Then
        this sweeper does not look either, so that one without a broken link does.
        """
        # D5: presence is a subscription.
        if self._linked_at is None or now - self._linked_at <= self._lease_s * 2 / 3:
            return Absent()
        absent = self._store.absent(queue, sweeper=self._name, pace_s=self._pace_s, again_s=_MISSING_FOR_S)
        self._look_again = self._look_again or absent.fresh > 0
        return absent

    def _sweep(self, queue: str, gone: Sequence[str]) -> bool:
        """Whether more is due than one sweep does."""
        failpoint("in_sweep")
        # D18: one call promotes, expires, collects and takes back.
        report = self._store.sweep(queue, gone=gone)
        self._observer.swept(report)
        # D28: the process that ends a job without a worker logs it.
        if report.changes:
            self._on_changes(report.changes)
        self._needless.add(queue, [(serial_of(name), name) for name in report.blobs])
        if report.requeued or report.cancelled:
            log.warning(
                JOBS_TAKEN_BACK, model=queue, requeued=report.requeued, workers=list(report.workers_lost), gone=len(gone)
            )
        if report.dead:
            log.warning(JOBS_GIVEN_UP, model=queue, jobs=report.dead)
        _tell_gone(queue, report.gone)
        return report.more

    def _reconcile_due(self, queues: Iterable[str], now: float) -> None:
        """Reconcile a page of each queue whose time has come, of those with wrong records one after the other.

        Where another sweeper goes on with a queue, this one does not.
        """
        wrong = self._healing[:1] if now >= self._heal_at else []
        usual = [queue for queue in queues if queue not in self._healing] if now >= self._reconcile_at else []
        if now >= self._reconcile_at:
            self._reconcile_at = now + _RECONCILE_S
        if due := [*wrong, *usual]:
            self._heal_at = now + _HEAL_S
            results = self._on_each(due, self._reconcile)
            self._healing = self._healing[len(wrong) :] + [queue for queue, is_more_due in results.items() if is_more_due]

    def _reconcile(self, queue: str) -> bool:
        """Whether more is due soon."""
        repair = self._store.reconcile_next(queue, pace_s=_RECONCILE_S * 0.9, heal_s=_HEAL_S * 0.9)
        self._observer.on_repaired(repair)
        if repair.orphans or repair.tickets:
            log.error(RECORDS_REPAIRED, model=queue, orphans=repair.orphans, tickets=repair.tickets)
        _tell_gone(queue, repair.gone)
        return repair.is_more_due


def _tell_gone(queue: str, jobs: int) -> None:
    if jobs:
        log.error(RECORDS_GONE, model=queue, jobs=jobs, hint=GONE_HINT)

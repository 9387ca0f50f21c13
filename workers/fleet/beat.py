"""Two threads of a worker: the beat renews its leases and announces it; the sweeper takes back what other workers lost."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import structlog

from penstock.broker.blobs.files import BlobStore
from penstock.broker.records import Change, Repair, SweepReport
from penstock.broker.store.sync import RedisStore
from penstock.errors import StoreUnavailable
from penstock.failpoints import failpoint
from penstock.workers.fleet.orphan_blobs import Orphans
from penstock.workers.slot.slot import Slot

log = structlog.get_logger(__name__)
BEAT_MISSED = "beat_missed"
SLOT_STUCK = "slot_stuck"
JOBS_TAKEN_BACK = "jobs_taken_back"
JOBS_GIVEN_UP = "jobs_given_up"
RECORDS_REPAIRED = "records_repaired"
SWEEP_MISSED = "sweep_missed"
SWEEP_AMNESTY = "sweep_amnesty"

_AGAIN_S = 0.5
# A slot whose subscription broke is back within milliseconds; who is still missing after this is gone.
_LOOK_AGAIN_S = 0.4
_RECONCILE_S = 30.0
# The child is ended by its slot at max_run_s; the store takes the job back only if that failed too.
_OVERRUN_GRACE_S = 10.0


class Rounds:
    """Calls `once` every `every_s` in a thread of its own; sooner if it says so, after a failure, or after a `ring`."""

    def __init__(self, name: str, every_s: float, once: Callable[[float], float | None], *, on_failure: str) -> None:
        self._every_s = every_s
        self._once = once
        self._on_failure = on_failure
        self._bell = threading.Event()
        self._over = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ring(self) -> None:
        self._bell.set()

    def stop(self) -> None:
        self._over = True
        self._bell.set()
        self._thread.join(timeout=10.0)

    def _run(self) -> None:
        away = False
        while not self._over:
            try:
                pause_s = self._once(time.monotonic()) or self._every_s
                away = False
            except StoreUnavailable as error:
                if not away:
                    log.warning(self._on_failure, error=str(error))
                away, pause_s = True, min(_AGAIN_S, self._every_s)
            except Exception:
                # This thread ends with the process only: without it every lease would pass.
                log.exception(self._on_failure)
                pause_s = self._every_s
            # A tenth either way, so that the workers of a fleet do not all call at once.
            self._bell.wait(pause_s * random.uniform(0.9, 1.0))
            self._bell.clear()


class Beat:
    """One round: renew the lease of every slot that holds jobs and whose loop still turns, then announce the worker."""

    def __init__(
        self, store: RedisStore, slots: Callable[[], Sequence[Slot]], *, lease_s: float, announce: Callable[[RedisStore], None]
    ) -> None:
        self._store = store
        self._slots = slots
        self._lease_s = lease_s
        self._announce = announce

    def once(self, now: float) -> None:
        for slot in self._slots():
            if slot.is_holding:
                self._renew(slot, now)
        self._announce(self._store)

    def _renew(self, slot: Slot, now: float) -> None:
        if now - slot.turned_at > self._lease_s * 2 / 3:
            # A loop that does not turn cannot settle; better that another worker runs its jobs.
            log.error(SLOT_STUCK, model=slot.spec.name, still_s=round(now - slot.turned_at, 1))
            return
        name, sent_at = slot.lease.name, time.monotonic()
        # Twice: a batch may wait in the child for as long as the one before it runs.
        max_run_s = 2 * slot.spec.limits.max_run_s + _OVERRUN_GRACE_S
        moved = slot.progress.moved()
        if self._store.extend(slot.spec.name, name, lease_s=self._lease_s, max_run_s=max_run_s, progressed=moved).lost:
            slot.fence(name)
        else:
            slot.lease.confirm(sent_at)


class Witness(Protocol):
    """Whoever counts what sweeps do."""

    def swept(self, report: SweepReport) -> None: ...

    def repaired(self, found: Repair) -> None: ...


class Sweeper:
    """One round: every model's due jobs promoted, expired or collected, and the jobs of dead workers taken back.

    Last and seldom, blobs that no record names are collected.
    """

    def __init__(
        self,
        store: RedisStore,
        blobs: BlobStore,
        models: Collection[str],
        *,
        lease_s: float,
        beat_s: float,
        witness: Witness,
        changed: Callable[[Sequence[Change]], None] = lambda changes: None,
    ) -> None:
        self._store = store
        self._changed = changed
        self._witness = witness
        self._blobs = blobs
        self._models = models
        self._lease_s = lease_s
        self._beat_s = beat_s
        self._orphans = Orphans(store, blobs)
        self._missing: dict[str, frozenset[str]] = {}
        self._cursors: dict[str, str] = {}
        self._reconcile_at = 0.0
        self._seen_at: float | None = None
        # A fresh process has seen no link break: what it misses is missing, mostly its own predecessor.
        self._linked_at: float | None = float("-inf")
        self._quiet_until = float("-inf")
        self._doubt = False

    def once(self, now: float) -> float | None:
        """Seconds until the next round, if that should come soon."""
        self._doubt = False
        try:
            if not self._quiet(now):
                self._round(now)
        except StoreUnavailable:
            self._linked_at = None
            self._missing.clear()
            raise
        return _LOOK_AGAIN_S if self._doubt else None

    def _quiet(self, now: float) -> bool:
        """Whether to leave everything alone: after a blind time of ours, others may only look dead to us.

        One beat's time lets them renew first.
        """
        if self._seen_at is not None and now - self._seen_at > self._lease_s / 2:
            log.warning(SWEEP_AMNESTY, blind_s=round(now - self._seen_at, 1))
            self._quiet_until = now + self._beat_s
            self._linked_at = None
        self._seen_at = now
        return now < self._quiet_until

    def _round(self, now: float) -> None:
        # The beat's thread adds to them.
        for model in sorted(self._models):
            self._sweep(model, self._gone(model, now))
        if self._linked_at is None:
            self._linked_at = now
        if now >= self._reconcile_at:
            self._reconcile()
            self._reconcile_at = now + _RECONCILE_S
        self._orphans.once(now)

    def _gone(self, model: str, now: float) -> list[str]:
        """Lease holders missing in two rounds. A mended link proves nothing: after a restart of Redis all are missing."""
        missing = frozenset(self._store.absent(model))
        before, self._missing[model] = self._missing.get(model, frozenset()), missing
        self._doubt = self._doubt or not missing <= before
        settled = self._linked_at is not None and now - self._linked_at > self._lease_s * 2 / 3
        return sorted(missing & before) if settled else []

    def _sweep(self, model: str, gone: Sequence[str]) -> None:
        failpoint("in_sweep")
        report = self._store.sweep(model, gone=gone)
        self._witness.swept(report)
        if report.changes:
            self._changed(report.changes)
        self._blobs.delete_all(report.blobs)
        if report.requeued or report.cancelled:
            log.warning(
                JOBS_TAKEN_BACK, model=model, requeued=report.requeued, workers=list(report.workers_lost), gone=len(gone)
            )
        if report.dead:
            log.warning(JOBS_GIVEN_UP, model=model, jobs=report.dead)

    def _reconcile(self) -> None:
        for model in sorted(self._models):
            found = self._store.reconcile(model, cursor=self._cursors.get(model, "0"))
            self._cursors[model] = found.cursor
            self._witness.repaired(found)
            if found.orphans or found.tickets:
                log.error(RECORDS_REPAIRED, model=model, orphans=found.orphans, tickets=found.tickets)

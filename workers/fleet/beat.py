"""The beat: renews the leases of this worker's slots, so that the store knows that their jobs are worked on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence

import structlog

from penstock.broker.blobs.files import BlobStore
from penstock.broker.records import Change
from penstock.broker.store.sync import RedisStore
from penstock.broker.stores.places import StoreMap
from penstock.errors import StoreUnavailable
from penstock.settings.worker import WorkerSettings
from penstock.workers.fleet.periodic_thread import PeriodicThread
from penstock.workers.fleet.sweeper import SWEEP_MISSED, Sweeper
from penstock.workers.slot.slot import Slot
from penstock.workers.slot.sources import Lease
from penstock.workers.telemetry.gauges import UpkeepMetrics

log = structlog.get_logger(__name__)
BEAT_MISSED = "beat_missed"
SLOT_STUCK = "slot_stuck"
SLOT_NOT_RENEWED = "slot_not_renewed"

# A slot ends its child at max_run_s. The store takes the job back this much later, in case the slot failed to.
_OVERRUN_GRACE_S = 10.0


class Beat:
    """One call renews the lease of every slot that holds jobs and whose loop still turns, and then calls `on_beat`.

    `name`: the store whose leases these are, where there are several; `has` says whether a queue lies there.
    """

    def __init__(
        self,
        store: RedisStore,
        slots: Callable[[], Sequence[Slot]],
        *,
        lease_s: float,
        on_beat: Callable[[RedisStore], None],
        name: str = "",
        has: Callable[[str], bool] = lambda queue: True,
    ) -> None:
        self._name = name
        self._has = has
        self._store = store
        self._slots = slots
        self._lease_s = lease_s
        self._on_beat = on_beat

    def run_once(self, now: float) -> None:
        """Raises `StoreUnavailable`; an error in one slot's renewal stays that slot's. `now` is monotonic."""
        for slot in self._slots():
            try:
                if leases := [(queue, lease) for queue, lease in slot.leases() if self._has(queue)]:
                    self._renew(slot, leases, now)
            except StoreUnavailable:
                raise
            except Exception:
                log.exception(SLOT_NOT_RENEWED, model=slot.spec.name)
        self._on_beat(self._store)

    def _renew(self, slot: Slot, leases: Sequence[tuple[str, Lease]], now: float) -> None:
        if now - slot.turned_at > self._lease_s * 2 / 3:
            # A slot whose loop does not turn cannot settle its jobs, so another worker should run them.
            log.error(SLOT_STUCK, model=slot.spec.name, still_s=round(now - slot.turned_at, 1))
            return
        # Twice max_run_s, because a batch may wait in the child for as long as the one before it runs.
        max_run_s = 2 * slot.spec.limits.max_run_s + _OVERRUN_GRACE_S
        moved = slot.progress.moved(self._name)
        for queue, lease in leases:
            # D4: the lease is the slot's, under a name that only this incarnation of the slot has.
            name, sent_at = lease.name, time.monotonic()
            own = [job for job in moved if job.queue == queue]
            renewal = self._store.extend(queue, name, lease_s=self._lease_s, max_run_s=max_run_s, progressed=own)
            if renewal.lost:
                slot.fence(name)
            else:
                lease.confirm(sent_at)
                slot.give_up(renewal.cancelled)


# D109: docs/design/store.md
class QueuesIn(Collection[str]):
    """Those of `queues` that lie in one store, as this process knows it at the moment."""

    def __init__(self, queues: Collection[str], stores: StoreMap, name: str) -> None:
        self._queues = queues
        self._stores = stores
        self._name = name

    def __iter__(self) -> Iterator[str]:
        # A copy, because the beat's thread adds queues.
        return (queue for queue in list(self._queues) if queue in self)

    def __contains__(self, queue: object) -> bool:
        return self._stores.store_of(str(queue)) == self._name

    def __len__(self) -> int:
        return sum(1 for _ in self)


class StoreUpkeep:
    """The threads of one store beside the main one. `worker`: the worker's Celery name."""

    def __init__(
        self,
        name: str,
        stores: StoreMap,
        settings: WorkerSettings,
        blobs: BlobStore,
        *,
        worker: str,
        queues: Collection[str],
        slots: Callable[[], Sequence[Slot]],
        metrics: UpkeepMetrics,
        on_changes: Callable[[Sequence[Change]], None],
        on_beat: Callable[[RedisStore, Callable[[str], bool]], None],
    ) -> None:
        """`on_beat` gets the store of this beat, and whether a queue lies there."""
        ours = QueuesIn(queues, stores, name)
        self._stores = [stores.open_one(name, name=f"penstock-{part}-{os.getpid()}") for part in ("beat", "sweep")]
        beat_store, sweep_store = self._stores
        has = ours.__contains__
        beat = Beat(beat_store, slots, lease_s=settings.lease_s, on_beat=lambda store: on_beat(store, has), name=name, has=has)
        sweeper = Sweeper(
            sweep_store,
            blobs,
            ours,
            name=worker,
            lease_s=settings.lease_s,
            beat_s=settings.beat_s,
            sweep_s=settings.sweep_s,
            observer=metrics,
            on_changes=on_changes,
            finds_orphans=False,
        )
        renew, sweep = metrics.counting_failures("beat", beat.run_once), metrics.counting_failures("sweep", sweeper.run_once)
        self._threads = [
            PeriodicThread(f"beat-{name}", settings.beat_s, renew, failure_event=BEAT_MISSED),
            PeriodicThread(f"sweeper-{name}", settings.sweep_s, sweep, failure_event=SWEEP_MISSED),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        for thread in self._threads:
            thread.stop()
        for store in self._stores:
            store.close()

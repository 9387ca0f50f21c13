"""All that runs in one worker process beside Celery: slots, beat, sweeper, events, metrics. Builds, starts and ends them."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import structlog

from penstock.broker.blobs.files import BlobStore
from penstock.broker.blobs.opening import open_blobs
from penstock.broker.partitions import all_unfinished, queues_of_model
from penstock.broker.store import ops, registry
from penstock.broker.store.sync import RedisStore
from penstock.errors import StoreUnavailable
from penstock.model_spec import ModelInfo, SlotInfo
from penstock.settings.tables import Settings
from penstock.workers.fleet import forgotten_versions
from penstock.workers.fleet.announce import claimed_from, peers, refusals, swept, swept_queues
from penstock.workers.fleet.announcer import Announcer, OtherEntries
from penstock.workers.fleet.beat import BEAT_MISSED, Beat
from penstock.workers.fleet.learned import TimesKeeper
from penstock.workers.fleet.parts import WorkerHost, WorkerParts
from penstock.workers.fleet.periodic_thread import PeriodicThread
from penstock.workers.fleet.roster import Roster
from penstock.workers.fleet.size import FleetSize
from penstock.workers.fleet.source_watch import LOOK_EVERY_S, SOURCES_NOT_SEEN, SourceWatch
from penstock.workers.fleet.sweeper import SWEEP_MISSED, Sweeper
from penstock.workers.fleet.versions import ServedVersions, VersionChange
from penstock.workers.slot.child.family import WATCHER, end_orphans
from penstock.workers.slot.needless import EVERY_S, NEEDLESS_KEPT, NeedlessBlobs
from penstock.workers.slot.slot import Slot
from penstock.workers.telemetry.gauges import UpkeepMetrics
from penstock.workers.telemetry.job_log import WorkerJobLog
from penstock.workers.telemetry.metrics import WorkerMetrics
from penstock.workers.telemetry.task_events import EventFeed

log = structlog.get_logger(__name__)
FLEET_STARTED = "fleet_started"
ORPHANED_PROCESSES_ENDED = "orphaned_processes_ended"
FLEET_ENDED = "fleet_ended"
ROLLOUTS_UNKNOWN = "rollouts_unknown"
WITHDRAW_FAILED = "withdraw_failed"


class Fleet:
    """`name` is the worker's Celery name. Celery's main thread calls its methods; the beat's thread calls `_on_beat`."""

    def __init__(self, settings: Settings, *, name: str, app: Any) -> None:
        self._settings = settings
        self._store_url = settings.job_store_url
        self._name = name
        self.draining = self._stopped = False
        self.events = EventFeed(app, hostname=name)
        self._metrics = WorkerMetrics(name, models=len(settings.models))
        self._versions = ServedVersions(settings)
        self._times, self._others = TimesKeeper(), OtherEntries()
        self._swept_models = set(settings.served_names)
        # The sweeper and parts of extensions read it.
        self._swept_queues = set(swept_queues(self._swept_models, self._versions.infos))
        self._partitions = forgotten_versions.PartitionKeeper()
        self._beat_store = RedisStore(self._store_url, name=f"penstock-beat-{os.getpid()}")
        self._sweep_store = RedisStore(self._store_url, name=f"penstock-sweep-{os.getpid()}")
        self._end_store = RedisStore(self._store_url, name=f"penstock-ends-{os.getpid()}")
        blobs = open_blobs(settings.blob_location)
        self._needless = NeedlessBlobs(blobs, self._end_store, replicas=settings.store.confirming)
        self._parts = WorkerParts.load(self._host(blobs))
        self._build_threads(blobs)
        self._size = FleetSize(settings, self._versions, self._roster)
        self._announcer = Announcer(
            name, settings.worker, self._versions, wanted=self._size.wanted, scaling=self._parts.scaling
        )

    def _host(self, blobs: BlobStore) -> WorkerHost:
        return WorkerHost(
            self._name,
            self._settings,
            blobs,
            self._metrics.registry,
            queues=lambda: self._swept_queues,
            queues_of=self._queues_of,
            size=lambda: self._size,
            measured=lambda: self._announcer.measured,
            workers=lambda: self._others.workers,
            is_holding=self._is_holding,
            ended=lambda: self.ended().total(),
            announce=lambda: self._beat.wake(),  # noqa: PLW0108 - the beat is built after the parts
        )

    def _build_threads(self, blobs: BlobStore) -> None:
        worker = self._settings.worker
        job_log = WorkerJobLog(self._settings.log.jobs)
        self._roster = self._new_roster(blobs, job_log)
        upkeep = UpkeepMetrics(
            self._name,
            self._metrics.registry,
            slots=self._roster.infos,
            serving=lambda: self._size.serving(),  # noqa: PLW0108 - the size is built after the metrics
            on_store_failure=self._metrics.on_store_failed,
            state_dir=self._settings.store.state_dir,
        )
        beat = Beat(self._beat_store, self._roster.alive, lease_s=worker.lease_s, on_beat=self._on_beat)
        sweeper = Sweeper(
            self._sweep_store,
            blobs,
            self._swept_queues,
            name=self._name,
            needless=self._needless,
            lease_s=worker.lease_s,
            beat_s=worker.beat_s,
            sweep_s=worker.sweep_s,
            observer=upkeep,
            on_changes=job_log.on_changed,
        )
        self._beat = PeriodicThread(
            "beat", worker.beat_s, upkeep.counting_failures("beat", beat.run_once), failure_event=BEAT_MISSED
        )
        self._sweeper = PeriodicThread(
            "sweeper", worker.sweep_s, upkeep.counting_failures("sweep", sweeper.run_once), failure_event=SWEEP_MISSED
        )
        self._ends = PeriodicThread("ends", EVERY_S, self._needless.run_once, failure_event=NEEDLESS_KEPT)
        self._build_reloads()

    def _new_roster(self, blobs: BlobStore, job_log: WorkerJobLog) -> Roster:
        # Metrics without a port cannot be read and need not be counted.
        metrics = (self._metrics,) if self._settings.worker.metrics_port else ()
        return Roster(
            self._settings,
            self._versions,
            blobs,
            self._needless,
            self._store_url,
            self._parts,
            observers=(self.events, *self._parts.observers, *metrics, job_log),
            on_change=lambda: self._beat.wake(),  # noqa: PLW0108 - the beat is built after the roster
        )

    def _build_reloads(self) -> None:
        self._watch = SourceWatch(lambda: self.slots, self._roster.forget_files)
        self._reloads = (
            PeriodicThread("reload", LOOK_EVERY_S, self._watch.run_once, failure_event=SOURCES_NOT_SEEN)
            if self._settings.worker.reload
            else None
        )

    def _is_holding(self) -> bool:
        return any(slot.leases() for slot in self._roster.alive())

    @property
    def slots(self) -> list[Slot]:
        """The slots that take jobs."""
        return self._roster.slots

    def start(self) -> None:
        """Raises `ConfigError` for a device that is not there."""
        if ended := end_orphans():
            log.warning(ORPHANED_PROCESSES_ENDED, processes=ended)
        WATCHER.start()
        change = self._first_change()
        self._metrics.serve(self._settings.worker.metrics_host, self._settings.worker.metrics_port)
        self.events.start()
        if self._reloads:
            self._start_reloads(self._reloads)
        self._size.start(change)
        self._beat.start()
        self._sweeper.start()
        self._ends.start()
        self._parts.start()
        log.info(FLEET_STARTED, worker=self._name, models=sorted(self._settings.served_names), slots=len(self.slots))

    def _start_reloads(self, reloads: PeriodicThread) -> None:
        # Python takes kept bytecode for that of the source if the source has the same size and was changed in the same second,
        # as by two quick edits. Children inherit the variable.
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        self._watch.expect(spec.source for spec in self._settings.specs())
        reloads.start()

    def _first_change(self) -> VersionChange:
        """What operators changed before this worker started, so that it loads no model that it is not to have."""
        try:
            return self._change(self._beat_store, self._beat_store.now())
        except StoreUnavailable as error:
            # The first beat that reaches the store follows them.
            log.warning(ROLLOUTS_UNKNOWN, error=str(error))
            return VersionChange()

    # More and fewer slots, by remote control.

    def grow(self, count: int) -> int:
        """Add slots; how many found a place."""
        return self._size.grow(count)

    def shrink(self, count: int) -> int:
        """Remove slots; how many could be spared."""
        return self._size.shrink(count)

    # Celery's view.

    def follow(self, consumer: Any) -> None:
        """Send events of tasks while `consumer` does, which Celery replaces with each new connection."""
        self.events.follow(consumer)
        self._roster.ask_observers()

    def ended(self) -> Counter[str]:
        """How many jobs this worker has ended, by model."""
        return self._roster.ended()

    # The end.

    def drain(self) -> None:
        """Stop taking jobs; returns at once. `wait` says when all is settled."""
        if self.draining:
            return
        self.draining = True
        self._parts.drain()
        self._roster.drain(by=time.monotonic() + self._settings.worker.grace_s)
        self._beat.wake()

    def hurry(self) -> None:
        """Give back what still runs, at once. Takes no lock, because signal handlers call it."""
        self.draining = True
        self._roster.give_back()

    def wait(self, timeout_s: float) -> bool:
        """Whether every slot has ended, after at most `timeout_s`."""
        return self._roster.wait(timeout_s)

    def stop(self) -> None:
        """End the rest and leave the registry; the slots must have ended. Safe to repeat, because a signal may repeat it."""
        if self._stopped:
            return
        self._stopped = True
        for thread in (self._reloads, self._beat, self._sweeper, self._ends):
            if thread is not None:
                thread.stop()
        self._parts.stop()
        self.events.stop()
        try:
            self._parts.on_beat(self._beat_store, ())
            self._beat_store.withdraw_worker(self._name)
        except StoreUnavailable as error:
            # The entry expires by itself a few beats later.
            log.warning(WITHDRAW_FAILED, error=str(error))
        for store in (self._beat_store, self._sweep_store, self._end_store):
            store.close()
        log.info(FLEET_ENDED, worker=self._name)

    # In the beat's thread.

    def _on_beat(self, store: RedisStore) -> None:
        # Gateways wrote the moments that this one is compared with, and their clocks may differ from this host's.
        now = store.now()
        self._follow_rollouts(store, now)
        self._roster.pass_wishes(store.profile_wishes(), now)
        if self.draining:
            store.withdraw_worker(self._name)
        else:
            self._announce(store, now)
        self._parts.on_beat(store, self._announcer.measured)

    def _announce(self, store: RedisStore, now: float) -> None:
        slots, infos = self.slots, [*self._roster.infos(), *refusals(self._versions.refused)]
        self._others.follow(store, self._announcer.announce(store, slots, infos), now)
        self._times.save(store, slots, now, memory=self._parts.memory())
        self._look_around(store, slots, infos, now)

    def _queues_of(self, model: str) -> list[str]:
        info = self._versions.announced.get(model) or self._versions.infos.get(model)
        return queues_of_model(info or ModelInfo(model))

    def _follow_rollouts(self, store: RedisStore, now: float) -> None:
        change = self._change(store, now)
        if not self.draining:
            self._size.follow(change)

    def _change(self, store: RedisStore, now: float) -> VersionChange:
        stored = store.stored_rollouts()
        rollouts = {model: entry.rollout for model, entry in stored.items()}
        change = self._versions.follow(rollouts, lambda *key: self._waiting(store, *key), now=now)
        if self._versions.pause(is_drained=self._name in store.send(registry.drains())):
            for slot in self.slots:
                slot.wake()
        self._versions.marks = {model: entry.mark for model, entry in stored.items() if model not in self._roster.not_resting()}
        return change

    def _waiting(self, store: RedisStore, model: str, version: str) -> int:
        queues = swept_queues([model], self._versions.announced)
        return all_unfinished(store.run_all([ops.unfinished(queue, version) for queue in queues])).waiting

    def _look_around(self, store: RedisStore, slots: Sequence[Slot], infos: Sequence[SlotInfo], now: float) -> None:
        """What the registry's other entries mean for this worker: models to sweep, peers of its slots, versions to forget."""
        models, workers = self._others.models, self._others.workers
        self._versions.announced = {info.name: info for info in models}
        own = {*self._settings.served_names, *(info.model for info in infos)}
        to_sweep = swept(self._swept_models, own, models, workers)
        self._swept_models = to_sweep
        queues = set(swept_queues(to_sweep, self._versions.infos | self._versions.announced))
        self._swept_queues &= queues
        self._swept_queues |= queues
        self._partitions.look(store, self._versions.announced, now)
        for slot in slots:
            own_queues = swept_queues([slot.spec.name], self._versions.announced)
            slot.follow(claimed_from(own_queues, slot.name))
            slot.set_peers(peers(slot.spec.name, slot.spec.version, here=infos, workers=workers, own_name=self._name))
        if forgotten_versions.may_exist(models, self._versions.rollouts.values(), now=now):
            forgotten_versions.forget(store, now=now)

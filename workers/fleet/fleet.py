"""All that runs in one worker process beside Celery: slots, beat, sweeper, events, metrics. Builds, starts and ends them."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from penstock.broker.blobs.places import open_blobs
from penstock.broker.store.registry import StoredModel
from penstock.broker.store.sync import RedisStore
from penstock.broker.store.wakeup import WakeUps
from penstock.errors import ConfigError, StoreUnavailable
from penstock.model_spec import ModelInfo, ModelSpec, SlotInfo, VersionInfo, WorkerInfo
from penstock.rollout import Rollout, followed
from penstock.settings.tables import Settings
from penstock.workers.devices.assign import on_cpu
from penstock.workers.devices.gpus import Gpus
from penstock.workers.devices.machine import Machine, discover
from penstock.workers.devices.pins import Pin
from penstock.workers.devices.plan import COLUMNS, PinningPlan, beside, one_more, plan, table, unpinned
from penstock.workers.devices.topology import read_topology
from penstock.workers.fleet import forgotten_versions
from penstock.workers.fleet.announce import Places, merged, peers, refusals, unserved
from penstock.workers.fleet.beat import BEAT_MISSED, SWEEP_MISSED, Beat, Rounds, Sweeper
from penstock.workers.fleet.profiling import Profiler
from penstock.workers.fleet.rollouts import Key, kept, key_of, known_specs
from penstock.workers.slot.context import Observer, SlotContext
from penstock.workers.slot.slot import Slot
from penstock.workers.telemetry.gauges import Upkeep
from penstock.workers.telemetry.job_log import WorkerJobLog
from penstock.workers.telemetry.metrics import WorkerMetrics
from penstock.workers.telemetry.task_events import EventFeed
from penstock.workers.telemetry.tracing import batch_spans

log = structlog.get_logger(__name__)
FLEET_STARTED = "fleet_started"
FLEET_ENDED = "fleet_ended"
SLOT_PLACED = "slot_placed"
PLAN_ADVICE = "plan_advice"
SLOT_ADDED = "slot_added"
SLOT_REFUSED = "slot_refused"
SLOT_REMOVED = "slot_removed"
VERSION_STARTED = "version_started"
VERSION_RETIRED = "version_retired"
WITHDRAW_FAILED = "withdraw_failed"

_ANNOUNCED_BEATS = 5


@dataclass(frozen=True, slots=True)
class _Crew:
    slot: Slot
    thread: threading.Thread
    profiler: Profiler

    def info(self) -> SlotInfo:
        return replace(self.slot.info(), profile=self.profiler.info())


class Fleet:
    """`name` is the worker's Celery name. Its methods are called from Celery's main thread."""

    def __init__(self, settings: Settings, *, name: str, app: Any) -> None:
        assert settings.store.url is not None
        self._settings = settings
        self._url = settings.store.url
        self._name = name
        self._started_at = time.time()
        self._blobs = open_blobs(settings.blob_place)
        self._specs = settings.specs()
        self._kept = {key_of(spec) for spec in self._specs}
        self._rollouts: dict[str, Rollout] = {}
        # Versions that were added, but cannot be loaded here, and why.
        self._refused: dict[Key, str] = {}
        self._infos = {info.name: info for info in settings.model_infos()}
        self._crews: list[_Crew] = []
        # Removed, but not done yet: their leases must stand until they are.
        self._leaving: list[_Crew] = []
        self._numbers = 0
        # The process, told apart from any earlier one with the same pid on the same host.
        self._incarnation = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._announced: dict[str, dict[str, VersionInfo]] = {}
        self._places = Places(name)
        self.draining = self._stopped = False
        self.events = EventFeed(app, hostname=name)
        self._job_log, self._spans = WorkerJobLog(settings.log.jobs), batch_spans()
        self._metrics = metrics = WorkerMetrics(name, models=len(settings.models))
        self._upkeep = upkeep = Upkeep(name, metrics.registry, slots=self._slot_infos, store_failed=metrics.store_failed)
        self._beat_store = RedisStore(self._url, name=f"penstock-beat-{os.getpid()}")
        self._sweep_store = RedisStore(self._url, name=f"penstock-sweep-{os.getpid()}")
        worker = settings.worker
        beat = Beat(self._beat_store, self._living, lease_s=worker.lease_s, announce=self._announce)
        self._swept = set(settings.models)
        sweeper = self._new_sweeper()
        self._beat = Rounds("beat", worker.beat_s, upkeep.watched("beat", beat.once), on_failure=BEAT_MISSED)
        self._sweeper = Rounds("sweeper", worker.sweep_s, upkeep.watched("sweep", sweeper.once), on_failure=SWEEP_MISSED)

    def _new_sweeper(self) -> Sweeper:
        return Sweeper(
            self._sweep_store,
            self._blobs,
            self._swept,
            lease_s=self._settings.worker.lease_s,
            beat_s=self._settings.worker.beat_s,
            witness=self._upkeep,
            changed=self._job_log.changed,
        )

    @property
    def slots(self) -> list[Slot]:
        return [crew.slot for crew in self._crews]

    def _slot_infos(self) -> list[SlotInfo]:
        return [crew.info() for crew in self._crews]

    def _living(self) -> list[Slot]:
        return [crew.slot for crew in [*self._crews, *self._leaving] if crew.thread.is_alive()]

    def start(self) -> None:
        """Raises `ConfigError` for a device that is not there."""
        found = plan(self._specs, self._machine())
        found = found if self._settings.worker.pinning == "cores" else unpinned(found)
        _tell(found)
        self._metrics.serve(self._settings.worker.metrics_host, self._settings.worker.metrics_port)
        self.events.start()
        for spec, pin in found.places():
            self._add(spec, pin)
        self._beat.start()
        self._sweeper.start()
        log.info(FLEET_STARTED, worker=self._name, models=sorted(self._settings.models), slots=len(self._crews))

    def _machine(self) -> Machine:
        """GPUs are looked for only when one is asked for: the first look loads the driver."""
        return Machine(read_topology(), Gpus()) if all(map(on_cpu, self._specs)) else discover()

    def _add(self, spec: ModelSpec, pin: Pin) -> None:
        if self._settings.worker.pinning == "none":
            pin = replace(pin, cores=())
        name = f"{self._incarnation}.{self._numbers}"
        self._numbers += 1
        profiler = Profiler(spec, self._settings.profile_dir, done=self._beat.ring)
        slot = Slot(spec, pin, self._surroundings(spec, profiler), name=name)
        thread = threading.Thread(target=slot.run, name=f"slot-{spec.name}-{self._numbers}", daemon=True)
        self._crews.append(_Crew(slot, thread, profiler))
        thread.start()

    def _surroundings(self, spec: ModelSpec, profiler: Profiler) -> SlotContext:
        told = (self.events, self._metrics, self._job_log, profiler)
        observers: tuple[Observer, ...] = (*told, *self._spans, _Bell(self._beat))
        return SlotContext(
            open_store=lambda: RedisStore(self._url, name=f"penstock-slot-{os.getpid()}"),
            listen=lambda model, incarnation: WakeUps(self._url, model, incarnation).open(),
            blobs=self._blobs,
            observers=observers,
            lease_s=self._settings.worker.lease_s,
            inline_output_bytes=self._settings.store.inline_output_bytes,
            default_version=lambda: self._default_version(spec),
            declared_policy=self._declared(spec),
            profile_dir=profiler.folder,
        )

    def _default_version(self, spec: ModelSpec) -> str:
        info = self._infos.get(spec.name)
        followed_info = followed(info or ModelInfo(spec.name, spec.version), self._rollouts.get(spec.name))
        return followed_info.default_version if followed_info else spec.version

    def _declared(self, spec: ModelSpec) -> frozenset[str]:
        """Which fields of the policy nobody set, so that the handler's own wishes hold."""
        rollout = self._rollouts.get(spec.name)
        table = rollout.added.get(spec.version, {}) if rollout else {}
        return self._settings.policy_left_open(spec) - set(table)

    # What operators change while it runs.

    def _follow(self, store: RedisStore) -> None:
        """Start the versions that were added, let go of those that were removed and have nothing waiting."""
        rollouts = store.rollouts()
        if self.draining or not (rollouts or self._rollouts):
            return
        self._rollouts = rollouts
        own = {(name, version) for name, info in self._infos.items() for version in info.versions}
        specs, refused = known_specs(self._settings, rollouts)
        keep = kept(specs.keys() | refused.keys(), own, rollouts, lambda *key: store.unfinished(*key).waiting, now=time.time())
        self._specs = [spec for key, spec in specs.items() if key in keep]
        self._refused = {key: why for key, why in refused.items() if key in keep}
        for key in sorted((keep & specs.keys()) - self._kept):
            self._start(specs[key])
        for key in sorted(self._kept - keep):
            self._retire(key)
        # What found no place now may find one at the next beat.
        self._kept = keep - set(self._refused)

    def _start(self, spec: ModelSpec) -> None:
        try:
            pins = beside(spec, self._machine(), self._taken())
        except ConfigError as error:
            self._refused[key_of(spec)] = error.message
            return
        log.info(VERSION_STARTED, model=spec.name, version=spec.version, slots=len(pins))
        for pin in pins:
            self._add(spec, pin)

    def _taken(self) -> list[tuple[ModelSpec, Pin]]:
        return [(crew.slot.spec, crew.slot.pin) for crew in (*self._crews, *self._leaving) if crew.thread.is_alive()]

    def _retire(self, key: Key) -> None:
        log.info(VERSION_RETIRED, model=key[0], version=key[1])
        for crew in [crew for crew in self._crews if key_of(crew.slot.spec) == key]:
            self._let_go(crew)

    # More and fewer.

    def grow(self, count: int) -> None:
        """Add slots, each for the model with the fewest."""
        for _ in range(count):
            spec = min(self._specs, key=lambda spec: len(self._of(spec)))
            try:
                # Beside the others: their cores were shared out at the start, and moving them would slow them down.
                pin = one_more(spec, self._machine(), self._taken())
            except ConfigError as error:
                log.warning(SLOT_REFUSED, model=spec.name, reason=error.message)
                return
            self._add(spec, pin)
            log.info(SLOT_ADDED, model=spec.name, slots=len(self._of(spec)))

    def shrink(self, count: int) -> None:
        """Remove slots, each from the model with the most; what they run ends first."""
        for _ in range(min(count, len(self._crews))):
            spec = max(self._specs, key=lambda spec: len(self._of(spec)))
            crew = self._of(spec)[-1]
            self._let_go(crew)
            log.info(SLOT_REMOVED, model=spec.name, slots=len(self._of(spec)))

    def _let_go(self, crew: _Crew) -> None:
        """What it runs ends first; its leases must stand until then."""
        self._leaving = [former for former in self._leaving if former.thread.is_alive()] + [crew]
        self._crews.remove(crew)
        crew.slot.drain(by=time.monotonic() + self._settings.worker.grace_s)

    def _of(self, spec: ModelSpec) -> list[_Crew]:
        return [crew for crew in self._crews if key_of(crew.slot.spec) == key_of(spec)]

    # The end.

    def drain(self) -> None:
        """Stop taking jobs; returns at once. `wait` says when all is settled."""
        if self.draining:
            return
        self.draining = True
        by = time.monotonic() + self._settings.worker.grace_s
        for slot in self.slots:
            slot.drain(by=by)
        self._beat.ring()

    def hurry(self) -> None:
        """Give back what still runs, at once. Also called from signal handlers: takes no lock."""
        self.draining = True
        for slot in self._living():
            slot.drain(by=time.monotonic())

    def wait(self, timeout_s: float) -> bool:
        """Whether every slot has ended, after at most `timeout_s`."""
        until = time.monotonic() + timeout_s
        for crew in [*self._crews, *self._leaving]:
            crew.thread.join(timeout=max(0.0, until - time.monotonic()))
        return not self._living()

    def stop(self) -> None:
        """End the rest and leave the registry; the slots must have ended. Safe to repeat: a signal may do so."""
        if self._stopped:
            return
        self._stopped = True
        self._beat.stop()
        self._sweeper.stop()
        self.events.stop()
        for spans in self._spans:
            spans.close()
        try:
            self._beat_store.withdraw_worker(self._name)
        except StoreUnavailable as error:
            # The entry ends by itself, a few beats later.
            log.warning(WITHDRAW_FAILED, error=str(error))
        self._beat_store.close()
        self._sweep_store.close()
        log.info(FLEET_ENDED, worker=self._name)

    # What others are told; called in the beat's thread.

    def _announce(self, store: RedisStore) -> None:
        self._follow(store)
        wishes, now = store.profile_wishes(), time.time()
        for crew in self._crews:
            crew.profiler.wish(wishes.get(crew.slot.spec.name), now)
        slots = self.slots
        infos = [*self._slot_infos(), *refusals(self._refused)]
        if self.draining:
            store.withdraw_worker(self._name)
            return
        beat_s = self._settings.worker.beat_s
        declared = {name: tuple(info.versions) for name, info in self._infos.items()}
        info = WorkerInfo(
            self._name, socket.gethostname(), os.getpid(), self._started_at, slots=tuple(infos), declared=declared
        )
        store.announce_worker(info, ttl_s=max(1.0, _ANNOUNCED_BEATS * beat_s))
        self._announce_models(store, slots)
        self._announce_places(store, slots)
        models, workers = store.models(), store.workers()
        self._swept |= {info.model for info in infos} | unserved(models, workers)
        for slot in slots:
            slot.set_peers(peers(slot.spec.name, slot.spec.version, here=infos, workers=workers, own_name=self._name))
        if forgotten_versions.are_there(models, self._rollouts.values()):
            forgotten_versions.clear(store, now=time.time())

    def _announce_models(self, store: RedisStore, slots: Sequence[Slot]) -> None:
        """Declared at the first beat, repeated only when a version has been loaded since: other workers announce theirs."""
        for name, info in self._infos.items():
            loaded = {slot.spec.version: slot.version_info for slot in slots if slot.spec.name == name and slot.version_info}
            if self._announced.get(name) == loaded:
                continue
            known = store.stored_models().get(name, StoredModel())
            policy = next(
                (slot.policy for slot in slots if slot.spec.name == name and slot.spec.version == info.default_version), None
            )
            wanted = merged(replace(info, policy=policy or info.policy), loaded, known.info)
            if store.swap_model(name, known, wanted):  # else at the next beat
                self._announced[name] = loaded

    def _announce_places(self, store: RedisStore, slots: Sequence[Slot]) -> None:
        now = time.monotonic()
        for place in self._places.due({slot.name: slot.info() for slot in slots}, now):
            store.announce_place(place)
            self._places.told(place, now)


def _tell(found: PinningPlan) -> None:
    """The plan, one line per slot."""
    for cells in table(found):
        log.info(SLOT_PLACED, **{column.lower(): cell for column, cell in zip(COLUMNS, cells, strict=True)})
    for sentence in found.advice:
        log.warning(PLAN_ADVICE, text=sentence)


class _Bell(Observer):
    """Lets the beat announce a slot's change at once."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds

    def loaded(self, *_: Any) -> None:
        self._rounds.ring()

    def unloadable(self, *_: Any) -> None:
        self._rounds.ring()

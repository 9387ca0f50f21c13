"""The number of slots of each version in this worker process: by the settings, by an operator's scaling, or by remote control.

A version that an operator scaled follows its rollout and nothing else, so that two orders never undo each other.
"""

# D97: docs/design/workers-and-devices.md

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import structlog

from penstock.errors import ConfigError
from penstock.model_spec import ModelSpec
from penstock.settings.tables import Settings
from penstock.workers.devices.assign import is_on_cpu, slot_count, units_named
from penstock.workers.devices.machine import Machine, discover_for, memory_for_models
from penstock.workers.devices.pins import NO_LOCATION, Pin
from penstock.workers.devices.plan import COLUMNS, PinningPlan, plan, plan_beside, plan_one_more, table, unpinned
from penstock.workers.fleet.rollouts import Key, key_of
from penstock.workers.fleet.roster import Roster
from penstock.workers.fleet.versions import ServedVersions, VersionChange
from penstock.workers.slot.slot import Slot

log = structlog.get_logger(__name__)
SLOT_LOCATIOND = "slot_placed"
PLAN_ADVICE = "plan_advice"
SLOT_ADDED = "slot_added"
SLOT_REFUSED = "slot_refused"
SLOT_REMOVED = "slot_removed"
VERSION_STARTED = "version_started"
VERSION_RETIRED = "version_retired"
Discover = Callable[[Sequence[ModelSpec]], Machine]


class FleetSize:
    """Adds slots to the roster and removes them. Celery's main thread calls it, and so does the beat's."""

    def __init__(self, settings: Settings, versions: ServedVersions, roster: Roster, discover: Discover = discover_for) -> None:
        self._discover = discover
        self._pins_cores = settings.worker.pinning == "cores"
        self._versions = versions
        self._roster = roster
        # Two threads that planned at the same time would give two slots the same place.
        self._lock = threading.Lock()
        # Versions whose number of slots was last set by their rollout; without it they go back to that of the settings.
        self._follows: set[Key] = set()
        # How many threads a slot of each version got first: the last slot may go and come back.
        self._threads: dict[Key, int] = {}
        self._refused: dict[Key, str] = {}
        # The slots of versions that follow their work, once an extension has given them another number than that of the start.
        self._steered: dict[Key, int] = {}
        self._memory_bytes = settings.worker.memory_bytes

    def start(self, change: VersionChange) -> None:
        """Start the slots of the settings' versions, less those that `change` retires. Raises `ConfigError` for a device that
        is not there.
        """
        for key in change.to_retire:
            self._versions.mark_retired(key)
        specs = [spec for spec in self._versions.specs if self._versions.is_served(spec)]
        self._leave_out(specs)
        coded = [spec for spec in specs if not spec.driven_by and self._planned(spec) != 0 and not self._comes_later(spec)]
        pinned = plan([_sized(spec, self._planned(spec)) for spec in coded], self._machine())
        pinned = pinned if self._pins_cores else unpinned(pinned)
        _log_plan(pinned)
        by_key = {key_of(spec): spec for spec in specs}
        for spec, pins in zip(pinned.specs, pinned.rows, strict=True):
            # Also for the slots that are not started yet.
            self._threads.setdefault(key_of(spec), pins[0].threads)
            asked = by_key[key_of(spec)]
            self._add(asked, pins[: self._scale(asked)])
        for spec in specs:
            if spec.driven_by:
                self._add(spec, self._beside(spec, self._scale(spec)))
        self._follows = set(self._versions.scaled)

    def _comes_later(self, spec: ModelSpec) -> bool:
        """Whether its first slots are placed only when all others are: it may find its GPU taken, and then waits."""
        return spec.scaling is not None and spec.scaling.idle_unload_s is not None and not is_on_cpu(spec)

    def _leave_out(self, specs: Sequence[ModelSpec]) -> None:
        """Versions that may be unloaded start without a slot if what settings say of memory shows that they have no room."""
        on_cpu = [spec for spec in specs if is_on_cpu(spec) and not spec.driven_by]
        idle = [spec for spec in on_cpu if spec.scaling is not None and spec.scaling.idle_unload_s is not None]
        left = self._memory_bytes or (memory_for_models() if idle else 0)
        for spec in sorted(on_cpu, key=lambda spec: spec in idle):
            needed = (spec.device_memory_bytes or 0) * (spec.slots if (scale := self._scale(spec)) is None else scale)
            if spec in idle and needed > left and key_of(spec) not in self._versions.scaled:
                self._steered[key_of(spec)] = needed = 0
            left -= needed

    def follow(self, change: VersionChange) -> None:
        """Take up what operators changed: versions that came and went, and the numbers of slots."""
        with self._lock:
            for key in change.to_retire:
                self._retire(key)
            for spec in change.to_start:
                self._start(spec)
            for spec in self._versions.specs:
                if self._versions.is_served(spec) and (self._scale(spec) is not None or key_of(spec) in self._follows):
                    self._resize(spec)

    def grow(self, count: int) -> int:
        """Add slots, each for the version with the fewest, while there is a place; how many were added."""
        with self._lock:
            return next((done for done in range(count) if not self._grow_one()), count)

    def shrink(self, count: int) -> int:
        """Remove slots, each from the version with the most; what they run ends first. How many: each version keeps one."""
        with self._lock:
            return next((done for done in range(count) if not self._shrink_one()), count)

    def wanted(self) -> dict[str, dict[str, int]]:
        """How many slots this worker is to have, by model and version; without versions that only end their jobs."""
        slots: dict[str, dict[str, int]] = {}
        for spec in self._versions.specs:
            if self._versions.is_wanted(spec):
                slots.setdefault(spec.name, {})[spec.version] = self._wanted(spec)
        return slots

    def serving(self) -> dict[str, int]:
        """How many slots of each model are to take jobs here: none where operators paused, drained or unloaded, or scaled it
        to none, or where an extension has unloaded it until its next job.
        """
        slots = {spec.name: 0 for spec in self._versions.specs}
        for spec in self._versions.specs:
            if self._versions.is_wanted(spec) and not self._versions.is_paused(spec):
                slots[spec.name] += self._wanted(spec)
        return slots

    def _wanted(self, spec: ModelSpec) -> int:
        scale = self._scale(spec)
        return scale if scale is not None else self._roster.count(spec) or spec.slots * spec.slots_per_device

    def _scale(self, spec: ModelSpec) -> int | None:
        """The number of slots that an operator asked for, else the one that an extension did; None: as the settings say."""
        key = key_of(spec)
        if key in self._versions.scaled or spec.scaling is None:
            return self._versions.scaled.get(key)
        return self._steered.get(key, spec.scaling.within(spec.slots * spec.slots_per_device))

    def _planned(self, spec: ModelSpec) -> int | None:
        """For how many slots cores are shared out: of a version that follows its work, for as many as it may have."""
        if spec.scaling is None or key_of(spec) in self._versions.scaled:
            return self._scale(spec)
        return spec.scaling.max_slots

    # For an extension that scales.

    def automatic(self) -> list[ModelSpec]:
        """The versions here whose slots follow their work: not those that an operator scaled, or of a model that is paused."""
        served = [spec for spec in self._versions.specs if spec.scaling is not None and self._versions.is_served(spec)]
        return [spec for spec in served if key_of(spec) not in self._versions.scaled and not self._versions.is_paused(spec)]

    def target(self, spec: ModelSpec) -> int:
        """How many slots the version is to have here."""
        return self._wanted(spec)

    def steer(self, spec: ModelSpec, count: int) -> str:
        """Give a version this number of slots, or as many as find a place; why it has fewer, empty if it has all."""
        with self._lock:
            key = key_of(spec)
            if key in self._versions.scaled:
                return ""
            self._steered[key] = count
            if fault := self._brought_to(spec, count):
                self._steered[key] = self._roster.count(spec)
            return fault

    def running(self) -> Sequence[Slot]:
        return self._roster.slots

    def leaving(self) -> Sequence[Slot]:
        """Slots that were removed and still run something."""
        there = set(self._roster.slots)
        return [slot for slot in self._roster.alive() if slot not in there]

    def devices_of(self, spec: ModelSpec) -> Mapping[str, int]:
        """The memory of each device where the version may be loaded: by uuid, or for the CPU."""
        if is_on_cpu(spec):
            return {spec.device: self._memory_bytes or memory_for_models()}
        return {unit.uuid: unit.memory_bytes for unit in units_named(spec.device, self._machine().gpus)}

    def _machine(self) -> Machine:
        return self._discover(self._versions.specs)

    # What an operator changed.

    def _start(self, spec: ModelSpec) -> None:
        scale = self._scale(spec)
        try:
            pins = self._beside(spec, scale)
        except ConfigError as error:
            self._versions.refuse(spec, error.message)
            return
        log.info(VERSION_STARTED, model=spec.name, version=spec.version, slots=len(pins))
        self._add(spec, pins)
        self._versions.mark_started(spec)

    def _retire(self, key: Key) -> None:
        log.info(VERSION_RETIRED, model=key[0], version=key[1])
        self._roster.remove_all(key)
        self._versions.mark_retired(key)
        self._follows.discard(key)
        self._threads.pop(key, None)
        self._refused.pop(key, None)
        self._steered.pop(key, None)

    def _resize(self, spec: ModelSpec) -> None:
        key = key_of(spec)
        if spec.scaling is not None and key in self._follows and key not in self._versions.scaled:
            # An operator released the number: the part that scales continues from there.
            self._steered[key] = spec.scaling.within(self._roster.count(spec))
            self._follows.discard(key)
        scale = self._scale(spec)
        wanted = slot_count(spec, self._machine().gpus) if scale is None else scale
        if key in self._versions.scaled or spec.scaling is None:
            self._follows.add(key)
        if fault := self._brought_to(spec, wanted):
            if spec.scaling is not None and key not in self._versions.scaled:
                # The part that scales it asks again when it needs more.
                self._steered[key] = self._roster.count(spec)
                return
            self._versions.refuse(spec, fault)
            if self._refused.get(key) != fault:
                log.warning(SLOT_REFUSED, model=spec.name, version=spec.version, reason=fault)
            self._refused[key] = fault
            return
        self._refused.pop(key, None)
        if scale is None:
            self._follows.discard(key)

    def _brought_to(self, spec: ModelSpec, wanted: int) -> str:
        """Give the version this number of slots, or as many of them as find a place; why it has fewer, empty if it has all."""
        while self._roster.count(spec) > wanted:
            self._remove_one(spec)
        try:
            if not self._roster.count(spec) and is_on_cpu(spec):
                self._add(spec, self._beside(spec, wanted))
            if self._roster.count(spec) < wanted:
                machine = self._machine()
                while self._roster.count(spec) < wanted:
                    self._add_one(spec, machine)
        except ConfigError as error:
            return f"{self._roster.count(spec)} of {wanted} slots have a place: {error.message}"
        return ""

    def _beside(self, spec: ModelSpec, scale: int | None) -> Sequence[Pin]:
        """Places for a version without slots: `scale` of them, or as many as the settings say.

        None if it is scaled and on GPUs: there slots are placed one by one, because the settings' number may not have room.
        """
        if spec.driven_by:
            return [NO_LOCATION] * (1 if scale is None else scale)
        if scale == 0 or (scale is not None and not is_on_cpu(spec)):
            return ()
        return plan_beside(_sized(self._with_threads(spec), scale), self._machine(), self._roster.taken())

    # By remote control.

    def _grow_one(self) -> bool:
        spec = min(self._by_settings(), key=self._roster.count, default=None)
        if spec is None:
            return False
        try:
            self._add_one(spec, self._machine())
        except ConfigError as error:
            log.warning(SLOT_REFUSED, model=spec.name, reason=error.message)
            return False
        return True

    def _shrink_one(self) -> bool:
        spec = max(self._by_settings(), key=self._roster.count, default=None)
        if spec is None or self._roster.count(spec) <= 1:
            return False
        self._remove_one(spec)
        return True

    def _by_settings(self) -> list[ModelSpec]:
        """Not of a model that an extension drives: one slot works on any number of its jobs."""
        served = [spec for spec in self._versions.specs if self._versions.is_served(spec) and not spec.driven_by]
        return [spec for spec in served if self._scale(spec) is None]

    # One slot more, one slot less.

    def _add_one(self, spec: ModelSpec, machine: Machine) -> None:
        # The others keep their cores: those were shared out at the start, and moving them would slow them down.
        taken = self._roster.taken()
        pin = plan_one_more(self._with_threads(spec), machine, taken) if not spec.driven_by else NO_LOCATION
        self._add(spec, [pin])
        log.info(SLOT_ADDED, model=spec.name, version=spec.version, slots=self._roster.count(spec))

    def _remove_one(self, spec: ModelSpec) -> None:
        self._roster.remove_one(spec)
        log.info(SLOT_REMOVED, model=spec.name, version=spec.version, slots=self._roster.count(spec))

    def _with_threads(self, spec: ModelSpec) -> ModelSpec:
        return replace(spec, threads=spec.threads or self._threads.get(key_of(spec)))

    def _add(self, spec: ModelSpec, pins: Sequence[Pin]) -> None:
        for pin in pins:
            self._threads.setdefault(key_of(spec), pin.threads)
            self._roster.add(spec, pin)


def _sized(spec: ModelSpec, scale: int | None) -> ModelSpec:
    """The spec with as many slots on the CPU; `slots` of a spec on GPUs counts devices, so that its plan is cut instead."""
    return replace(spec, slots=scale) if scale and is_on_cpu(spec) else spec


def _log_plan(pinned: PinningPlan) -> None:
    """One line per slot, then the advice."""
    for cells in table(pinned):
        log.info(SLOT_LOCATIOND, **{column.lower(): cell for column, cell in zip(COLUMNS, cells, strict=True)})
    for sentence in pinned.advice:
        log.warning(PLAN_ADVICE, text=sentence)

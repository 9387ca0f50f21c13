"""Adjusts the slots of this worker process to their work, once a second. The modules beside this one decide; it does the I/O.

D112: docs/design/workers-and-devices.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from penstock.broker.store.sync import RedisStore
from penstock.extensions.autoscaling.worker.demand import ModelDemand, joined
from penstock.extensions.autoscaling.worker.devices import CPU, DeviceRoom, PinnedSlot, Wish
from penstock.extensions.autoscaling.worker.learned import LearnedSlots, memory_of
from penstock.extensions.autoscaling.worker.policy import Reason, Target, VersionReading, VersionScaler
from penstock.extensions.autoscaling.worker.room import Key
from penstock.extensions.autoscaling.worker.shares import HostSlots
from penstock.model_spec import ModelSpec, ScalingInfo, SlotInfo, WorkerInfo
from penstock.workers.slot.slot import Slot

log = structlog.get_logger(__name__)
SLOTS_SCALED = "slots_scaled"
NO_ROOM = "no_room"
AUTOSCALING_MISSED = "autoscaling_missed"

LOOK_S = 1.0
# A worker with many models reads the queue of each less often, to limit the load on the store.
LOOK_PER_MODEL_S = 0.05


class ScaledFleet(Protocol):
    """The part of `FleetSize` that an autoscaler uses."""

    def automatic(self) -> list[ModelSpec]:
        """The versions here whose slots follow their work: not those that an operator scaled."""

    def target(self, spec: ModelSpec) -> int:
        """How many slots the version should have here."""

    def steer(self, spec: ModelSpec, count: int) -> str:
        """Give the version `count` slots, or as many as fit. Returns why it has fewer; empty if it has all."""

    def running(self) -> Sequence[Slot]: ...

    def leaving(self) -> Sequence[Slot]:
        """Removed slots that still run something."""

    def devices_of(self, spec: ModelSpec) -> Mapping[str, int]:
        """The memory of each device where the version may be loaded: by uuid, or for the CPU."""


@dataclass(slots=True)
class _Version:
    """What this process remembers of one version. `wished_at`: when it began to wait for room; `is_full`: there is none now."""

    spec: ModelSpec
    scaler: VersionScaler
    wished_at: float | None = None
    is_full: bool = False
    is_hopeless: bool = False
    loads: int = 0
    ended: int = 0
    reason: Reason = Reason.START
    changed_at: float = 0.0


@dataclass(slots=True)
class Autoscaler:
    """Runs in a thread of its own. `name` is the worker's. `workers` returns those of the registry, and `measured` the slots of
    this process as last announced. `on_change` is called with a model and the reason after a change.
    """

    name: str
    store: RedisStore
    fleet: ScaledFleet
    workers: Callable[[], Sequence[WorkerInfo]]
    measured: Callable[[], Sequence[SlotInfo]]
    on_change: Callable[[str, str], None]
    least_stay_s: float
    # The queues of a model.
    queues: Callable[[str], Sequence[str]] = lambda model: [model]
    learned: LearnedSlots = field(default_factory=LearnedSlots)
    # Bytes of a slot of each version on its device, where this process has measured them.
    memory: Mapping[Key, int] = field(default_factory=dict)
    # The worker stops, and its slots with it.
    is_draining: bool = False
    _versions: dict[Key, _Version] = field(default_factory=dict)
    _demands: dict[str, ModelDemand] = field(default_factory=dict)
    _ready_at: dict[Key, float] = field(default_factory=dict)

    def run_once(self, now: float) -> float:
        """The pause until the next look. Raises `StoreUnavailable`. `now` is monotonic."""
        if self.is_draining:
            return LOOK_S
        specs = self.fleet.automatic()
        slots = {slot: slot.facts.info() for slot in self.fleet.running()}
        self._follow(specs, now)
        self._note_slots(slots, now)
        self.memory = memory_of(self.measured())
        self.learned.note(slots.values(), self.memory)
        for model in self._demands:
            self._read(model, [spec for spec in specs if spec.name == model], now)
        targets = [(one, one.scaler.decide(self._reading(one, slots, now), now)) for one in self._versions.values()]
        wishes = [self._apply(version, target, now) for version, target in targets]
        self._grant([wish for wish in wishes if wish is not None], now)
        self._relieve()
        return max(LOOK_S, LOOK_PER_MODEL_S * len(self._demands))

    def infos(self) -> dict[str, dict[str, ScalingInfo]]:
        """What is announced, by model and version. Safe to call from any thread."""
        by_model: dict[str, dict[str, ScalingInfo]] = {}
        for (model, name), version in list(self._versions.items()):
            by_model.setdefault(model, {})[name] = self._info(version)
        return by_model

    def _info(self, version: _Version) -> ScalingInfo:
        spec, known = version.spec, self.learned.of((version.spec.name, version.spec.version))
        assert spec.scaling is not None
        slots = self.fleet.target(spec)
        return ScalingInfo(
            spec.scaling.min_slots,
            slots if version.is_full else spec.scaling.max_slots,
            spec.scaling.max_slots,
            slots,
            known.start_s,
            dict(known.latency_s),
            known.memory_bytes,
            spec.scaling.idle_unload_s,
            version.loads,
            version.reason.value,
            version.changed_at,
        )

    # Readings.

    def _follow(self, specs: Iterable[ModelSpec], now: float) -> None:
        wanted = {(spec.name, spec.version): spec for spec in specs}
        for key in self._versions.keys() - wanted.keys():
            del self._versions[key]
        for key, spec in wanted.items():
            if key not in self._versions or self._versions[key].spec != spec:
                self._versions[key] = self._new(spec, now)
        models = {model for model, _ in wanted}
        for model in self._demands.keys() - models:
            del self._demands[model]
        for model in models - self._demands.keys():
            self.learned.recall(model, self.store.learned_times(model))
            self._demands[model] = ModelDemand()

    def _new(self, spec: ModelSpec, now: float) -> _Version:
        assert spec.scaling is not None
        scaler = VersionScaler(self.name, spec.scaling, spec.limits.deadline_s, used_at=now)
        return _Version(spec, scaler, loads=self.fleet.target(spec))

    def _note_slots(self, slots: Mapping[Slot, SlotInfo], now: float) -> None:
        loading = {(info.model, info.version) for info in slots.values() if info.state == "loading"}
        there = {(info.model, info.version) for info in slots.values()}
        for key in self._ready_at.keys() - (there - loading):
            del self._ready_at[key]
        for key in there - loading:
            self._ready_at.setdefault(key, now)

    def _read(self, model: str, specs: Sequence[ModelSpec], now: float) -> None:
        demand = self._demands[model]
        versions = [spec.version for spec in specs]
        demand_now = joined([self.store.demand(queue, versions) for queue in self.queues(model)])
        demand.note(demand_now, now, batch_size=max(spec.policy.max_batch_size for spec in specs))

    def _reading(self, version: _Version, slots: Mapping[Slot, SlotInfo], now: float) -> VersionReading:
        spec, key = version.spec, (version.spec.name, version.spec.version)
        demand, known = self._demands[spec.name], self.learned.of(key)
        slots_by_version = self._slots_everywhere(spec.name, slots.values())
        return VersionReading(
            waiting=demand.waiting(spec.version),
            arrivals_per_s=demand.arrivals_per_s * self._part(spec),
            ready=sum(slot.state == "ready" for slot in slots_by_version.get(spec.version, ())),
            rate=demand.rates(slots_by_version, now).get(spec.version, 0.0),
            start_s=known.start_s,
            is_running=self._has_run(version, [slot for slot in slots if slot.spec == spec]),
            hosts=self._hosts(spec),
            slot_rate=known.rate,
            due_in_s=demand.due_in_s(spec.version),
        )

    def _slots_everywhere(self, model: str, own: Iterable[SlotInfo]) -> dict[str, list[SlotInfo]]:
        others = (slot for worker in self.workers() if worker.name != self.name and not worker.drained for slot in worker.slots)
        by_version: dict[str, list[SlotInfo]] = {}
        for slot in (*own, *others):
            if slot.model == model:
                by_version.setdefault(slot.version, []).append(slot)
        return by_version

    def _part(self, spec: ModelSpec) -> float:
        """The version's share of the model's arrivals, estimated from the jobs that ended here."""
        versions = [one for one in self._versions.values() if one.spec.name == spec.name]
        own = next(one for one in versions if one.spec.version == spec.version)
        return (1 + own.ended) / (len(versions) + sum(one.ended for one in versions))

    def _has_run(self, version: _Version, slots: Iterable[Slot]) -> bool:
        before, there = version.ended, list(slots)
        version.ended = sum(slot.ended for slot in there)
        return version.ended > before or any(slot.active_batches() for slot in there)

    def _hosts(self, spec: ModelSpec) -> dict[str, HostSlots]:
        assert spec.scaling is not None
        hosts = {self.name: HostSlots(self.fleet.target(spec), spec.scaling.min_slots, spec.scaling.max_slots)}
        for worker in self.workers():
            info = worker.scaling.get(spec.name, {}).get(spec.version)
            if info is not None and worker.name != self.name:
                hosts[worker.name] = HostSlots(info.slots, info.least, info.most)
        return hosts

    # Changes.

    def _apply(self, version: _Version, target: Target | None, now: float) -> Wish | None:
        """Apply the target if no other model has to leave for it. A first slot for waiting jobs becomes a wish."""
        if target is not None and target.reason is Reason.DEMAND:
            version.wished_at = now if version.wished_at is None else version.wished_at
            return Wish(version.spec, version.wished_at)
        version.wished_at, version.is_full = None, False
        if target is not None and target.slots > self.fleet.target(version.spec):
            self._grow(version, target)
        elif target is not None:
            self._steer(version, target)
        return None

    def _grow(self, version: _Version, target: Target) -> None:
        spec, there = version.spec, self.fleet.target(version.spec)
        more = target.slots - there
        if any(one.wished_at is not None for one in self._versions.values()):
            # Freed memory goes to the version that waits for it.
            more = 0
        elif spec.device == CPU:
            more = self._room(self.fleet.devices_of(spec)).more(spec, more)
        version.is_full = there + more < target.slots
        if more:
            self._steer(version, Target(there + more, target.reason))

    def _grant(self, wishes: Sequence[Wish], now: float) -> None:
        if not wishes:
            return
        devices = {wish.key: self.fleet.devices_of(wish.spec) for wish in wishes}
        budgets = {device: size for sizes in devices.values() for device, size in sizes.items()}
        answer = self._room(budgets).answer(wishes, {key: list(sizes) for key, sizes in devices.items()}, now)
        for wish in wishes:
            version = self._versions[wish.key]
            version.is_full = wish.key not in answer.granted
            self._tell(version, is_hopeless=wish.key in answer.hopeless)
            if not version.is_full:
                version.wished_at = None
                self._steer(version, Target(1, Reason.DEMAND))
        self._let_go(answer.leavers)

    def _relieve(self) -> None:
        """The memory of a model is known only once it is loaded, and may be too much beside the other models."""
        spec = next((one.spec for one in self._versions.values() if one.spec.device == CPU), None)
        if spec is not None:
            self._let_go(self._room(self.fleet.devices_of(spec)).overfull(CPU))

    def _let_go(self, leavers: Mapping[Key, int]) -> None:
        for key, count in leavers.items():
            leaver = self._versions[key]
            self._steer(leaver, Target(self.fleet.target(leaver.spec) - count, Reason.ROOM))

    def _room(self, budgets: Mapping[str, int]) -> DeviceRoom:
        pinned = [PinnedSlot(slot.spec, slot.pin.uuid or CPU, slot.state != "loading") for slot in self.fleet.running()]
        pinned += [PinnedSlot(slot.spec, slot.pin.uuid or CPU, is_leaving=True) for slot in self.fleet.leaving()]
        used_at = {key: version.scaler.used_at for key, version in self._versions.items()}
        return DeviceRoom(budgets, self.learned, pinned, self._ready_at, used_at, self.least_stay_s)

    def _tell(self, version: _Version, *, is_hopeless: bool) -> None:
        if is_hopeless and not version.is_hopeless:
            log.warning(NO_ROOM, model=version.spec.name, version=version.spec.version, hint=_NO_ROOM_HINT)
        version.is_hopeless = is_hopeless

    def _steer(self, version: _Version, target: Target) -> None:
        spec, before = version.spec, self.fleet.target(version.spec)
        fault = self.fleet.steer(spec, target.slots)
        count = self.fleet.target(spec)
        version.is_full = version.is_full or bool(fault)
        if count == before:
            return
        version.loads += max(0, count - before)
        version.reason, version.changed_at = target.reason, self.store.now()
        waiting = self._demands[spec.name].waiting(spec.version)
        facts = {"before": before, "slots": count, "reason": target.reason.value, "waiting": waiting}
        log.info(SLOTS_SCALED, model=spec.name, version=spec.version, **facts)
        self.on_change(spec.name, target.reason.value)


_NO_ROOM_HINT = (
    "other models take the memory and may not leave: give them idle_unload_s or a smaller min_slots, "
    "or this worker more memory (worker.memory_bytes on the CPU)"
)

"""Whether a slot finds room on its device, and who gives way to it. Pure; time is passed in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.extensions.autoscaling.worker.learned import LearnedSlots
from penstock.extensions.autoscaling.worker.room import LEAST_STAY_S, Key, Tenant, gives_way
from penstock.model_spec import ModelSpec

CPU = "cpu"


@dataclass(frozen=True, slots=True)
class PinnedSlot:
    """A slot of this process. `device`: a GPU's uuid, or `CPU`. `is_leaving`: it finishes what it runs and then leaves."""

    spec: ModelSpec
    device: str
    is_ready: bool = True
    is_leaving: bool = False

    @property
    def key(self) -> Key:
        return self.spec.name, self.spec.version


@dataclass(frozen=True, slots=True)
class Wish:
    """A version that has no slot here and should get one. `since`: when that began (monotonic)."""

    spec: ModelSpec
    since: float

    @property
    def key(self) -> Key:
        return self.spec.name, self.spec.version


@dataclass(slots=True)
class RoomDecision:
    """The answer to wishes: the versions that get room now, and how many slots of other versions must leave for the rest.

    `hopeless`: wishes that could not be met even if every model that may leave did.
    """

    granted: list[Key] = field(default_factory=list)
    leavers: dict[Key, int] = field(default_factory=dict)
    hopeless: list[Key] = field(default_factory=list)


@dataclass(slots=True)
class DeviceRoom:
    """The memory of this process' devices, by uuid and for `CPU`, and the versions that share it."""

    budgets: Mapping[str, int]
    learned: LearnedSlots
    slots: Sequence[PinnedSlot]
    ready_at: Mapping[Key, float]
    used_at: Mapping[Key, float]
    least_stay_s: float = LEAST_STAY_S

    def answer(self, wishes: Iterable[Wish], devices: Mapping[Key, Sequence[str]], now: float) -> RoomDecision:
        """`devices`: where each version may be loaded. The longest wait comes first, and memory that is freed for one version
        is not given to another.
        """
        answer, promised = RoomDecision(), dict.fromkeys(self.budgets, 0)
        for wish in sorted(wishes, key=lambda wish: wish.since):
            usable = [device for device in devices.get(wish.key, ()) if device in self.budgets]
            possible = [device for device in usable if self._could_fit(wish.spec, device)]
            if not possible:
                answer.hopeless.append(wish.key)
                continue
            leavers = {device: self._gives_way(wish, device, promised[device], now) for device in possible}
            device = min(possible, key=lambda device: _cost(leavers[device]))
            promised[device] += self.needed(wish.spec, device)
            if leavers[device] == {}:
                answer.granted.append(wish.key)
            answer.leavers.update(leavers[device] or {})
        return answer

    def more(self, spec: ModelSpec, count: int) -> int:
        """How many of `count` more slots of a version fit on the CPU if no other slot leaves."""
        each = self.needed(spec, CPU)
        if not each:
            return count
        taken = sum(tenant.memory_bytes for tenant in self._tenants(CPU))
        return max(0, min(count, (self.budgets[CPU] - taken) // each))

    def overfull(self, device: str) -> Mapping[Key, int]:
        """How many slots of each version must leave at once, because the slots there take more memory than the device has."""
        return gives_way(0, self.budgets[device], self._tenants(device), deadline_s=0.0, now=math.inf) or {}

    def needed(self, spec: ModelSpec, device: str) -> int:
        """The memory of one slot there, at most that of the device: a larger model gets the device to itself."""
        return min(self._slot_bytes(spec, device), self.budgets[device])

    def _slot_bytes(self, spec: ModelSpec, device: str) -> int:
        if device == CPU:
            # A model of unknown size is tried, because only a load can show its size.
            return spec.device_memory_bytes or self.learned.of((spec.name, spec.version)).memory_bytes
        if spec.placement != "shared":
            return self.budgets[device]
        return spec.device_memory_bytes or self.learned.of((spec.name, spec.version)).memory_bytes or self.budgets[device]

    def _could_fit(self, spec: ModelSpec, device: str) -> bool:
        stays = sum(one.memory_bytes * (one.slots - one.spare) // max(1, one.slots) for one in self._tenants(device))
        return stays + self.needed(spec, device) <= self.budgets[device]

    def _gives_way(self, wish: Wish, device: str, promised: int, now: float) -> Mapping[Key, int] | None:
        needed, deadline_s = self.needed(wish.spec, device), wish.spec.limits.deadline_s
        return gives_way(needed + promised, self.budgets[device], self._tenants(device), deadline_s=deadline_s, now=now)

    def _tenants(self, device: str) -> list[Tenant]:
        groups: dict[tuple[Key, bool], list[PinnedSlot]] = {}
        for slot in self.slots:
            if slot.device == device:
                groups.setdefault((slot.key, slot.is_leaving), []).append(slot)
        return [self._tenant(slots, device) for slots in groups.values()]

    def _tenant(self, slots: Sequence[PinnedSlot], device: str) -> Tenant:
        first, key = slots[0], slots[0].key
        scaling, count = first.spec.scaling, len(slots)
        least = count if scaling is None else 0 if scaling.idle_unload_s is not None else scaling.min_slots
        # On a GPU, the slots of a model that shares with no other have the whole device.
        sole = device != CPU and first.spec.placement != "shared"
        return Tenant(
            key,
            count,
            spare=max(0, count - least),
            memory_bytes=self.needed(first.spec, device) * (1 if sole else count),
            ready_at=self.ready_at.get(key, -math.inf) if all(slot.is_ready for slot in slots) else math.inf,
            used_at=self.used_at.get(key, -math.inf),
            start_s=self.learned.of(key).start_s,
            is_leaving=first.is_leaving,
            least_stay_s=self.least_stay_s,
        )


def _cost(leavers: Mapping[Key, int] | None) -> float:
    return math.inf if leavers is None else float(sum(leavers.values()))

"""Assigns a GPU or MIG slice to each slot. Pure: free memory is what discovery read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.errors import ConfigError
from penstock.model_spec import ModelSpec
from penstock.words import size
from penstock.workers.devices.gpus import Gpu, Gpus, Unit

ANY, EVERY = "cuda", "cuda:*"


def is_on_cpu(spec: ModelSpec) -> bool:
    return spec.device == "cpu"


def assign_devices(
    specs: Sequence[ModelSpec], gpus: Gpus, *, allocations: DeviceAllocations | None = None
) -> list[list[Unit | None]]:
    """For each spec one device per slot, None for the CPU; `allocations` holds the devices of slots that exist already.

    Raises a `ConfigError` that lists every requested device that is not available.
    """
    allocations = allocations or DeviceAllocations(gpus)
    devices: dict[int, list[Unit | None]] = {}
    faults: list[str] = []
    # Specs that name their device go first; the others take what is left.
    for place in sorted(range(len(specs)), key=lambda place: specs[place].device == ANY):
        try:
            devices[place] = allocations.allocate(specs[place])
        except _Unmet as unmet:
            faults.append(f"model {specs[place].name}: device {specs[place].device!r}: {unmet}")
    if faults:
        raise ConfigError(
            f"A device that is asked for cannot be used. {available_devices(gpus)}",
            faults=faults,
            hint="see `penstock doctor --devices`",
        )
    return [devices[place] for place in range(len(specs))]


def slot_count(spec: ModelSpec, gpus: Gpus) -> int:
    """How many slots the settings of this version ask for on this machine."""
    return spec.slots if is_on_cpu(spec) else _device_count(spec, gpus) * spec.slots_per_device


def _device_count(spec: ModelSpec, gpus: Gpus) -> int:
    return spec.slots if spec.device == ANY else len(units_named(spec.device, gpus)) if spec.device == EVERY else 1


def available_devices(gpus: Gpus) -> str:
    """A sentence that lists the devices a model may ask for."""
    units = ", ".join(f"{name_of(gpus, unit)} ({unit.name}, {unit.uuid})" for unit in gpus.units)
    return f"There is: cpu, {units}." if units else f"There is no GPU: {gpus.absent or 'none has a slice to use'}."


def name_of(gpus: Gpus, unit: Unit) -> str:
    """The shortest name by which a model may ask for this device."""
    if unit.slice:
        return unit.uuid
    return next((f"cuda:{place}" for place, gpu in enumerate(gpus.found) if gpu.whole.uuid == unit.uuid), unit.uuid)


class _Unmet(Exception):
    """A requested device is not available; the text says why."""


class DeviceAllocations:
    """The specs whose slots are on each device."""

    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus
        self._slots: dict[str, list[ModelSpec]] = {}

    def allocate(self, spec: ModelSpec) -> list[Unit | None]:
        """Take devices for all slots that the spec declares, and return one per slot."""
        if is_on_cpu(spec):
            if spec.slots_per_device > 1:
                each, wanted = spec.slots_per_device, spec.slots * spec.slots_per_device
                raise _Unmet(f"slots_per_device = {each} counts slots on a GPU; set slots = {wanted}")
            return [None] * spec.slots
        if spec.device != ANY and spec.slots > 1:
            raise _Unmet(f'slots = {spec.slots} counts devices and goes with "{ANY}"; set slots_per_device')
        self._named(spec)
        chosen = [self._allocate_device(spec) for _ in range(_device_count(spec, self._gpus))]
        return [unit for unit in chosen for _ in range(spec.slots_per_device)]

    def _allocate_device(self, spec: ModelSpec) -> Unit:
        """Take a device that has no slot of this spec yet, and enter all slots of the spec that one device gets."""
        fits = [unit for unit in self._with_room(spec, spec.slots_per_device) if not self._count_own(spec, unit)]
        if not fits:
            raise _Unmet(f"{spec.slots} devices are wanted, and no further one is free for it")
        unit = self._least_used(fits)
        for _ in range(spec.slots_per_device):
            self.add(spec, unit)
        return unit

    def allocate_one(self, spec: ModelSpec) -> Unit | None:
        """Take a device for one more slot; None: the CPU. Raises `ConfigError` if every device is full."""
        if is_on_cpu(spec):
            return None
        try:
            fits = [unit for unit in self._with_room(spec, 1) if self._count_own(spec, unit) < spec.slots_per_device]
        except _Unmet as unmet:
            raise ConfigError(f"model {spec.name} gets no further slot: {unmet}") from unmet
        if not fits:
            raise ConfigError(
                f"model {spec.name} has {spec.slots_per_device} slots on each of its devices already",
                hint="set a larger slots_per_device",
            )
        unit = self._least_used(fits)
        self.add(spec, unit)
        return unit

    def add(self, spec: ModelSpec, unit: Unit) -> None:
        self._slots.setdefault(unit.uuid, []).append(spec)

    def _specs_on(self, unit: Unit) -> list[ModelSpec]:
        return self._slots.get(unit.uuid, [])

    def _count_own(self, spec: ModelSpec, unit: Unit) -> int:
        """How many slots of this version are on the device."""
        return sum((one.name, one.version) == (spec.name, spec.version) for one in self._specs_on(unit))

    def _least_used(self, units: Iterable[Unit]) -> Unit:
        """The device with the fewest slots, so that devices take turns; among those, the one with most memory not promised."""
        return min(units, key=lambda unit: (len(self._specs_on(unit)), self._promised(unit) - unit.free_bytes))

    def _promised(self, unit: Unit) -> int:
        return sum(spec.device_memory_bytes or 0 for spec in self._specs_on(unit))

    def _with_room(self, spec: ModelSpec, slots: int) -> list[Unit]:
        """The devices that the spec names, that have memory for this many slots, and that no other model wants alone."""
        named = self._named(spec)
        kept = [unit for unit in named if self._may_join(spec, unit)]
        if not kept:
            others = sorted({other.name for unit in named for other in self._specs_on(unit) if other.name != spec.name})
            raise _Unmet(f'taken by {", ".join(others)}; set placement = "shared" on all of them to share a device')
        needed = slots * (spec.device_memory_bytes or 0)
        with_memory = [unit for unit in kept if self._promised(unit) + needed <= unit.memory_bytes]
        if not with_memory:
            most = max(unit.memory_bytes - self._promised(unit) for unit in kept)
            raise _Unmet(f"its device_memory_bytes come to {size(needed)}, and at most {size(most)} are not promised yet")
        return with_memory

    def _may_join(self, spec: ModelSpec, unit: Unit) -> bool:
        """Whether a slot of this spec may join those on the device: other versions always, other models only if all share."""
        others = [other for other in self._specs_on(unit) if other.name != spec.name]
        return not others or all(one.placement == "shared" for one in (spec, *others))

    def _named(self, spec: ModelSpec) -> list[Unit]:
        units = units_named(spec.device, self._gpus)
        if not units:
            raise _Unmet(_why_none(spec.device, self._gpus))
        return units


def units_named(device: str, gpus: Gpus) -> list[Unit]:
    """The GPUs and slices for a model that asks for `device`; none if there is no such device."""
    if device in (ANY, EVERY):
        return list(gpus.units)
    if device.startswith("MIG-"):
        return [unit for unit in gpus.units if unit.uuid == device]
    gpu = _gpu(device, gpus)
    # A GPU that is cut into slices cannot be used as a whole, and a slice was not asked for.
    return [gpu.whole] if gpu and not gpu.mig else []


def _gpu(device: str, gpus: Gpus) -> Gpu | None:
    if device.startswith("GPU-"):
        return next((gpu for gpu in gpus.found if gpu.whole.uuid == device), None)
    kind, _, number = device.partition(":")
    known = kind == ANY and number.isdigit() and int(number) < len(gpus.found)
    return gpus.found[int(number)] if known else None


def _why_none(device: str, gpus: Gpus) -> str:
    gpu = _gpu(device, gpus)
    if gpu is not None:
        slices = ", ".join(unit.uuid for unit in gpu.slices) or "none yet; make some with `nvidia-smi mig -cgi`"
        return f"MIG is on there: ask for a slice ({slices})"
    if not device.startswith((ANY, "GPU-", "MIG-")):
        return f'unknown; devices are "cpu", "{ANY}", "cuda:N", "{EVERY}", "GPU-<uuid>" and "MIG-<uuid>"'
    return "not there"

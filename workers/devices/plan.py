"""The pinning plan: the device, cores and threads of every slot, and advice on better settings. Pure."""

# D24: why the plan is pure. D25: why models that share a device do not take turns on it.

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from penstock.model_spec import ModelSpec
from penstock.workers.devices.assign import DeviceAllocations, assign_devices, name_of
from penstock.workers.devices.cores import CoreAssignment, CoreDemand, assign_cores
from penstock.workers.devices.gpus import Unit
from penstock.workers.devices.machine import Machine
from penstock.workers.devices.pins import Pin
from penstock.workers.devices.topology import ranges

_SHARED = "shared"
_CPU_GROUP = "cpu"
_GIB = 1 << 30
_Taken = Sequence[tuple[ModelSpec, Pin]]


@dataclass(frozen=True, slots=True)
class PinningPlan:
    """For each spec a row of pins, one per slot; `advice` are whole sentences."""

    specs: tuple[ModelSpec, ...]
    rows: tuple[tuple[Pin, ...], ...]
    advice: tuple[str, ...] = ()

    def pins(self) -> list[tuple[ModelSpec, Pin]]:
        return [(spec, pin) for spec, row in zip(self.specs, self.rows, strict=True) for pin in row]


def plan(specs: Sequence[ModelSpec], machine: Machine) -> PinningPlan:
    """The plan of a starting worker. Raises `ConfigError` if a device is missing or taken; no slot falls back to the CPU."""
    units = assign_devices(specs, machine.gpus)
    wanted = [(spec, unit) for spec, row in zip(specs, units, strict=True) for unit in row]
    given = assign_cores(machine.topology, [_demand(spec, unit) for spec, unit in wanted])
    pins = iter([_pin(spec, unit, assigned, machine) for (spec, unit), assigned in zip(wanted, given, strict=True)])
    rows = tuple(tuple(next(pins) for _ in row) for row in units)
    return PinningPlan(tuple(specs), rows, tuple(_advice(machine, specs, rows)))


def unpinned(pinned: PinningPlan) -> PinningPlan:
    """The same devices and threads, but the system chooses the cores."""
    rows = tuple(tuple(replace(pin, cores=(), node=None) for pin in row) for row in pinned.rows)
    return replace(pinned, rows=rows)


def plan_one_more(spec: ModelSpec, machine: Machine, taken: _Taken) -> Pin:
    """A place for one further slot beside those `taken`: on cores that no slot has, or else not pinned.

    Raises `ConfigError` if the slot needs a GPU and none has room.
    """
    unit = _allocations(machine, taken).allocate_one(spec)
    return (
        _on_shared_cores(spec, unit, taken)
        or _on_free_cores(spec, unit, machine, taken, least=1)
        or _not_pinned(spec, unit, machine, taken)
    )


def plan_beside(spec: ModelSpec, machine: Machine, taken: _Taken) -> list[Pin]:
    """The places of a version that is loaded later, beside those `taken`: on free cores, else on those of the version before.

    Both versions run while the model's work moves from one to the other. Raises `ConfigError` as `plan` does.
    """
    # D34: on the cores of the version before, so that the plan is then the same as after a restart.
    [units] = assign_devices([spec], machine.gpus, allocations=_allocations(machine, taken))
    places = list(taken)
    for unit in units:
        pin = (
            _on_shared_cores(spec, unit, places)
            or _on_free_cores(spec, unit, machine, places, least=spec.threads or _usual_threads(spec, places))
            or _on_former_cores(spec, unit, places)
            or _on_free_cores(spec, unit, machine, places, least=1)
            or _not_pinned(spec, unit, machine, places)
        )
        places.append((spec, pin))
    return [pin for _, pin in places[len(taken) :]]


def _allocations(machine: Machine, taken: _Taken) -> DeviceAllocations:
    allocations = DeviceAllocations(machine.gpus)
    by_uuid = {unit.uuid: unit for unit in machine.gpus.units}
    for spec, pin in taken:
        if pin.uuid in by_uuid:
            allocations.add(spec, by_uuid[pin.uuid])
    return allocations


def _on_shared_cores(spec: ModelSpec, unit: Unit | None, taken: _Taken) -> Pin | None:
    uuid = unit.uuid if unit else ""
    sharers = (pin for other, pin in taken if other.placement == spec.placement == _SHARED and pin.uuid == uuid and pin.cores)
    first = next(sharers, None)
    return replace(first, threads=spec.threads or first.threads) if first else None


def _on_free_cores(spec: ModelSpec, unit: Unit | None, machine: Machine, taken: _Taken, *, least: int) -> Pin | None:
    """A place on cores that no slot has: as many as the slot asks for, or fewer. A slot that is not pinned uses all cores."""
    if not all(pin.cores for _, pin in taken):
        return None
    used = frozenset(core for _, pin in taken for core in pin.cores)
    node = unit.node if unit else None
    wanted = range(spec.threads or _usual_threads(spec, taken), least - 1, -1)
    tries = (assign_cores(machine.topology, [CoreDemand(fewer, node)], used=used)[0] for fewer in wanted)
    assigned = next((assigned for assigned in tries if assigned.cores), None)
    return _pin(spec, unit, assigned, machine) if assigned else None


def _on_former_cores(spec: ModelSpec, unit: Unit | None, taken: _Taken) -> Pin | None:
    """The place of a slot of another version of the model; every such place is used once before one is used twice."""
    uuid = unit.uuid if unit else ""
    followed = Counter(pin.cores for other, pin in taken if (other.name, other.version) == (spec.name, spec.version))
    former = [pin for other, pin in taken if other.name == spec.name and other.version != spec.version and pin.uuid == uuid]
    fitting = [pin for pin in former if pin.cores and spec.threads in (None, pin.threads)]
    least_used = min(fitting, key=lambda pin: followed[pin.cores], default=None)
    return replace(least_used, placement=spec.placement) if least_used else None


def _not_pinned(spec: ModelSpec, unit: Unit | None, machine: Machine, taken: _Taken) -> Pin:
    """A place without pinning. Beside pinned slots it gets one thread, because each further one would run on another's core."""
    usual = 1 if all(pin.cores for _, pin in taken) else _usual_threads(spec, taken)
    return _pin(spec, unit, CoreAssignment((), spec.threads or usual), machine)


def _usual_threads(spec: ModelSpec, taken: _Taken) -> int:
    return next((pin.threads for other, pin in taken if other.name == spec.name), 1)


def _demand(spec: ModelSpec, unit: Unit | None) -> CoreDemand:
    group = (unit.uuid if unit else _CPU_GROUP) if spec.placement == _SHARED else ""
    return CoreDemand(spec.threads, unit.node if unit else None, group)


def _pin(spec: ModelSpec, unit: Unit | None, assigned: CoreAssignment, machine: Machine) -> Pin:
    nodes = {node for node, cores in machine.topology.nodes.items() if set(cores) & set(assigned.cores)}
    return Pin(
        assigned.cores,
        assigned.threads,
        device=name_of(machine.gpus, unit) if unit else "cpu",
        uuid=unit.uuid if unit else "",
        device_name=unit.name if unit else "",
        node=nodes.pop() if len(nodes) == 1 else None,
        placement=spec.placement,
    )


def _advice(machine: Machine, specs: Sequence[ModelSpec], rows: Sequence[Sequence[Pin]]) -> Iterable[str]:
    pins = [pin for row in rows for pin in row]
    topology = machine.topology
    if pins and not any(pin.cores for pin in pins):
        yield f"{_thread_count(specs, rows)} on {topology.budget} cores: no slot is pinned; use fewer slots or threads."
    idle = topology.budget - len({core for pin in pins for core in pin.cores})
    smallest = min((pin.threads for pin in pins if pin.cores), default=0)
    if smallest and idle >= smallest and len(topology.nodes) > 1 and not any(pin.uuid for pin in pins):
        yield f"{idle} cores have no slot, for one lies within a NUMA node; raise `slots` to use them."
    yield from _advise_mps(machine, pins)
    yield from _advise_memory(machine, specs, rows)


def _thread_count(specs: Sequence[ModelSpec], rows: Sequence[Sequence[Pin]]) -> str:
    """The number of threads, and the number asked for if that is more: no slot gets more threads than there are cores."""
    given = sum(pin.threads for row in rows for pin in row)
    asked = sum(spec.threads or pin.threads for spec, row in zip(specs, rows, strict=True) for pin in row)
    return f"{given} threads" if asked == given else f"{asked} threads asked for, {given} given"


def _advise_mps(machine: Machine, pins: Sequence[Pin]) -> Iterable[str]:
    for uuid, count in Counter(pin.uuid for pin in pins if pin.uuid).items():
        if count > 1 and not machine.mps:
            name = next(pin.device for pin in pins if pin.uuid == uuid)
            yield f"{count} slots take turns on {name}: start nvidia-cuda-mps-control -d so that they run at the same time."


def _advise_memory(machine: Machine, specs: Sequence[ModelSpec], rows: Sequence[Sequence[Pin]]) -> Iterable[str]:
    """Advice and no error: at a restart the memory of the worker that is replaced may still be taken."""
    wanted: Counter[str] = Counter()
    for spec, row in zip(specs, rows, strict=True):
        for pin in row:
            wanted[pin.uuid] += spec.device_memory_bytes or 0
    for unit in machine.gpus.units:
        if wanted[unit.uuid] > unit.free_bytes:
            free, needed = (size / _GIB for size in (unit.free_bytes, wanted[unit.uuid]))
            name = name_of(machine.gpus, unit)
            yield f"{name} has {free:.1f} GiB free, its models want {needed:.1f}: another process uses the GPU."


COLUMNS = ("MODEL", "VERSION", "SLOT", "DEVICE", "NAME", "NODE", "CORES", "THREADS", "PLACEMENT")


def table(pinned: PinningPlan) -> list[tuple[str, ...]]:
    """One line per slot, under `COLUMNS`."""
    return [
        (spec.name, spec.version, str(number), *_cells(pin))
        for spec, row in zip(pinned.specs, pinned.rows, strict=True)
        for number, pin in enumerate(row)
    ]


def _cells(pin: Pin) -> tuple[str, ...]:
    node = "-" if pin.node is None else str(pin.node)
    cores = ranges(pin.cores) if pin.cores else "any"
    return (pin.device, pin.device_name or "-", node, cores, str(pin.threads), pin.placement)

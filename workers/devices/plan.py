"""The pinning plan: device, cores and threads of every slot, and what would serve better. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from penstock.model_spec import ModelSpec
from penstock.workers.devices.assign import Ledger, assign, name_of
from penstock.workers.devices.cores import Demand, Seat, seats
from penstock.workers.devices.gpus import Unit
from penstock.workers.devices.machine import Machine
from penstock.workers.devices.pins import Pin
from penstock.workers.devices.topology import ranges

_SHARED = "shared"
_CPU_GROUP = "cpu"
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Plan:
    """Per spec a row of pins, one per slot; `advice` are whole sentences."""

    specs: tuple[ModelSpec, ...]
    rows: tuple[tuple[Pin, ...], ...]
    advice: tuple[str, ...] = ()

    def places(self) -> list[tuple[ModelSpec, Pin]]:
        return [(spec, pin) for spec, row in zip(self.specs, self.rows, strict=True) for pin in row]


def plan(specs: Sequence[ModelSpec], machine: Machine) -> Plan:
    """Raises `ConfigError` for a device that is not there or taken: never a silent fall-back to the CPU."""
    units = assign(specs, machine.gpus)
    wanted = [(spec, unit) for spec, row in zip(specs, units, strict=True) for unit in row]
    given = seats(machine.topology, [_demand(spec, unit) for spec, unit in wanted])
    pins = iter([_pin(spec, unit, seat, machine) for (spec, unit), seat in zip(wanted, given, strict=True)])
    rows = tuple(tuple(next(pins) for _ in row) for row in units)
    return Plan(tuple(specs), rows, tuple(_advice(machine, specs, rows)))


def unpinned(found: Plan) -> Plan:
    """The same devices and threads, and the system chooses the cores."""
    rows = tuple(tuple(replace(pin, cores=(), node=None) for pin in row) for row in found.rows)
    return replace(found, rows=rows)


def one_more(spec: ModelSpec, machine: Machine, taken: Sequence[tuple[ModelSpec, Pin]]) -> Pin:
    """A place for one further slot beside those `taken`: on cores that nobody has, else not pinned.

    Raises `ConfigError` when it wants a GPU and none has room.
    """
    return _next_to(spec, _ledger(machine, taken).further(spec), machine, taken)


def beside(spec: ModelSpec, machine: Machine, taken: Sequence[tuple[ModelSpec, Pin]]) -> list[Pin]:
    """The places of a version that comes later, beside those `taken`. Raises `ConfigError` as `plan` does."""
    [units] = assign([spec], machine.gpus, ledger=_ledger(machine, taken))
    places = list(taken)
    for unit in units:
        places.append((spec, _next_to(spec, unit, machine, places)))
    return [pin for _, pin in places[len(taken) :]]


def _ledger(machine: Machine, taken: Sequence[tuple[ModelSpec, Pin]]) -> Ledger:
    ledger = Ledger(machine.gpus)
    by_uuid = {unit.uuid: unit for unit in machine.gpus.units}
    for spec, pin in taken:
        if pin.uuid in by_uuid:
            ledger.enter(spec, by_uuid[pin.uuid])
    return ledger


def _next_to(spec: ModelSpec, unit: Unit | None, machine: Machine, taken: Sequence[tuple[ModelSpec, Pin]]) -> Pin:
    uuid = unit.uuid if unit else ""
    sharers = [pin for other, pin in taken if other.placement == spec.placement == _SHARED and pin.uuid == uuid]
    if sharers and sharers[0].cores:
        return replace(sharers[0], threads=spec.threads or sharers[0].threads)
    used = frozenset(core for _, pin in taken for core in pin.cores)
    usual = next((pin.threads for other, pin in taken if other.name == spec.name), 1)
    return _pin(spec, unit, _free_seat(machine, unit, spec.threads, usual, used), machine)


def _free_seat(machine: Machine, unit: Unit | None, threads: int | None, usual: int, used: frozenset[int]) -> Seat:
    node = unit.node if unit else None
    tries = (seats(machine.topology, [Demand(fewer, node)], used=used)[0] for fewer in range(threads or usual, 0, -1))
    return next((seat for seat in tries if seat.cores), Seat((), threads or 1))


def _demand(spec: ModelSpec, unit: Unit | None) -> Demand:
    group = (unit.uuid if unit else _CPU_GROUP) if spec.placement == _SHARED else ""
    return Demand(spec.threads, unit.node if unit else None, group)


def _pin(spec: ModelSpec, unit: Unit | None, seat: Seat, machine: Machine) -> Pin:
    nodes = {node for node, cores in machine.topology.nodes.items() if set(cores) & set(seat.cores)}
    return Pin(
        seat.cores,
        seat.threads,
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
        threads = sum(pin.threads for pin in pins)
        yield f"{threads} threads on {topology.budget} cores: no slot is pinned; use fewer workers or threads."
    idle = topology.budget - len({core for pin in pins for core in pin.cores})
    smallest = min((pin.threads for pin in pins if pin.cores), default=0)
    if smallest and idle >= smallest and len(topology.nodes) > 1 and not any(pin.uuid for pin in pins):
        yield f"{idle} cores have no slot, for one lies within a NUMA node; raise `workers` to use them."
    yield from _crowded(machine, pins)
    yield from _short(machine, specs, rows)


def _crowded(machine: Machine, pins: Sequence[Pin]) -> Iterable[str]:
    for uuid, count in Counter(pin.uuid for pin in pins if pin.uuid).items():
        if count > 1 and not machine.mps:
            name = next(pin.device for pin in pins if pin.uuid == uuid)
            yield f"{count} slots take turns on {name}: start nvidia-cuda-mps-control -d so that they run at the same time."


def _short(machine: Machine, specs: Sequence[ModelSpec], rows: Sequence[Sequence[Pin]]) -> Iterable[str]:
    """A restart finds the memory of the worker it replaces still taken, so this is no error."""
    wanted: Counter[str] = Counter()
    for spec, row in zip(specs, rows, strict=True):
        for pin in row:
            wanted[pin.uuid] += spec.device_memory_bytes or 0
    for unit in machine.gpus.units:
        if wanted[unit.uuid] > unit.free_bytes:
            free, needed = (size / _GIB for size in (unit.free_bytes, wanted[unit.uuid]))
            yield f"{name_of(machine.gpus, unit)} has {free:.1f} GiB free, its models want {needed:.1f}: someone else is there."


COLUMNS = ("MODEL", "VERSION", "SLOT", "DEVICE", "NAME", "NODE", "CORES", "THREADS", "PLACEMENT")


def table(found: Plan) -> list[tuple[str, ...]]:
    """One line per slot, under `COLUMNS`."""
    return [
        (spec.name, spec.version, str(number), *_cells(pin))
        for spec, row in zip(found.specs, found.rows, strict=True)
        for number, pin in enumerate(row)
    ]


def _cells(pin: Pin) -> tuple[str, ...]:
    node = "-" if pin.node is None else str(pin.node)
    cores = ranges(pin.cores) if pin.cores else "any"
    return (pin.device, pin.device_name or "-", node, cores, str(pin.threads), pin.placement)

"""CPU and memory of the processes under load, on this machine: found by parent, port or pid, read once a second."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import psutil

from penstock.loadtest.observed.costs import MachineReading, read_machine, stage_of
from penstock.loadtest.result import DeviceUse, ProcessUse
from penstock.workers.devices.gpus import PyNvml
from penstock.workers.telemetry.gpu_meter import GpuMeter, GpuReading

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class Glance:
    """One process at one moment. `cpu_s`: spent since its start."""

    role: str
    pid: int
    at: float
    cpu_s: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Look:
    """Everything at one moment, by the monotonic clock."""

    at: float
    machine: MachineReading
    processes: dict[int, Glance]
    devices: dict[str, GpuReading]


def is_here(host: str) -> bool:
    return host in _LOOPBACK


def listening_on(port: int) -> list[int]:
    """The processes that listen on a port of this machine, as far as this user may see them."""
    with contextlib.suppress(psutil.AccessDenied, OSError):
        found = psutil.net_connections(kind="tcp")
        return sorted(
            {each.pid for each in found if each.status == psutil.CONN_LISTEN and each.laddr.port == port and each.pid}
        )
    return []


class ProcessWatch:
    """Looks at the trees below `roots`, at the generators and at the named devices."""

    def __init__(self, roots: Iterable[int], generators: Iterable[int], devices: Sequence[tuple[str, str]]) -> None:
        self._roots = tuple(roots)
        self._generators = frozenset(generators)
        self._names = dict(devices)
        self._meter = GpuMeter(PyNvml())
        self.looks: list[Look] = []

    def look(self) -> None:
        now = time.monotonic()
        glances = (self._glance(process, now) for process in self._alive())
        readings = {uuid: self._meter.read(uuid) for uuid in self._names}
        self.looks.append(
            Look(
                now,
                read_machine(),
                {glance.pid: glance for glance in glances if glance},
                {uuid: reading for uuid, reading in readings.items() if reading},
            )
        )

    def _alive(self) -> Iterable[psutil.Process]:
        found: dict[int, psutil.Process] = {}
        for root in (*self._roots, *self._generators):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                process = psutil.Process(root)
                found |= {each.pid: each for each in (process, *process.children(recursive=True))}
        return found.values()

    def _glance(self, process: psutil.Process, now: float) -> Glance | None:
        # It may end between the listing and this read.
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied), process.oneshot():
            role = "generator" if process.pid in self._generators else role_of(process.cmdline(), process.name())
            times = process.cpu_times()
            return Glance(role, process.pid, now, times.user + times.system, process.memory_info().rss)
        return None

    def device_use(self) -> list[DeviceUse]:
        return [
            _device_use(name or uuid, _readings(self.looks, uuid))
            for uuid, name in self._names.items()
            if _readings(self.looks, uuid)
        ]


def role_of(command: Sequence[str], name: str) -> str:
    """gateway, worker, child, redis, parent; of other servers the program's name."""
    if any("penstock" in word for word in command) or stage_of(command) == "redis":
        return stage_of(command)
    return name


def process_use(looks: Sequence[Look]) -> list[ProcessUse]:
    """Per process over all looks, the busiest first. Pure."""
    seen: defaultdict[int, list[Glance]] = defaultdict(list)
    for look in looks:
        for glance in look.processes.values():
            seen[glance.pid].append(glance)
    found = [_use(glances) for glances in seen.values() if len(glances) > 1]
    return sorted(found, key=lambda use: -use.cpu_mean)


def _use(glances: Sequence[Glance]) -> ProcessUse:
    first, last = glances[0], glances[-1]
    memory = [glance.memory_bytes for glance in glances]
    return ProcessUse(
        role=first.role,
        pid=first.pid,
        cpu_mean=(last.cpu_s - first.cpu_s) / (last.at - first.at),
        cpu_max=max(_rates(glances)),
        memory_mean_bytes=sum(memory) / len(memory),
        memory_max_bytes=float(max(memory)),
    )


def _rates(glances: Sequence[Glance]) -> list[float]:
    pairs = itertools.pairwise(glances)
    return [(later.cpu_s - earlier.cpu_s) / (later.at - earlier.at) for earlier, later in pairs]


def cpu_series(looks: Sequence[Look]) -> dict[str, list[float]]:
    """Cores used by each role between one look and the next. Pure."""
    roles = sorted({glance.role for look in looks for glance in look.processes.values()})
    pairs = list(itertools.pairwise(looks))
    return {role: [round(_cores(earlier, later, role), 4) for earlier, later in pairs] for role in roles}


def _cores(earlier: Look, later: Look, role: str) -> float:
    spent = sum(
        glance.cpu_s - earlier.processes[pid].cpu_s
        for pid, glance in later.processes.items()
        if glance.role == role and pid in earlier.processes
    )
    return spent / (later.at - earlier.at)


def foreign_share(looks: Sequence[Look]) -> float:
    """What share of the machine processes took that are no part of this measurement. Pure."""
    if len(looks) < 2:
        return 0.0
    first, last = looks[0], looks[-1]
    own_s = sum(glance.cpu_s - first.processes[pid].cpu_s for pid, glance in last.processes.items() if pid in first.processes)
    return last.machine.foreign_share(first.machine, own_s)


def _readings(looks: Sequence[Look], uuid: str) -> list[GpuReading]:
    return [look.devices[uuid] for look in looks if uuid in look.devices]


def _device_use(name: str, readings: Sequence[GpuReading]) -> DeviceUse:
    busy = [reading.utilization for reading in readings if reading.utilization is not None]
    memory = [float(reading.used_bytes) for reading in readings]
    return DeviceUse(
        name=name,
        busy_mean=sum(busy) / len(busy) if busy else None,
        busy_max=max(busy) if busy else None,
        memory_mean_bytes=sum(memory) / len(memory),
        memory_max_bytes=max(memory),
        memory_bytes=float(readings[0].total_bytes),
    )

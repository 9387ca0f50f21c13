"""CPU and memory of the processes under load on this machine, which are found by parent, port or process id."""

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

_CHILD = "penstock.workers.child"
_VERBS = {"penstock.runs": "runner", "runner": "runner", "up": "up", "run": "run", "flower": "flower"}
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """One process at one moment. `cpu_s`: CPU seconds since the process began."""

    role: str
    pid: int
    at: float
    cpu_s: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All watched processes and devices at one moment of the monotonic clock."""

    at: float
    machine: MachineReading
    processes: dict[int, ProcessSample]
    devices: dict[str, GpuReading]


def is_here(host: str) -> bool:
    return host in _LOOPBACK


def listening_on(port: int) -> list[int]:
    """The processes that listen on a port of this machine and that this user may see."""
    with contextlib.suppress(psutil.AccessDenied, OSError):
        connections = psutil.net_connections(kind="tcp")
        return sorted(
            {each.pid for each in connections if each.status == psutil.CONN_LISTEN and each.laddr.port == port and each.pid}
        )
    return []


class ProcessWatch:
    """Watches the process trees below `roots`, the generators, and the devices (UUID and name)."""

    def __init__(self, roots: Iterable[int], generators: Iterable[int], devices: Sequence[tuple[str, str]]) -> None:
        self._roots = tuple(roots)
        self._generators = frozenset(generators)
        self._names = dict(devices)
        self._meter = GpuMeter(PyNvml())
        self.snapshots: list[Snapshot] = []

    def take_snapshot(self) -> None:
        now = time.monotonic()
        samples = (self._sample(process, now) for process in self._alive())
        readings = {uuid: self._meter.read(uuid) for uuid in self._names}
        self.snapshots.append(
            Snapshot(
                now,
                read_machine(),
                {sample.pid: sample for sample in samples if sample},
                {uuid: reading for uuid, reading in readings.items() if reading},
            )
        )

    def _alive(self) -> Iterable[psutil.Process]:
        processes: dict[int, psutil.Process] = {}
        for root in (*self._roots, *self._generators):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                process = psutil.Process(root)
                processes |= {each.pid: each for each in (process, *process.children(recursive=True))}
        return processes.values()

    def _sample(self, process: psutil.Process, now: float) -> ProcessSample | None:
        # A process may end between the listing and this read.
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied), process.oneshot():
            role = "generator" if process.pid in self._generators else role_of(process.cmdline(), process.name())
            times = process.cpu_times()
            return ProcessSample(role, process.pid, now, times.user + times.system, process.memory_info().rss)
        return None

    def device_use(self) -> list[DeviceUse]:
        return [
            _device_use(name or uuid, _readings(self.snapshots, uuid))
            for uuid, name in self._names.items()
            if _readings(self.snapshots, uuid)
        ]


def role_of(command: Sequence[str], name: str) -> str:
    """The role of a process of penstock, for a child with its model's name; for other processes the program's name."""
    if stage_of(command) == "redis":
        return "store"
    if not any("penstock" in word for word in command):
        return name
    if _CHILD in command:
        return f"child {command[-1]}"
    # Besides gateway and worker: `-m penstock.runs`, or a verb of the command line, such as `up`.
    duty = stage_of(command)
    return next((_VERBS[word] for word in command if word in _VERBS), "penstock") if duty == "parent" else duty


def process_use(snapshots: Sequence[Snapshot]) -> list[ProcessUse]:
    """One entry per process over all snapshots, the busiest first. Pure."""
    seen: defaultdict[int, list[ProcessSample]] = defaultdict(list)
    for snapshot in snapshots:
        for sample in snapshot.processes.values():
            seen[sample.pid].append(sample)
    uses = [_use(samples) for samples in seen.values() if len(samples) > 1]
    return sorted(uses, key=lambda use: -use.cpu_mean)


def _use(samples: Sequence[ProcessSample]) -> ProcessUse:
    first, last = samples[0], samples[-1]
    memory = [sample.memory_bytes for sample in samples]
    return ProcessUse(
        role=first.role,
        pid=first.pid,
        cpu_mean=(last.cpu_s - first.cpu_s) / (last.at - first.at),
        cpu_max=max(_rates(samples)),
        memory_mean_bytes=sum(memory) / len(memory),
        memory_max_bytes=float(max(memory)),
    )


def _rates(samples: Sequence[ProcessSample]) -> list[float]:
    pairs = itertools.pairwise(samples)
    return [(later.cpu_s - earlier.cpu_s) / (later.at - earlier.at) for earlier, later in pairs]


def cpu_series(snapshots: Sequence[Snapshot]) -> dict[str, list[float]]:
    """The cores that each role used from one snapshot to the next. Pure."""
    roles = sorted({sample.role for snapshot in snapshots for sample in snapshot.processes.values()})
    pairs = list(itertools.pairwise(snapshots))
    return {role: [round(_cores(earlier, later, role), 4) for earlier, later in pairs] for role in roles}


def _cores(earlier: Snapshot, later: Snapshot, role: str) -> float:
    spent = sum(
        sample.cpu_s - earlier.processes[pid].cpu_s
        for pid, sample in later.processes.items()
        if sample.role == role and pid in earlier.processes
    )
    return spent / (later.at - earlier.at)


def foreign_share(snapshots: Sequence[Snapshot]) -> float:
    """The share of the machine's CPU that processes outside this measurement took. Pure."""
    if len(snapshots) < 2:
        return 0.0
    first, last = snapshots[0], snapshots[-1]
    own_s = sum(sample.cpu_s - first.processes[pid].cpu_s for pid, sample in last.processes.items() if pid in first.processes)
    return last.machine.foreign_share(first.machine, own_s)


def _readings(snapshots: Sequence[Snapshot], uuid: str) -> list[GpuReading]:
    return [snapshot.devices[uuid] for snapshot in snapshots if uuid in snapshot.devices]


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

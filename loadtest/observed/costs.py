"""CPU seconds by stage: which process of a running stack spent how much between two moments."""

from __future__ import annotations

import os
import resource
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import psutil

STAGES = ("client", "gateway", "redis", "worker", "child", "parent")
_BY_ARGUMENT = {
    "gateway": "gateway",
    "penstock.gateway": "gateway",
    "worker": "worker",
    "penstock.workers": "worker",
    "penstock.workers.child": "child",
}


def stage_of(command: Sequence[str], *, clients: Collection[str] = ()) -> str:
    """The stage that a command line belongs to: `client` if it runs one of the modules `clients`, `parent` if none is known."""
    if not command:
        return "parent"
    # A server may set its title: program and arguments in one string.
    program = os.path.basename(command[0].partition(" ")[0])
    if "valkey" in program or "redis" in program:
        return "redis"
    stages = {**_BY_ARGUMENT, **dict.fromkeys(clients, "client")}
    return next((stages[argument] for argument in command if argument in stages), "parent")


@dataclass(frozen=True, slots=True)
class CpuReading:
    """CPU seconds spent so far, by process."""

    seconds: dict[tuple[str, int], float]

    def since(self, earlier: CpuReading) -> dict[str, float]:
        """CPU seconds per stage from `earlier` to this reading; a process that came between counts from its start."""
        spent: defaultdict[str, float] = defaultdict(float)
        for (stage, pid), seconds in self.seconds.items():
            spent[stage] += seconds - earlier.seconds.get((stage, pid), 0.0)
        return {stage: spent[stage] for stage in STAGES if stage in spent}


def read_cpu(roots: Iterable[int], *, clients: Collection[str] = ()) -> CpuReading:
    """CPU seconds of the process trees below `roots`. This process, and those that run a module of `clients`, are `client`."""
    own = psutil.Process().cpu_times()
    seconds = {("client", os.getpid()): own.user + own.system}
    for root in roots:
        for process in _tree(root):
            reading = _read(process, clients)
            if reading is not None:
                seconds[reading[0], process.pid] = reading[1]
    return CpuReading(seconds)


@dataclass(frozen=True, slots=True)
class MachineReading:
    """CPU seconds that the whole machine has spent and had, over all cores."""

    busy_s: float
    total_s: float

    def foreign_share(self, earlier: MachineReading, own_s: float) -> float:
        """What share of the machine others took since `earlier`, our own processes having spent `own_s`."""
        had = self.total_s - earlier.total_s
        return max(0.0, self.busy_s - earlier.busy_s - own_s) / had if had > 0 else 0.0


def read_machine() -> MachineReading:
    # By name: which fields there are depends on the system. The guests' time is part of the users'.
    times = {name: seconds for name, seconds in psutil.cpu_times()._asdict().items() if not name.startswith("guest")}
    total = sum(times.values())
    return MachineReading(total - times["idle"] - times.get("iowait", 0.0), total)


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds of the machine and of our own processes at one moment."""

    machine: MachineReading
    own_s: float

    def foreign_share(self, earlier: Usage) -> float:
        return self.machine.foreign_share(earlier.machine, self.own_s - earlier.own_s)


def read_usage(roots: Iterable[int]) -> Usage:
    """Our own are this process, those it has waited for, and the trees below the process ids `roots`."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Usage(read_machine(), sum(read_cpu(roots).seconds.values()) + ended.ru_utime + ended.ru_stime)


def _tree(root: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(root)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _read(process: psutil.Process, clients: Collection[str]) -> tuple[str, float] | None:
    # A process may end between the listing and this read; then what it spent is lost, as its whole time was.
    try:
        times = process.cpu_times()
        return stage_of(process.cmdline(), clients=clients), times.user + times.system
    except psutil.NoSuchProcess:
        return None


def per_request_us(spent: dict[str, float], count: int) -> dict[str, float]:
    """Microseconds of CPU per request and stage, with their `total`."""
    costs = {stage: seconds / max(count, 1) * 1e6 for stage, seconds in spent.items()}
    return {**costs, "total": sum(costs.values())}

"""CPU seconds of a running stack between two moments, by stage (gateway, redis, worker, child and others)."""

from __future__ import annotations

import os
import resource
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import psutil

STAGES = ("client", "gateway", "redis", "worker", "child", "parent")
_BY_ARGUMENT = {
    "gateway": "gateway",
    "penstock.gateway": "gateway",
    "worker": "worker",
    "penstock.workers": "worker",
    "penstock.workers.child": "child",
}
_NO_OTHERS: Mapping[str, str] = MappingProxyType({})


def stage_of(command: Sequence[str], *, others: Mapping[str, str] = _NO_OTHERS) -> str:
    """The stage that a command line belongs to; `parent` if none is known. `others`: stages of modules that are not ours."""
    if not command:
        return "parent"
    # A server may set its process title: program and arguments in one string.
    program = os.path.basename(command[0].partition(" ")[0])
    if "valkey" in program or "redis" in program:
        return "redis"
    stages = {**_BY_ARGUMENT, **others}
    return next((stages[argument] for argument in command if argument in stages), "parent")


@dataclass(frozen=True, slots=True)
class CpuReading:
    """CPU seconds so far, by stage and process id."""

    seconds: dict[tuple[str, int], float]

    def since(self, earlier: CpuReading) -> dict[str, float]:
        """CPU seconds per stage from `earlier` to this reading; a process that is new counts from its start."""
        spent: defaultdict[str, float] = defaultdict(float)
        for (stage, pid), seconds in self.seconds.items():
            spent[stage] += seconds - earlier.seconds.get((stage, pid), 0.0)
        return {stage: spent[stage] for stage in STAGES if stage in spent}


def read_cpu(roots: Iterable[int], *, others: Mapping[str, str] = _NO_OTHERS) -> CpuReading:
    """CPU seconds of the process trees below `roots`, and of this process as `client`. `others`: as of `stage_of`."""
    own = psutil.Process().cpu_times()
    seconds = {("client", os.getpid()): own.user + own.system}
    for root in roots:
        for process in _tree(root):
            reading = _read(process, others)
            if reading is not None:
                seconds[reading[0], process.pid] = reading[1]
    return CpuReading(seconds)


@dataclass(frozen=True, slots=True)
class MachineReading:
    """CPU seconds of the whole machine, over all cores: those in use, and all."""

    busy_s: float
    total_s: float

    def foreign_share(self, earlier: MachineReading, own_s: float) -> float:
        """The share of the machine that other processes took since `earlier`, while our own spent `own_s`."""
        had = self.total_s - earlier.total_s
        return max(0.0, self.busy_s - earlier.busy_s - own_s) / had if had > 0 else 0.0


def read_machine() -> MachineReading:
    # The fields depend on the system. The time of guests is part of the users' time.
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
    """Our own processes are this one, those it has waited for, and the trees below the process ids `roots`."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Usage(read_machine(), sum(read_cpu(roots).seconds.values()) + ended.ru_utime + ended.ru_stime)


def _tree(root: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(root)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _read(process: psutil.Process, others: Mapping[str, str]) -> tuple[str, float] | None:
    # A process may end between the listing and this read; its CPU time is lost then.
    try:
        times = process.cpu_times()
        return stage_of(process.cmdline(), others=others), times.user + times.system
    except psutil.NoSuchProcess:
        return None


def per_request_us(spent: dict[str, float], count: int) -> dict[str, float]:
    """Microseconds of CPU per request and stage, with their `total`."""
    costs = {stage: seconds / max(count, 1) * 1e6 for stage, seconds in spent.items()}
    return {**costs, "total": sum(costs.values())}

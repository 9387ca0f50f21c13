"""The pinning plan: which cores and how many threads each slot gets. CPU only; another device is a clear refusal."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import ConfigError
from penstock.model_spec import ModelSpec

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "RAYON_NUM_THREADS",
    "TORCH_NUM_THREADS",
)
_SIBLINGS = Path("/sys/devices/system/cpu")
_QUOTAS = (Path("/sys/fs/cgroup/cpu.max"), Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"))


@dataclass(frozen=True, slots=True)
class Pin:
    """One slot's place. `cores` empty: more slots than cores, the scheduler decides."""

    cores: tuple[int, ...]
    threads: int

    def environment(self) -> dict[str, str]:
        """For the child, before it imports anything: these libraries read their number of threads once."""
        return dict.fromkeys(_THREAD_VARIABLES, str(self.threads))


def plan(specs: Sequence[ModelSpec], cores: Sequence[int]) -> list[list[Pin]]:
    """Per spec one pin per slot: equal shares of the cores, side by side, unless a spec says how many threads it wants."""
    slots = sum(spec.workers for spec in specs)
    share = max(1, len(cores) // max(1, slots))
    taken = 0
    pins: list[list[Pin]] = []
    for spec in specs:
        threads = min(spec.threads or share, max(1, len(cores)))
        places = [_place(cores, taken + slot * threads, threads) for slot in range(spec.workers)]
        taken += spec.workers * threads
        pins.append([Pin(place, threads) for place in places])
    crowded = taken > len(cores)
    return [[Pin((), pin.threads) for pin in row] for row in pins] if crowded else pins


def _place(cores: Sequence[int], start: int, threads: int) -> tuple[int, ...]:
    return tuple(cores[start : start + threads])


def check_devices(specs: Iterable[ModelSpec]) -> None:
    """Raises `ConfigError` for a device that this version cannot serve: never a silent fall-back to the CPU."""
    faults = [f"model {spec.name}: device {spec.device!r}" for spec in specs if spec.device != "cpu"]
    if faults:
        raise ConfigError("Only the device 'cpu' can be served here; set device = \"cpu\" or leave it out.", faults=faults)


def usable_cores() -> list[int]:
    """One logical core per physical core that this process may use, no more than the cgroup's quota."""
    allowed = sorted(os.sched_getaffinity(0))
    physical = _physical(allowed)
    quota = _quota()
    return physical if quota is None else physical[: max(1, int(quota))]


def _physical(allowed: Sequence[int]) -> list[int]:
    seen: set[str] = set()
    chosen = []
    for core in allowed:
        siblings = _siblings(core)
        if siblings not in seen:
            seen.add(siblings)
            chosen.append(core)
    return chosen


def _siblings(core: int) -> str:
    try:
        return (_SIBLINGS / f"cpu{core}" / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(core)


def _quota() -> float | None:
    """Cores' worth of CPU time that the cgroup grants, or None without a limit."""
    unified, legacy = _QUOTAS
    try:
        if unified.exists():
            limit, period = unified.read_text().split()
        else:
            limit, period = legacy.read_text().strip(), (legacy.parent / "cpu.cfs_period_us").read_text().strip()
    except (OSError, ValueError):
        return None
    return None if limit in ("max", "-1") else int(limit) / int(period)

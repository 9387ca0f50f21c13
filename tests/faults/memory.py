"""The memory of the processes under test, by role: a fault may end a process, and the next one must not be larger."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import psutil

from tests.faults.processes import Group

# What a role may grow by, from the moment when the product is ready for the first time. First requests fill caches.
USUAL_GROWTH_MIB = 64.0
_MIB = 1 << 20

Roles = Callable[[], Iterator[tuple[str, psutil.Process]]]


def members(role: str, group: Group) -> Iterator[tuple[str, psutil.Process]]:
    """Yield the processes of one group with their roles; all children of workers have one role, since they run one model."""
    if not group.running:
        return
    for number, process in enumerate(group.members()):
        yield (f"{role}'s child" if number else role), process


class MemoryWatch:
    """Looks at the resident memory of every process now and then, and keeps the most that each role ever had."""

    def __init__(self, processes: Roles, *, allowed_mib: float = USUAL_GROWTH_MIB) -> None:
        self._processes = processes
        self._allowed_mib = allowed_mib
        self._before: dict[str, int] = {}
        self._most: dict[str, int] = {}

    def look(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            for role, process in self._processes():
                resident = int(process.memory_info().rss)
                self._most[role] = max(resident, self._most.get(role, 0))

    def settle(self) -> None:
        """Take what the roles have had so far as the base from which growth counts; a role keeps its first base."""
        self._before = {**self._most, **self._before}

    def grown_mib(self) -> float:
        """Return by how much the role that grew most has grown since its base."""
        return round(max(self._growth().values(), default=0.0), 1)

    def complaints(self) -> list[str]:
        return [
            f"{role} grew by {grown:.0f} MiB, {self._allowed_mib:g} MiB allowed"
            for role, grown in self._growth().items()
            if grown > self._allowed_mib
        ]

    def _growth(self) -> dict[str, float]:
        return {role: (self._most[role] - base) / _MIB for role, base in self._before.items()}

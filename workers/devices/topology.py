"""The cores that this process may use: which logical ones are one physical core, and which share memory.

It reads below a root folder, which is `/` or a recording of another machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.workers.devices.cgroups import cpu_quota, memory_limit_bytes

_CPUS = "sys/devices/system/cpu"
_NODES = "sys/devices/system/node"


@dataclass(frozen=True, slots=True)
class Core:
    """A physical core. `number` is the logical core that stands for it; `siblings` are its logical cores that may be used.

    `node` is the NUMA node, or the socket if the kernel reports no nodes.
    """

    number: int
    siblings: tuple[int, ...] = ()
    node: int = 0
    socket: int = 0


@dataclass(frozen=True, slots=True)
class Topology:
    """`cores` in order of node and number; `quota` is CPU time in cores. None: no limit, as for `memory_limit_bytes`."""

    cores: tuple[Core, ...]
    quota: float | None = None
    memory_limit_bytes: int | None = None

    @property
    def budget(self) -> int:
        """How many cores may be busy at once. The quota is rounded down: a thread with half a core would hold up the others."""
        return len(self.cores) if self.quota is None else max(1, min(len(self.cores), int(self.quota)))

    @property
    def nodes(self) -> dict[int, tuple[int, ...]]:
        """The cores' numbers by NUMA node."""
        by_node: dict[int, tuple[int, ...]] = {}
        for core in self.cores:
            by_node[core.node] = (*by_node.get(core.node, ()), core.number)
        return by_node


def read_topology(root: Path = Path("/")) -> Topology:
    """Without sysfs or /proc every logical core counts as a physical one on socket 0."""
    return Topology(tuple(_cores(root, _allowed(root))), cpu_quota(root), memory_limit_bytes(root))


def _cores(root: Path, allowed: Sequence[int]) -> list[Core]:
    nodes, usable = _nodes(root), set(allowed)
    seen: set[int] = set()
    cores = []
    for number in allowed:
        if number in seen:
            continue
        folder = root / _CPUS / f"cpu{number}" / "topology"
        siblings = tuple(sibling for sibling in _siblings(folder, number) if sibling in usable)
        seen.update(siblings)
        cores.append(Core(number, siblings, nodes.get(number, 0), _socket(folder)))
    return sorted(cores if nodes else _by_socket(cores), key=lambda core: (core.node, core.number))


def _by_socket(cores: Sequence[Core]) -> Sequence[Core]:
    """The cores with their sockets as nodes. Sockets of one core each, as many virtual machines have them, are ignored.

    For the same reason a node that the kernel reports is not divided by sockets.
    """
    if len({core.socket for core in cores}) == len(cores):
        return cores
    return [replace(core, node=core.socket) for core in cores]


def _siblings(folder: Path, number: int) -> list[int]:
    # The first name is the newer one; both mean the threads of one core.
    siblings = numbers(_text(folder / "core_cpus_list")) or numbers(_text(folder / "thread_siblings_list"))
    return siblings if number in siblings else [number]


def _socket(folder: Path) -> int:
    text = _text(folder / "physical_package_id")
    # A virtual machine may say -1.
    return int(text) if text.isdigit() else 0


def _nodes(root: Path) -> dict[int, int]:
    """The node of each logical core."""
    folders = sorted((root / _NODES).glob("node[0-9]*"))
    return {core: int(folder.name.removeprefix("node")) for folder in folders for core in numbers(_text(folder / "cpulist"))}


def _allowed(root: Path) -> list[int]:
    for line in _text(root / "proc/self/status").splitlines():
        name, _, value = line.partition(":")
        if name == "Cpus_allowed_list":
            return numbers(value)
    return list(range(os.cpu_count() or 1))


def numbers(text: str) -> list[int]:
    """The members of a set as the kernel writes it: `0-3,8`."""
    members: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        members += range(int(first), int(last or first) + 1)
    return members


def ranges(members: Iterable[int]) -> str:
    """The members in ascending order, written as the kernel writes them; `-` for an empty set."""
    runs: list[list[int]] = []
    for member in sorted(members):
        if runs and member == runs[-1][1] + 1:
            runs[-1][1] = member
        else:
            runs.append([member, member])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs) or "-"


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:
        return ""

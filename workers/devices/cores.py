"""Assigns cores to slots: equal shares, each within one NUMA node; slots of a group share one set of cores. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.workers.devices.topology import Topology


@dataclass(frozen=True, slots=True)
class CoreDemand:
    """What one slot asks for. `threads` None: an equal share. `node`: the NUMA node to be near, that of its GPU.

    `group`: slots of one group get the same cores; empty: the slot gets cores of its own.
    """

    threads: int | None = None
    node: int | None = None
    group: str = ""


@dataclass(frozen=True, slots=True)
class CoreAssignment:
    """What one slot gets. `cores` empty: it is not pinned."""

    cores: tuple[int, ...]
    threads: int


@dataclass(frozen=True, slots=True)
class _Block:
    """A set of cores of this size, for the demands at these places."""

    size: int
    node: int | None
    places: tuple[int, ...]


_Placed = dict[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _Attempt:
    """`share`: threads of a slot that asks for no number. `most`: most cores of a group. `loose`: nodes may be left."""

    share: int
    most: int
    loose: bool = False


def assign_cores(
    topology: Topology, demands: Sequence[CoreDemand], *, used: frozenset[int] = frozenset()
) -> list[CoreAssignment]:
    """One per demand, in order. `used` cores belong to other slots. If there are too few cores, no slot is pinned."""
    budget = topology.budget - len(used)
    free = {node: tuple(core for core in cores if core not in used) for node, cores in topology.nodes.items()}
    for attempt in _attempts(topology, demands):
        blocks = _blocks(demands, attempt)
        placed = _placed(free, blocks, attempt) if sum(block.size for block in blocks) <= budget else None
        if placed is not None:
            return [CoreAssignment(placed[place], demand.threads or attempt.share) for place, demand in enumerate(demands)]
    fair = max(1, topology.budget // max(1, len(demands)))
    return [CoreAssignment((), min(demand.threads or fair, len(topology.cores))) for demand in demands]


def _attempts(topology: Topology, demands: Sequence[CoreDemand]) -> Iterator[_Attempt]:
    """The attempts in order: the largest share first, within nodes before across nodes; groups get fewer cores only at last."""
    all_cores, unbounded = len(topology.cores), len(topology.cores) * len(demands)
    largest = max((len(cores) for cores in topology.nodes.values()), default=1)
    for loose in (False, True):
        yield from (_Attempt(share, unbounded, loose) for share in range(largest, 0, -1))
    if any(demand.group for demand in demands):
        yield from (_Attempt(1, most, loose=True) for most in range(all_cores - 1, 0, -1))


def _blocks(demands: Sequence[CoreDemand], attempt: _Attempt) -> list[_Block]:
    groups: dict[str, list[int]] = {}
    for place, demand in enumerate(demands):
        groups.setdefault(demand.group or f"alone {place}", []).append(place)
    return [_block(demands, places, attempt) for places in groups.values()]


def _block(demands: Sequence[CoreDemand], places: list[int], attempt: _Attempt) -> _Block:
    wanted = [demands[place].threads or attempt.share for place in places]
    size = sum(wanted) if len(places) == 1 else max(*wanted, min(attempt.most, sum(wanted)))
    return _Block(size, demands[places[0]].node, tuple(places))


def _placed(free: Mapping[int, tuple[int, ...]], blocks: Sequence[_Block], attempt: _Attempt) -> _Placed | None:
    """The cores for each place, or None if the blocks do not fit."""
    left = dict(free)
    placed: _Placed = {}
    # Blocks that want a certain node go first, because the other blocks fit anywhere.
    for block in sorted(blocks, key=lambda block: block.node not in left):
        cores = _within(left, block, attempt)
        if not cores and (attempt.loose or block.size > max(map(len, free.values()), default=0)):
            cores = _across(left, block.size)
        if not cores:
            return None
        placed |= dict.fromkeys(block.places, cores)
    return placed


def _within(left: dict[int, tuple[int, ...]], block: _Block, attempt: _Attempt) -> tuple[int, ...]:
    """Take cores of one node, the block's own if it has one; none if no such node has enough."""
    near = [node for node in left if node == block.node]
    far = [node for node in left if node != block.node] if attempt.loose or not near else []
    for node in (*near, *far):
        if len(left[node]) >= block.size:
            cores, left[node] = left[node][: block.size], left[node][block.size :]
            return cores
    return ()


def _across(left: dict[int, tuple[int, ...]], size: int) -> tuple[int, ...]:
    """Take cores of several nodes; none if there are too few."""
    together = [core for cores in left.values() for core in cores][:size]
    if len(together) < size:
        return ()
    for node, cores in left.items():
        left[node] = tuple(core for core in cores if core not in together)
    return tuple(together)

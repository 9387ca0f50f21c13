"""The order of turns, and the figures of several turns. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

from benchmarks.peers.catalogue import ComparedServer
from benchmarks.peers.turn import Turn
from benchmarks.peers.workloads import Workload

# Other programs with more of the machine than this shift a figure.
FOREIGN_SHARE = 0.10

Key = tuple[str, str]
Step = tuple[Workload, ComparedServer, int]


def steps(
    workloads: Sequence[Workload], peers: Sequence[ComparedServer], rounds: int, quickest: Callable[[Key], int]
) -> Iterator[Step]:
    """Every server once per round and workload, in rotation, so that a drift of the machine slows all equally. The first round
    tries every batch size; later rounds call `quickest` for the size, and 0 skips the turn.
    """
    for number in range(rounds):
        for workload, peer in _pairs(workloads, peers):
            batches = sizes(peer, workload) if number == 0 else (quickest((peer.name, workload.name)),)
            yield from ((workload, peer, batch) for batch in batches if batch)


def _pairs(workloads: Sequence[Workload], peers: Sequence[ComparedServer]) -> list[tuple[Workload, ComparedServer]]:
    return [(workload, peer) for workload in workloads for peer in peers if peer.takes_part(workload.name)]


def most_turns(workloads: Sequence[Workload], peers: Sequence[ComparedServer], rounds: int) -> int:
    """How many turns `steps` has if none fails."""
    pairs = _pairs(workloads, peers)
    return sum(len(sizes(peer, workload)) for workload, peer in pairs) + (rounds - 1) * len(pairs)


def sizes(peer: ComparedServer, workload: Workload) -> tuple[int, ...]:
    """The batch sizes to try. Penstock is given the largest alone, because it finds the cheapest below it."""
    if peer.is_own:
        return (max(workload.batches),)
    return workload.batches if peer.batches else (1,)


def quickest_batch(turns: Sequence[Turn]) -> int:
    """The batch size with the highest median rate; 0: there was no turn."""
    sizes = {turn.batch for turn in turns}
    return max(sizes, key=lambda size: median(turn.rps for turn in turns if turn.batch == size), default=0)


def figures(turns: Sequence[Turn]) -> dict[str, Any]:
    """The figures of one server and workload: medians over the turns of its quickest batch size, and the sum of errors."""
    batch = quickest_batch(turns)
    kept = [turn for turn in turns if turn.batch == batch]
    opened = [turn.open_p99_ms for turn in kept if turn.open_p99_ms is not None]
    return {
        "batch": batch,
        "rps": round(median(turn.rps for turn in kept), 1),
        "p50_ms": round(median(turn.p50_ms for turn in kept), 2),
        "p99_ms": round(median(turn.p99_ms for turn in kept), 2),
        "lone_p50_ms": round(median(turn.lone_p50_ms for turn in kept), 2),
        **({"open_p99_ms": round(median(opened), 2)} if opened else {}),
        "cpu_us": round(median(turn.cpu_us for turn in kept), 1),
        "memory_mib": round(median(turn.memory_mib for turn in kept), 1),
        "errors": _added(kept),
        "rounds_rps": [round(turn.rps, 1) for turn in kept],
        "tried_rps": {str(turn.batch): round(turn.rps, 1) for turn in turns if turn.batch != batch},
        "foreign_cpu_share": round(max(turn.foreign_share for turn in kept), 3),
    }


def _added(turns: Sequence[Turn]) -> dict[str, int]:
    kinds = sorted({kind for turn in turns for kind in turn.errors})
    return {kind: sum(turn.errors.get(kind, 0) for turn in turns) for kind in kinds}


def doubts(name: str, turns: Sequence[Turn]) -> list[str]:
    """Why a server should be measured again; empty: no reason."""
    found = [f"{name}: {limit}" for turn in turns for limit in turn.limits]
    foreign = max((turn.foreign_share for turn in turns), default=0.0)
    if foreign > FOREIGN_SHARE:
        found.append(f"{name}: other processes took {foreign:.0%} of the machine meanwhile")
    return found

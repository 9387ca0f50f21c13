"""A whole comparison: all turns of all servers, and the result file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.catalogue import ComparedServer
from benchmarks.peers.environments import absent_reason, version_of
from benchmarks.peers.rotation import Key, doubts, figures, quickest_batch, steps
from benchmarks.peers.turn import CONCURRENCY, LoadLengths, Turn, take_turn
from benchmarks.peers.workloads import Workload
from penstock.errors import PenstockError
from penstock.loadtest.observed.machine import describe_machine


@dataclass(slots=True)
class Comparison:
    """`folder` holds the environments. `failed`: servers that could not be measured on a workload, with the reason."""

    folder: Path
    peers: Sequence[ComparedServer]
    workloads: Sequence[Workload]
    lengths: LoadLengths
    say: Callable[[str], None]
    turns: dict[Key, list[Turn]] = field(default_factory=lambda: defaultdict(list))
    failed: dict[Key, str] = field(default_factory=dict)

    def run(self, rounds: int) -> None:
        """Takes all turns. If a turn fails, its reason is recorded and the next turn follows."""
        present = [peer for peer in self.peers if not absent_reason(self.folder, peer)]
        for workload, peer, batch in steps(self.workloads, present, rounds, self._quickest):
            self._turn(workload, peer, batch)

    def _quickest(self, key: Key) -> int:
        return quickest_batch(self.turns[key])

    def _turn(self, workload: Workload, peer: ComparedServer, batch: int) -> None:
        key = (peer.name, workload.name)
        try:
            turn = take_turn(self.folder, peer, workload, batch=batch, lengths=self.lengths)
        except (PenstockError, OSError) as error:
            self.failed[key] = f"batch {batch}: {error}"
            self.say(f"{workload.name}, {peer.title}, batch {batch}: not measured: {error}")
            return
        self.turns[key].append(turn)
        rates = f"{turn.rps:,.0f}/s, p50 {turn.p50_ms:.1f}, p99 {turn.p99_ms:.1f}, lone {turn.lone_p50_ms:.2f} ms"
        self.say(f"{workload.name}, {peer.title}, batch {batch}: {rates}{f', errors {turn.errors}' if turn.errors else ''}")

    def result(self, rounds: int) -> dict[str, Any]:
        """The content of peers.json."""
        absent = {peer.name: reason for peer in self.peers if (reason := absent_reason(self.folder, peer))}
        return {
            "machine": describe_machine(),
            "method": {"rounds": rounds, "concurrency": CONCURRENCY, **asdict(self.lengths)},
            "peers": {peer.name: self._line(peer) for peer in self.peers if peer.name not in absent},
            "absent": absent,
            "failed": [{"peer": key[0], "workload": key[1], "reason": why} for key, why in self.failed.items()],
            "doubts": [doubt for key, turns in self.turns.items() for doubt in doubts(f"{key[0]}, {key[1]}", turns)],
        }

    def _line(self, peer: ComparedServer) -> dict[str, Any]:
        measured = {one.name: turns for one in self.workloads if (turns := self.turns[peer.name, one.name])}
        return {
            "title": peer.title,
            "version": version_of(self.folder, peer),
            "durable": peer.durable,
            "settings": peer.settings,
            "workloads": {name: figures(turns) for name, turns in measured.items()},
        }

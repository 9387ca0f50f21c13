"""A whole comparison: all turns of all servers, and the result file."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.catalogue import ComparedServer
from benchmarks.peers.environments import absent_reason, version_of
from benchmarks.peers.key_figures import key_figures
from benchmarks.peers.rotation import Key, doubts, figures, most_turns, quickest_batch, steps
from benchmarks.peers.turn import CONCURRENCY, LoadLengths, Turn, take_turn
from benchmarks.peers.workloads import Workload
from penstock.errors import PenstockError
from penstock.loadtest.observed.machine import describe_machine


@dataclass(slots=True)
class Progress:
    """How far the turns are, and how long all of them will take if the others take as long as those that are over."""

    turns: int
    began_at: float = field(default_factory=time.monotonic)

    def words(self, done: int) -> str:
        elapsed_s = time.monotonic() - self.began_at
        return f"[{done}/{self.turns}, {_minutes(elapsed_s)} of about {_minutes(elapsed_s / done * self.turns)}]"


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


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
        progress = Progress(most_turns(self.workloads, present, rounds))
        for done, (workload, peer, batch) in enumerate(steps(self.workloads, present, rounds, self._quickest)):
            told = self._turn(workload, peer, batch)
            self.say(f"{progress.words(done + 1)} {workload.name}, {peer.title}, batch {batch}: {told}")

    def _quickest(self, key: Key) -> int:
        return quickest_batch(self.turns[key])

    def _turn(self, workload: Workload, peer: ComparedServer, batch: int) -> str:
        """The turn in words."""
        key = (peer.name, workload.name)
        try:
            turn = self._taken(workload, peer, batch)
        except (PenstockError, OSError) as error:
            self.failed[key] = f"batch {batch}: {error}"
            return f"not measured: {error}"
        self.turns[key].append(turn)
        rates = f"{turn.rps:,.0f}/s, p50 {turn.p50_ms:.1f}, p99 {turn.p99_ms:.1f}, lone {turn.lone_p50_ms:.2f} ms"
        errors = f", errors {turn.errors}" if turn.errors else ""
        return f"{rates}, CPU {turn.cpu_us:,.0f} us, {turn.memory_mib:,.0f} MiB{errors}"

    def _taken(self, workload: Workload, peer: ComparedServer, batch: int) -> Turn:
        try:
            return take_turn(self.folder, peer, workload, batch=batch, lengths=self.lengths)
        except (PenstockError, OSError) as error:
            # Another program may have taken a port that was free a moment ago.
            self.say(f"{workload.name}, {peer.title}, batch {batch}: once more, because of: {error}")
            return take_turn(self.folder, peer, workload, batch=batch, lengths=self.lengths)

    def result(self, rounds: int) -> dict[str, Any]:
        """The content of peers.json."""
        lines = {peer.name: self._line(peer) for peer in self.peers if not absent_reason(self.folder, peer)}
        absent = {peer.name: reason for peer in self.peers if (reason := absent_reason(self.folder, peer))}
        return {
            **key_figures({"peers": lines}),
            "machine": describe_machine(),
            "method": {"rounds": rounds, "concurrency": CONCURRENCY, **asdict(self.lengths)},
            "peers": lines,
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
            "source": peer.source,
            "workloads": {name: figures(turns) for name, turns in measured.items()},
        }

"""What really ran, read from the log that the handlers write."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Execution:
    """One line of the log. In a `call` line, `nonce` is the batch size."""

    event: str
    nonce: str
    supervisor: int
    pid: int
    at: float


class Executions:
    """Each read goes on from where the last one stopped, so that a storm can read a hundred times a second."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self.all: list[Execution] = []

    def news(self) -> list[Execution]:
        """Return the lines written since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as log:
            log.seek(self._read)
            whole, _, _ = log.read().rpartition(b"\n")
        self._read += len(whole) + 1 if whole else 0
        fresh = [_execution(line.decode()) for line in whole.splitlines()]
        self.all += fresh
        return fresh

    def of(self, event: str) -> list[Execution]:
        self.news()
        return [line for line in self.all if line.event == event]

    def runs(self) -> Counter[str]:
        """Return how often each nonce began to run."""
        return Counter(line.nonce for line in self.of("begin"))

    def extra(self, nonces: set[str]) -> int:
        """Return the number of executions beyond one per job, for the given jobs."""
        return sum(count - 1 for nonce, count in self.runs().items() if nonce in nonces and count > 1)

    def running(self, at: float) -> set[str]:
        """Return the nonces that had begun and not ended at Unix time `at`."""
        self.news()
        begun: set[str] = set()
        for line in self.all:
            if line.at <= at and line.event in ("begin", "end"):
                (begun.add if line.event == "begin" else begun.discard)(line.nonce)
        return begun


def _execution(line: str) -> Execution:
    event, nonce, supervisor, pid, at = line.split()
    return Execution(event, nonce, int(supervisor), int(pid), float(at))

"""What one reader hears of one job: chunks in order, each once, `restart` where they begin anew, an end that fits. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Heard:
    """A chunk is the name of the run that told it, and its number there; the output names the run, and how many there were.

    `wanted`: how many chunks a whole stream has. `run`, `chunks`: those heard since the last restart. `status` is empty until
    the end. `since_cut`: events since the reader connected. `faults`: what no reader should meet.
    """

    wanted: int
    run: str = ""
    chunks: int = 0
    restarts: int = 0
    last_id: str = ""
    status: str = ""
    since_cut: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def is_in_midstream(self) -> bool:
        return self.since_cut > 0 and 0 < self.chunks < self.wanted and not self.status

    def take(self, name: str, event_id: str, data: Any) -> None:
        if self.status:
            self.faults.append(f"{name} after the end")
        self.last_id = event_id
        self.since_cut += 1
        match name:
            case "chunk":
                self._on_chunk(*data)
            case "restart":
                self.run, self.chunks, self.restarts = "", 0, self.restarts + 1
            case "end":
                self.status = data["status"]
            case "status" | "progress":
                pass
            case _:
                self.faults.append(f"an event {name}")

    def _on_chunk(self, run: str, number: int) -> None:
        if self.run not in ("", run):
            self.faults.append(f"chunk {number} of run {run} behind {self.chunks} of run {self.run}, without a restart")
        elif number != self.chunks:
            self.faults.append(f"chunk {number} where chunk {self.chunks} was due")
        self.run, self.chunks = run, number + 1

    def judge(self, output: Mapping[str, Any] | None) -> list[str]:
        """The faults, once no more is read: the end must be there, and the chunks must be those that `output` speaks of."""
        if not self.status:
            return [*self.faults, "no end"]
        if self.status != "succeeded" or output is None:
            return [*self.faults, f"ended {self.status}, without a result" if output is None else f"ended {self.status}"]
        heard, told = (self.run, self.chunks), (output["run"], output["chunks"])
        return self.faults + ([f"heard {heard}, and the result says {told}"] if heard != told else [])

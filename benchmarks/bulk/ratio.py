"""A run over a file and the best loops without penstock over the same file, in turns: loops, run, loops, run, loops.

There are two kinds of loop: in one process, whose runtime has as many threads as the run has workers, as a notebook would have
it; and a process of one thread on each core, for whoever takes that trouble.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.bulk.environment import BenchEnvironment, Model
from penstock.errors import PenstockError
from penstock.loadtest.stack import environment


@dataclass(slots=True)
class TurnRates:
    """Rows per second of each turn. `size`: the loop's best batch."""

    size: int
    rates: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Compared:
    """`loop`: the best in one process. `per_core`: one process on each core."""

    run: Sequence[float]
    loop: TurnRates
    per_core: TurnRates
    busy: float | None

    @property
    def ratio(self) -> float:
        return mean(self.run) / mean(self.loop.rates)

    def figures(self) -> dict[str, Any]:
        return {
            "rows_per_s": round(mean(self.run), 1),
            "turns": [round(rate, 1) for rate in self.run],
            "busy": self.busy,
            **_figures("loop", self.run, self.loop),
            **_figures("per_core", self.run, self.per_core),
        }


def _figures(name: str, run: Sequence[float], turns: TurnRates) -> dict[str, Any]:
    return {
        f"{name}_rows_per_s": round(mean(turns.rates), 1),
        f"{name}_turns": [round(rate, 1) for rate in turns.rates],
        f"{name}_batch": turns.size,
        f"{name}_ratio": round(mean(run) / mean(turns.rates), 3),
    }


class FileLoops:
    """Processes that share out the rows of one file."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        self._processes = processes
        told: list[dict[str, int]] = [json.loads(self._answer(process)) for process in processes]
        self.rows = sum(one["rows"] for one in told)
        self.turns = TurnRates(max(one["size"] for one in told))

    def turn(self) -> None:
        """Note the rows per second of all together: all rows, by the time of the slowest."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("run\n")
            process.stdin.flush()
        slowest: float = max(float(json.loads(self._answer(process))) for process in self._processes)
        self.turns.rates.append(self.rows / slowest)

    def _answer(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise PenstockError(f"the loop without penstock ended with code {process.wait()}")
        return line


@contextmanager
def loops(config: Path, model: Model, file: Path, *, parts: Sequence[set[int]]) -> Iterator[FileLoops]:
    """A process for each part, on those cores and with a thread for each of them."""
    processes = [_loop(config, model, file, place, parts) for place in range(len(parts))]
    try:
        yield FileLoops(processes)
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _loop(config: Path, model: Model, file: Path, place: int, parts: Sequence[set[int]]) -> subprocess.Popen[str]:
    cores = ",".join(map(str, sorted(parts[place])))
    threads = str(len(parts[place]))
    arguments = [str(config), model.name, str(file), str(place), str(len(parts)), cores]
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.bulk.loop", *arguments],
        # What the worker gives its children: libraries start no more threads than they have cores.
        env=environment({"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false"}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def compared(ground: BenchEnvironment, model: Model, file: Path, *options: str, turns: int = 2) -> Compared:
    """The first run of each is a warm-up, not counted."""
    output = file.with_name(f"{file.stem}.out{'.parquet' if file.suffix == '.parquet' else '.jsonl'}")
    config, cores = ground.folder / "penstock.toml", sorted(os.sched_getaffinity(0))[: model.workers]
    rates, busy = [], None
    with (
        loops(config, model, file, parts=[set(cores)]) as one,
        loops(config, model, file, parts=[{core} for core in cores]) as per_core,
    ):
        for _ in range(turns):
            one.turn()
            per_core.turn()
            ran = ground.run(model.name, file, output, *options)
            rates.append(ran.rows_per_s)
            busy = ran.record.get("busy")
        one.turn()
        per_core.turn()
    return Compared(rates, one.turns, per_core.turns, busy)

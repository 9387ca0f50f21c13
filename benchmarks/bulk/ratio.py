"""A run over a file, in turns with the fastest loops without penstock over the same file: loops, run, loops, run, loops.

There are two kinds of loop: one process whose runtime has as many threads as the run has slots, as in a notebook; and one
process with one thread per core, which takes its user more effort.
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
    """Rows per second of each turn. `size`: the loop's best batch size."""

    size: int
    rates: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RunComparison:
    """`loop`: the loop in one process. `per_core`: the loops with one process per core."""

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
    """Processes that share the rows of one file."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        self._processes = processes
        ready: list[dict[str, int]] = [json.loads(self._answer(process)) for process in processes]
        self.rows = sum(one["rows"] for one in ready)
        self.turns = TurnRates(max(one["size"] for one in ready))

    def turn(self) -> None:
        """Runs all loops at once, and records all rows divided by the time of the slowest loop."""
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
    """One process per part, on the part's cores, with one thread per core."""
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
        # As a worker sets it for its children, so that libraries start no more threads than cores.
        env=environment({"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false"}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def compare_with_loops(bench: BenchEnvironment, model: Model, file: Path, *options: str, turns: int = 2) -> RunComparison:
    """Runs `turns` runs, and the loops before, between and after them."""
    output = file.with_name(f"{file.stem}.out{'.parquet' if file.suffix == '.parquet' else '.jsonl'}")
    config, cores = bench.folder / "penstock.toml", sorted(os.sched_getaffinity(0))[: model.slots]
    rates, busy = [], None
    with (
        loops(config, model, file, parts=[set(cores)]) as one,
        loops(config, model, file, parts=[{core} for core in cores]) as per_core,
    ):
        for _ in range(turns):
            one.turn()
            per_core.turn()
            ran = bench.run(model.name, file, output, *options)
            rates.append(ran.rows_per_s)
            busy = ran.record.get("busy")
        one.turn()
        per_core.turn()
    return RunComparison(rates, one.turns, per_core.turns, busy)

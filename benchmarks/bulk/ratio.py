"""A run over a file and the best loop without penstock over the same file, in turns: loop, run, loop, run, loop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from penstock.benchmarks.bulk.ground import Ground, Model
from penstock.benchmarks.stack import environment
from penstock.errors import PenstockError


@dataclass(frozen=True, slots=True)
class Compared:
    """Rows per second of each turn. `size`: the loop's best batch."""

    run_rows_per_s: tuple[float, ...]
    loop_rows_per_s: tuple[float, ...]
    size: int
    busy: float | None

    @property
    def ratio(self) -> float:
        return mean(self.run_rows_per_s) / mean(self.loop_rows_per_s)

    def figures(self) -> dict[str, Any]:
        return {
            "rows_per_s": round(mean(self.run_rows_per_s), 1),
            "loop_rows_per_s": round(mean(self.loop_rows_per_s), 1),
            "ratio": round(self.ratio, 3),
            "turns": [round(rate, 1) for rate in self.run_rows_per_s],
            "loop_turns": [round(rate, 1) for rate in self.loop_rows_per_s],
            "loop_batch": self.size,
            "busy": self.busy,
        }


class Loops:
    """One loop per slot, each on its core, all over the same file."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        self._processes = processes
        told: list[dict[str, int]] = [json.loads(self._answer(process)) for process in processes]
        self.rows = sum(one["rows"] for one in told)
        self.size = max(one["size"] for one in told)

    def turn(self) -> float:
        """Rows per second of all together: all rows, by the time of the slowest."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("run\n")
            process.stdin.flush()
        slowest: float = max(float(json.loads(self._answer(process))) for process in self._processes)
        return self.rows / slowest

    def _answer(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise PenstockError(f"the loop without penstock ended with code {process.wait()}")
        return line


@contextmanager
def loops(config: Path, model: Model, file: Path) -> Iterator[Loops]:
    cores = sorted(os.sched_getaffinity(0))[: model.workers]
    processes = [_loop(config, model, file, part, core) for part, core in enumerate(cores)]
    try:
        yield Loops(processes)
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _loop(config: Path, model: Model, file: Path, part: int, core: int) -> subprocess.Popen[str]:
    arguments = [str(config), model.name, str(file), str(part), str(model.workers), str(core)]
    return subprocess.Popen(
        [sys.executable, "-m", "penstock.benchmarks.bulk.loop", *arguments],
        # What the worker gives its children: libraries start no more threads than they have cores.
        env=environment({"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def compared(ground: Ground, model: Model, file: Path, *options: str, turns: int = 2) -> Compared:
    """The first run of each is a warm-up, not counted."""
    output = file.with_name(f"{file.stem}.out{'.parquet' if file.suffix == '.parquet' else '.jsonl'}")
    with loops(ground.folder / "penstock.toml", model, file) as beside:
        rates, loop_rates, busy = [], [beside.turn()], None
        for _ in range(turns):
            ran = ground.run(model.name, file, output, *options)
            rates.append(ran.rows_per_s)
            busy = ran.record.get("busy")
            loop_rates.append(beside.turn())
    return Compared(tuple(rates), tuple(loop_rates), beside.size, busy)

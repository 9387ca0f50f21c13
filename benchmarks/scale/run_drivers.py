"""What a second driver brings to a run of a cheap model: `run_drivers_ratio`.

A run ends when its last driver has done its share, so on hosts with cores of their own its rows per second are those per second
of CPU of its busiest driver. That is what is measured, because here drivers, workers and store share the cores: the CPU seconds
of one driver over all rows, against those of the busier of two drivers, splitting and joining included.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.bulk.environment import BenchEnvironment, Model, bench_environment
from benchmarks.scale.drill import DrillResult, DrillSetting
from penstock.broker.store.runs import RunStore
from penstock.broker.store.sync import RedisStore
from penstock.errors import PenstockError
from penstock.job import new_serial
from penstock.loadtest.stack import environment
from penstock.run import BY_COMMAND, Run, RunSpec, RunState

_CHEAP = Path(__file__).resolve().parents[1] / "bulk" / "cheap.py"
_ROWS, _ROUNDS, _PARTS = 3_000_000, 3, 4
_LOOK_S, _IDLE_S, _LONGEST_S = 0.2, 2.0, 900.0


def measure(setting: DrillSetting) -> DrillResult:
    """`run_drivers_ratio`: the median over rounds that alternate between one driver and two."""
    rows = setting.rounds(_ROWS)
    source = setting.folder / "rows.jsonl"
    source.write_text("".join(f'{{"x": {row}}}\n' for row in range(rows)))
    models = [Model("cheap", f"{_CHEAP}:Cheap", workers=1)]
    found: list[dict[str, Any]] = []
    with bench_environment(setting.folder / "stack", models) as stack:
        for number in range(setting.rounds(_ROUNDS)):
            one = _drive(stack, source, drivers=1, parts=1)
            two = _drive(stack, source, drivers=2, parts=_PARTS)
            ratio = max(one["cpu_s"]) / max(two["cpu_s"])
            found.append({"one": one, "two": two, "ratio": ratio})
            setting.say(f"round {number}: {max(one['cpu_s']):.2f} s of CPU alone, {max(two['cpu_s']):.2f} s the busier of two")
    return DrillResult({"run_drivers_ratio": median(each["ratio"] for each in found)}, {"rows": rows, "rounds": found})


def _drive(stack: BenchEnvironment, source: Path, *, drivers: int, parts: int) -> dict[str, Any]:
    """One run: the CPU seconds of each driver, and the rows per second by the clock of this machine."""
    output = stack.folder / "out.jsonl"
    spec = RunSpec(
        model="cheap", input=str(source), output=str(output), parts=parts, overwrite=True, metadata={BY_COMMAND: "0"}
    )
    with closing(RedisStore(stack.url)) as store, _drivers(stack, RunStore(store), spec, drivers) as (run_id, processes):
        runs = RunStore(store)
        before = [_cpu_s(process) for process in processes]
        began = time.monotonic()
        runs.reopen(run_id)
        ended = _await_end(runs, run_id, processes)
        took_s = time.monotonic() - began
        cpu_s = [_cpu_s(process) - at for process, at in zip(processes, before, strict=True)]
    return {"cpu_s": cpu_s, "rows_per_s": ended.counts.done / took_s}


@contextmanager
def _drivers(
    stack: BenchEnvironment, runs: RunStore, spec: RunSpec, drivers: int
) -> Iterator[tuple[str, Sequence[psutil.Popen]]]:
    """Processes that have started, and wait for a cancelled run to be opened again: their start is not measured."""
    run_id = new_serial()
    runs.create(run_id, spec)
    runs.ask_cancel(run_id)
    variables = {"PENSTOCK_CONFIG": str(stack.folder / "penstock.toml"), "PENSTOCK_REDIS_URL": stack.url}
    env = environment({**variables, "PENSTOCK_RUNNER_RUN": run_id})
    with (stack.folder / "drivers.log").open("a") as log:
        command = [sys.executable, "-m", "penstock.runs"]
        processes = [psutil.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT) for _ in range(drivers)]
    try:
        for process in processes:
            _await_idle(process)
        yield run_id, processes
    finally:
        for process in processes:
            process.terminate()
            process.wait(60)


def _await_idle(process: psutil.Popen) -> None:
    """Until it has loaded its code and only polls."""
    while True:
        before = _cpu_s(process)
        time.sleep(_IDLE_S)
        if before > 0.2 and _cpu_s(process) - before < 0.1 * _IDLE_S:
            return


def _await_end(runs: RunStore, run_id: str, processes: Sequence[psutil.Popen]) -> Run:
    give_up_at = time.monotonic() + _LONGEST_S
    while time.monotonic() < give_up_at:
        run = runs.read(run_id)
        if run is not None and run.state.final:
            if run.state is not RunState.COMPLETED:
                raise PenstockError(f"the run ended {run.state.value}: {run.error_message}")
            return run
        if any(process.poll() is not None for process in processes):
            raise PenstockError("a driver ended by itself; see drivers.log")
        time.sleep(_LOOK_S)
    raise PenstockError(f"the run has not ended after {_LONGEST_S:.0f} s")


def _cpu_s(process: psutil.Popen) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)

"""What a second driver brings to a run of a cheap model: `run_drivers_ratio`.

A run ends when its last driver has done its share, so on hosts with cores of their own its rows per second are those per second
of CPU of its busiest driver. That is what is measured, because here drivers, workers and store share the cores: the CPU seconds
of one driver over all rows, against those of the busier of two drivers, splitting and joining included.

Each driver is on a host of its own, which shares the folder of input and output; all else is on a host that both reach.
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
from benchmarks.stack import StackServer
from penstock.broker.store.runs import RunStore
from penstock.broker.store.sync import RedisStore
from penstock.errors import PenstockError
from penstock.job import new_serial
from penstock.loadtest.stack import environment
from penstock.run import BY_COMMAND, Run, RunSpec, RunState
from tests.faults.server import Server
from tests.hosts import Host, host_network

_CHEAP = Path(__file__).resolve().parents[1] / "bulk" / "cheap.py"
_ROWS, _ROUNDS, _PARTS, _HOSTS = 3_000_000, 3, 4, 2
_LOOK_S, _IDLE_S, _LONGEST_S = 0.2, 2.0, 900.0


def measure(setting: DrillSetting) -> DrillResult:
    """`run_drivers_ratio`: the median over rounds that alternate between one driver and two."""
    rows = setting.rounds(_ROWS)
    source = setting.folder / "rows.jsonl"
    source.write_text("".join(f'{{"x": {row}}}\n' for row in range(rows)))
    found: list[dict[str, Any]] = []
    with host_network(_HOSTS) as network, _stack(setting.folder, network.gate) as stack:
        setting.say(f"a host per driver: {network.what}")
        for number in range(setting.rounds(_ROUNDS)):
            one = _drive(stack, source, network.hosts[:1], parts=1)
            two = _drive(stack, source, network.hosts, parts=_PARTS)
            ratio = max(one["cpu_s"]) / max(two["cpu_s"])
            found.append({"one": one, "two": two, "ratio": ratio})
            setting.say(f"round {number}: {max(one['cpu_s']):.2f} s of CPU alone, {max(two['cpu_s']):.2f} s the busier of two")
    return DrillResult(
        {"run_drivers_ratio": median(each["ratio"] for each in found)}, {"hosts": network.what, "rows": rows, "rounds": found}
    )


@contextmanager
def _stack(folder: Path, gate: Host) -> Iterator[BenchEnvironment]:
    """Store, gateway and worker on the host that the drivers' hosts reach."""
    models = [Model("cheap", f"{_CHEAP}:Cheap", slots=1)]
    with bench_environment(folder / "stack", models, store=_store(folder / "store", gate)) as stack:
        yield stack


@contextmanager
def _store(folder: Path, gate: Host) -> Iterator[StackServer]:
    server = Server(folder, host=gate)
    server.start()
    try:
        yield StackServer(server.url, server.pid)
    finally:
        server.stop()


def _drive(stack: BenchEnvironment, source: Path, hosts: Sequence[Host], *, parts: int) -> dict[str, Any]:
    """One run: the CPU seconds of each driver, and the rows per second by the clock of this machine."""
    output = stack.folder / "out.jsonl"
    spec = RunSpec(
        model="cheap", input=str(source), output=str(output), parts=parts, overwrite=True, metadata={BY_COMMAND: "0"}
    )
    with closing(RedisStore(stack.url)) as store, _drivers(stack, RunStore(store), spec, hosts) as (run_id, processes):
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
    stack: BenchEnvironment, runs: RunStore, spec: RunSpec, hosts: Sequence[Host]
) -> Iterator[tuple[str, Sequence[psutil.Popen]]]:
    """Processes that have started, and wait for a cancelled run to be opened again: their start is not measured."""
    run_id = new_serial()
    runs.create(run_id, spec)
    runs.ask_cancel(run_id)
    variables = {"PENSTOCK_CONFIG": str(stack.folder / "penstock.toml"), "PENSTOCK_REDIS_URL": stack.url}
    env = environment({**variables, "PENSTOCK_RUNNER_RUN": run_id})
    with (stack.folder / "drivers.log").open("a") as log:
        commands = ([*host.within, sys.executable, "-m", "penstock.runs"] for host in hosts)
        processes = [psutil.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT) for command in commands]
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

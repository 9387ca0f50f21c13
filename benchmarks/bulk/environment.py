"""A stack for the measurement of runs: embedded store, gateway and worker, and `penstock run` against them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.stack import StackServer
from penstock.embedded.server import EmbeddedServer
from penstock.errors import PenstockError
from penstock.loadtest.stack import Processes, await_ready, environment, free_port, running

_WATCH_S = 0.02
# Longer than one shard takes.
_QUIET_S = 1.5
_HIGH_WATER = "VmHWM:"
_ROWS = "penstock_bulk_rows_total{"


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the configuration; `lines` are further lines of its table."""

    name: str
    source: str
    slots: int = 2
    lines: tuple[str, ...] = ()


@dataclass(slots=True)
class FinishedRun:
    """A finished run: its record as in `penstock run list --json`, and the driver's peak memory in bytes."""

    record: dict[str, Any]
    driver_peak_bytes: int

    @property
    def rows_per_s(self) -> float:
        """Rows per second from the start of the run until its output file is complete."""
        seconds: float = self.record["finished_at"] - self.record["started_at"]
        done: int = self.record["counts"]["done"]
        return done / seconds


@dataclass(slots=True)
class BenchEnvironment:
    """A running stack, and `penstock run` against it. `started` holds the processes of all runs."""

    folder: Path
    url: str
    port: int
    metrics_port: int
    store_pid: int
    processes: Processes
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def run(self, model: str, source: Path, output: Path, *options: str) -> FinishedRun:
        """Starts a run and waits for its end. Raises `PenstockError` unless the run completed."""
        process = self.begin(model, source, output, *options)
        peak = 0
        while process.poll() is None:
            peak = max(peak, peak_bytes(process.pid))
            time.sleep(_WATCH_S)
        record = self.newest()
        if process.returncode or record["state"] != "completed":
            raise PenstockError(f"the run over {source.name} ended {record['state']}: {self._log.read_text()[-1_000:]}")
        return FinishedRun(record, peak)

    def begin(self, model: str, source: Path, output: Path, *options: str) -> subprocess.Popen[str]:
        command = self._command("start", model, str(source), "-o", str(output), "--overwrite", "--json", *options)
        with self._log.open("a") as log:
            process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log, text=True)
        self.started.append(process)
        return process

    def newest(self) -> dict[str, Any]:
        """The record of the newest run."""
        command = self._command("list", "--json", "--limit", "1")
        listed = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=True, timeout=60)
        record: dict[str, Any] = json.loads(listed.stdout.splitlines()[0])
        return record

    def check(self, process: subprocess.Popen[str]) -> None:
        """Raises `PenstockError` if the stack or this run has ended by itself."""
        self.processes.check()
        if process.poll() is not None:
            raise PenstockError(f"the run ended by itself: {self._log.read_text()[-1_000:]}")

    def end(self, process: subprocess.Popen[str]) -> None:
        """Cancels the newest run, and waits until the workers settle no more of its rows."""
        command = self._command("cancel", self.newest()["id"])
        subprocess.run(command, env=self._environment, capture_output=True, check=True, timeout=60)
        process.wait(60)
        before = -1
        while (now := self.bulk_rows()) != before:
            before = now
            time.sleep(_QUIET_S)

    def bulk_rows(self) -> int:
        """The rows of shards that the worker has settled since it started."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return round(sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(_ROWS)))

    @property
    def _log(self) -> Path:
        return self.folder / "runs.log"

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "penstock", "run", *arguments]

    @property
    def _environment(self) -> dict[str, str]:
        return environment({"PENSTOCK_CONFIG": str(self.folder / "penstock.toml"), "PENSTOCK_REDIS_URL": self.url})


def peak_bytes(pid: int) -> int:
    """The largest resident memory that a process has had; 0: the process has ended."""
    try:
        with open(f"/proc/{pid}/status") as status:
            lines = [line for line in status if line.startswith(_HIGH_WATER)]
    except OSError:
        return 0
    return int(lines[0].split()[1]) * 1024 if lines else 0


@contextmanager
def bench_environment(
    folder: Path,
    models: Sequence[Model],
    *,
    worker_cores: set[int] | None = None,
    store: AbstractContextManager[StackServer] | None = None,
) -> Iterator[BenchEnvironment]:
    """A stack that is ready. `worker_cores`: the worker's cores; all other processes get the rest. `store`: by default the
    embedded one, on a Unix socket.
    """
    every = os.sched_getaffinity(0)
    others = every - (worker_cores or set()) or every
    folder.mkdir(parents=True, exist_ok=True)
    config, port, metrics_port = folder / "penstock.toml", free_port(), free_port()
    config.write_text(_config(folder, port, metrics_port, models))
    try:
        os.sched_setaffinity(0, others)
        with store or _embedded(folder / "state") as server:
            processes = Processes(folder, {"PENSTOCK_CONFIG": str(config), "PENSTOCK_REDIS_URL": server.url})
            with running(processes, [["gateway"]]):
                os.sched_setaffinity(0, worker_cores or every)
                processes.start("worker")
                os.sched_setaffinity(0, others)
                await_ready(port, processes, path="/readyz")
                yield BenchEnvironment(folder, server.url, port, metrics_port, server.pid, processes)
    finally:
        os.sched_setaffinity(0, every)


@contextmanager
def _embedded(folder: Path) -> Iterator[StackServer]:
    with EmbeddedServer(folder) as server:
        assert server.pid is not None
        yield StackServer(server.url, server.pid)


def _config(folder: Path, port: int, metrics_port: int, models: Sequence[Model]) -> str:
    head = f'[store]\nstate_dir = "{folder / "state"}"\n[gateway]\nport = {port}\n[worker]\nmetrics_port = {metrics_port}\n'
    return head + "".join(_table(model) for model in models)


def _table(model: Model) -> str:
    lines = [f"[models.{model.name}]", f'source = "{model.source}"', "threads = 1", f"slots = {model.slots}", *model.lines]
    return "\n".join(lines) + "\n"

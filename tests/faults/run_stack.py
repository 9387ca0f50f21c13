"""What a run needs: a store, a worker, commands that drive runs; and a gateway for the users who ask meanwhile."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from penstock.loadtest.stack import free_port
from tests.eventually import eventually
from tests.faults.asker import Asker, Question
from tests.faults.face import HttpFace
from tests.faults.memory import MemoryWatch, members
from tests.faults.processes import Group
from tests.faults.server import Server

MODEL = "rows"
SOURCE = f"{Path(__file__).resolve().parent / 'rows_model.py'}:Rows"


def row_question() -> Question:
    return Question({"x": 21}, lambda output: bool(output["y"] == 42))


class RunStack:
    """A test can kill each part at will. Runs are read by `penstock run`, so the asker has no job to poll."""

    def __init__(self, folder: Path, *, row_s: float) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.server = Server(folder / "valkey")
        table = {"source": SOURCE, "threads": 1, "max_batch_size": 64, "options": {"log": str(self.log), "row_s": row_s}}
        plain = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_") and name != "REDIS_URL"}
        self._environment = {
            **plain,
            "PENSTOCK_REDIS_URL": self.server.url,
            "PENSTOCK_STORE__STATE_DIR": str(folder / "state"),
            "PENSTOCK_MODELS": json.dumps({MODEL: table}),
        }
        self.worker = Group(["penstock.cli.main", "worker"], self._environment, folder / "worker.log")
        port = free_port()
        settings = {**self._environment, "PENSTOCK_GATEWAY__PORT": str(port)}
        self.gateway = Group(["penstock.cli.main", "gateway"], settings, folder / "gateway.log")
        self.face = HttpFace(port)
        self.asker = self._asker()

    @property
    def log(self) -> Path:
        return self.folder / "rows.log"

    def rows_run(self) -> int:
        """Return how many rows the model received, warm-up included."""
        return sum(map(int, self.log.read_text().split()))

    def command(self, *arguments: str) -> Group:
        """Return a `penstock run` that prints its events to `run<number>.log`."""
        log = self.folder / f"run{len(list(self.folder.glob('run*.log')))}.log"
        log.touch()
        return Group(["penstock.cli.main", "run", *arguments, "--json"], self._environment, log)

    def processes(self) -> Iterator[tuple[str, psutil.Process]]:
        """Yield the processes that run now, with their roles; the driver of a run is watched by the scenario."""
        yield from members("gateway", self.gateway)
        yield from members("worker", self.worker)
        if self.server.running:
            yield "store", psutil.Process(self.server.pid)

    def start(self) -> None:
        """Start everything, and return once the model is loaded."""
        self.server.start()
        self.worker.start()
        self.gateway.start()
        eventually(lambda: self.face.ask("GET", "/readyz").status == 200, timeout_s=60.0)
        self.asker.start()

    def begin_anew(self) -> None:
        """Judge the next fault by itself, with a new asker on the same processes."""
        self.asker.stop()
        self.asker = self._asker()
        self.asker.start()

    def _asker(self) -> Asker:
        memory = MemoryWatch(self.processes)
        return Asker(self.face, MODEL, make=row_question, poll=lambda: None, memory=memory)

    def stop(self) -> None:
        self.gateway.stop()
        self.worker.stop()
        self.server.stop()
        self.asker.stop()
        self.face.close_all()

    def runner(self) -> Group:
        """Return a process that drives the runs made over HTTP."""
        return Group(["penstock.runs"], self._environment, self.folder / "runner.log")

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-2_000:] for path in sorted(self.folder.glob("*.log")))


@contextmanager
def run_stack(folder: Path, *, row_s: float) -> Iterator[RunStack]:
    stack = RunStack(folder, row_s=row_s)
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()


def write_rows(path: Path, rows: int) -> list[object]:
    """Write an input of `rows` rows, and return the outputs that it should have."""
    path.write_text("".join(f'{{"x": {row}}}\n' for row in range(rows)))
    return [{"y": 2 * row} for row in range(rows)]


def outputs(path: Path) -> list[object]:
    """Return the outputs without their padding; a line that is torn is told as its text."""
    return [_output(line) for line in path.read_text().splitlines()]


def _output(line: str) -> object:
    try:
        return {"y": json.loads(line)["output"]["y"]}
    except (ValueError, KeyError):
        return line

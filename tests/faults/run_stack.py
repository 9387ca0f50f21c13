"""What a run needs and nothing more: a store, a worker, and commands that drive runs. A test can kill each of them at will."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.eventually import eventually
from tests.faults.processes import Group
from tests.faults.server import Server

MODEL = "rows"
SOURCE = f"{Path(__file__).resolve().parent / 'rows_model.py'}:Rows"


class RunStack:
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

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-2_000:] for path in sorted(self.folder.glob("*.log")))


@contextmanager
def run_stack(folder: Path, *, row_s: float) -> Iterator[RunStack]:
    stack = RunStack(folder, row_s=row_s)
    try:
        stack.server.start()
        stack.worker.start()
        eventually(stack.log.exists, timeout_s=30.0)
        yield stack
    finally:
        stack.worker.stop()
        stack.server.stop()


def write_rows(path: Path, rows: int) -> list[object]:
    """Write an input of `rows` rows, and return the outputs that it should have."""
    path.write_text("".join(f'{{"x": {row}}}\n' for row in range(rows)))
    return [{"y": 2 * row} for row in range(rows)]


def outputs(path: Path) -> list[object]:
    return [json.loads(line)["output"] for line in path.read_text().splitlines()]

"""`penstock up` for tests of what it serves: `up` and its processes are forked. Tests of its start are in `test_cli.py`."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import IO, Any

from tests.acceptance.test_cli import Up, clean_environment, ready
from tests.warm_process import Process, start

# What `penstock up` starts.
PROCESSES = ("penstock.gateway", "penstock.workers", "penstock.runs")


class _Command:
    """What `Up` uses of a `subprocess.Popen`."""

    def __init__(self, process: Process, stdout: IO[str]) -> None:
        self._process = process
        self.stdout = stdout
        self.pid = process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        self._process.wait(timeout)
        with self.stdout:
            return self.stdout.read(), None


def started(folder: Path, *arguments: str) -> Up:
    reading, writing = os.pipe()
    words = ["up", *arguments, "--port", "0", "--json"]
    with (folder / "up.log").open("ab") as log, os.fdopen(writing, "wb") as out:
        process = start(
            "penstock.cli.main", *words, env=clean_environment(), cwd=folder, stdout=out, stderr=log, lent=PROCESSES
        )
    command: Any = _Command(process, os.fdopen(reading))
    return ready(command, folder)

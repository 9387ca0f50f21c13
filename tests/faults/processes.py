"""A process under test with all its children: a fault kills or freezes them together, each by its own pid."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar

import psutil

from tests.warm_process import Process, start, start_cold

# What `penstock gateway` and `penstock worker` become once they have found nothing to refuse.
_BECOMES: Mapping[tuple[str, ...], str] = {
    ("penstock.cli.main", "gateway"): "penstock.gateway",
    ("penstock.cli.main", "worker"): "penstock.workers",
}


class Group:
    """One gateway or worker. Start it from the main thread: such processes end with the thread that started them.

    `forked`: the suite, which judges no time, has them forked (tests/warm_process.py); the score sheet starts them as users do.
    """

    forked: ClassVar[bool] = False

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._arguments = arguments
        self._environment = dict(environment)
        self._log = log
        self._process: Process | None = None

    def start(self, **extra: str) -> None:
        """Start the process. `extra` are environment variables for this start only."""
        env = {**self._environment, **extra}
        with self._log.open("ab") as log:
            if self.forked:
                self._process = self._fork(env, log)
                return
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            self._process = start_cold(*self._arguments, env=env, start_new_session=True, **streams)

    def _fork(self, env: Mapping[str, str], log: IO[bytes]) -> Process:
        program = _BECOMES.get(tuple(self._arguments))
        arguments = [program] if program else self._arguments
        return start(*arguments, env=env, stdout=log, stderr=log, start_new_session=True)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def members(self) -> list[psutil.Process]:
        """Return this process and all processes below it."""
        with contextlib.suppress(psutil.NoSuchProcess):
            top = psutil.Process(self.pid)
            return [top, *top.children(recursive=True)]
        return []

    def children(self) -> list[int]:
        return [member.pid for member in self.members()[1:]]

    def kill(self) -> None:
        """Kill all members at once with SIGKILL, as when the host goes."""
        self.signal_all(signal.SIGKILL)
        self.wait()

    def signal(self, number: int) -> None:
        if self.running:
            os.kill(self.pid, number)

    def signal_all(self, number: int) -> None:
        for member in self.members():
            with contextlib.suppress(psutil.NoSuchProcess):
                member.send_signal(number)

    def wait(self, timeout_s: float = 30.0) -> int:
        assert self._process is not None
        return self._process.wait(timeout_s)

    def stop(self, *, grace_s: float = 15.0) -> None:
        """End the process as an operator would, and by force if it does not react."""
        if not self.running:
            return
        members = self.members()
        self.signal_all(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            self.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.kill()
        _reap(members)


def _reap(members: list[psutil.Process]) -> None:
    """Kill what is left: a worker's child ends with its worker, so a process left a moment later is a leak of the test run."""
    _, left = psutil.wait_procs(members, timeout=3.0)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()

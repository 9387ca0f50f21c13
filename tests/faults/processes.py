"""A process under test with all it started: killed whole, frozen whole, ended by its own pid."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil


class Group:
    """One gateway or worker. Start it from the main thread: such processes end with the thread that started them."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._arguments = arguments
        self._environment = dict(environment)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, **extra: str) -> None:
        """`extra` are variables for this life only."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self._arguments],
                env={**self._environment, **extra},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def members(self) -> list[psutil.Process]:
        """This process and all below it."""
        with contextlib.suppress(psutil.NoSuchProcess):
            top = psutil.Process(self.pid)
            return [top, *top.children(recursive=True)]
        return []

    def children(self) -> list[int]:
        return [member.pid for member in self.members()[1:]]

    def kill(self) -> None:
        """kill -9 of everybody at once, as when the host goes."""
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
        """End it as an operator would; by force if it does not listen."""
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
    """A worker's child ends with it; what is left a moment later would be a leak of the test run."""
    _, left = psutil.wait_procs(members, timeout=3.0)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()

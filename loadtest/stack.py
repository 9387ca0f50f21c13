"""Processes of penstock under measurement: started with their own configuration, awaited, ended with their children."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from penstock.errors import PenstockError
from penstock.loadtest.observed.costs import CpuReading, read_cpu

_READY_S = 60.0
_END_S = 30.0


# Outgoing connections get ports above these (from 32,768 on Linux), so none can take a port between its choice and its use.
PORTS = range(10_000, 32_768)


def free_port() -> int:
    """A port of loopback that no program listens on."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without the variables that would select another store or configuration."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_") and name != "REDIS_URL"}
    return {**kept, **extra}


def log_tail(log: Path) -> str:
    """The log's end for an error message, because the folder with the log is removed soon."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return f"the end of its log:\n{text[-2_000:]}"


class Processes:
    """Commands of the `penstock` command line that run side by side; their output goes to one log in the folder."""

    def __init__(self, folder: Path, extra: Mapping[str, str]) -> None:
        self._log = folder / "stack.log"
        self._environment = environment(extra)
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str) -> int:
        """The process id of `penstock ARGUMENTS`."""
        command = [sys.executable, "-m", "penstock", *arguments]
        with self._log.open("ab") as log:
            process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log, cwd=self._log.parent)
        self._running.append(process)
        return process.pid

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._running]

    def read_cpu(self) -> CpuReading:
        return read_cpu(self.pids)

    def check(self) -> None:
        """Raises `PenstockError` if a process has ended by itself."""
        for process in self._running:
            if process.poll() is not None:
                raise PenstockError(f"{process.args!r} ended with {process.returncode} while measured; {self.tail()}")

    def tail(self) -> str:
        return log_tail(self._log)

    def stop(self) -> None:
        for process in reversed(self._running):
            _end(process)
        self._running.clear()


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    below = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _, alive = psutil.wait_procs(below, timeout=5)
    for orphan in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            orphan.kill()


@contextlib.contextmanager
def running(processes: Processes, commands: Sequence[Sequence[str]]) -> Iterator[Processes]:
    try:
        for command in commands:
            processes.start(*command)
        yield processes
    finally:
        processes.stop()


def await_ready(port: int, processes: Processes, *, path: str) -> None:
    """Returns when the gateway answers `path` with 200. Raises `PenstockError` after a minute, or when a process has ended."""
    give_up_at = time.monotonic() + _READY_S
    while status(port, path) != 200:
        processes.check()
        if time.monotonic() > give_up_at:
            raise PenstockError(f"{path} on port {port} did not turn 200 within {_READY_S:.0f} s; {processes.tail()}")
        time.sleep(0.05)


def status(port: int, path: str) -> int:
    """The status of a GET; 0: no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()

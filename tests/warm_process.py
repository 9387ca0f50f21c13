"""Processes of ours that start quickly: forked from a server that has imported what they load.

A start of a gateway or a worker costs more than a second of CPU, four fifths of it for imports, and tests start some hundred.
What runs after the imports is the program itself, as `python -m MODULE` runs it, with this environment and in a process of its
own. A test of the start itself, of memory or of what other processes see (a command line) takes `start_cold`.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, Protocol

_SERVER = Path(__file__).with_name("warm_server.py")
_CELERY = ["celery.apps.worker", "celery.concurrency.solo", "celery.worker.components", "celery.worker.consumer"]
# What each process imports as it starts.
_LOADED: Mapping[str, Sequence[str]] = {
    "penstock.gateway": ["penstock.logs", "penstock.gateway.serving"],
    "penstock.workers": [
        "penstock.broker.celery_app",
        "penstock.workers.bootstep.consumer",
        "penstock.workers.bootstep.pool",
        "penstock.workers.bootstep.program",
        *_CELERY,
    ],
    "penstock.runs": ["penstock.logs", "penstock.runs.execution", "penstock.runs.runner"],
    "penstock.cli.main": [
        "penstock.cli.main",
        "penstock.cli.serve.up",
        "penstock.embedded.server",
        "penstock.cli.runs.run",
        "penstock.cli.runs.drive",
        "penstock.cli.jobs.jobs",
        "penstock.cli.jobs.call",
        "penstock.cli.models.models",
        "penstock.cli.models.workers",
        "penstock.client.sync",
        "penstock.client.runs",
        "httpx2._transports.default",
        "penstock.runs.publishing",
        "penstock.workers.devices",
        "rich.progress",
        "rich.table",
    ],
}
# Modules that are loaded again in the new process: the program itself, and one that takes the time as it is loaded.
_ANEW = ("penstock.cli.main", "penstock.cli.lazy")
# What the interpreter or a library reads while it loads comes too late for a process that has loaded it.
_READ_AT_LOAD = ("PYTHON", "LD_", "GLIBC_", "MALLOC_", "OMP_", "OTEL_PYTHON_")


class Process(Protocol):
    """What tests use of a process, whichever way it was started."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def kill(self) -> None: ...


def start(
    module: str,
    *arguments: str,
    env: Mapping[str, str],
    stdout: IO[Any] | int,
    stderr: IO[Any] | int,
    stdin: IO[Any] | int = subprocess.DEVNULL,
    cwd: Path | None = None,
    start_new_session: bool = False,
    lent: Sequence[str] = (),
) -> Process:
    """Start `python -m MODULE ARGUMENTS` with this environment alone; the streams are files, or DEVNULL.

    An environment with something that is read while modules load takes a real start. `lent`: `penstock up` has those of its
    processes forked, too, whose modules these are.
    """
    if module not in _LOADED or _read_at_load(env) != _read_at_load(os.environ):
        streams = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
        return start_cold(module, *arguments, env=env, cwd=cwd, start_new_session=start_new_session, **streams)
    order = {
        "module": module,
        "arguments": list(arguments),
        "env": dict(env),
        "cwd": str(cwd or Path.cwd()),
        "session": start_new_session,
        "anew": _ANEW,
        "lent": list(lent),
    }
    with contextlib.ExitStack() as opened:
        fds = [_fd(stream, opened) for stream in (stdin, stdout, stderr)]
        return WarmProcess([module, *arguments], _server(module).fork(order, fds, [_server(name).fileno() for name in lent]))


def supervise(lent: Mapping[str, int]) -> None:
    """In a forked `penstock up`: have the processes of these modules forked by the servers behind these sockets."""
    from penstock.cli.serve import process_manager

    _LENT.update({module: _Orders(socket.socket(fileno=fd)) for module, fd in lent.items()})
    vars(process_manager)["subprocess"] = SimpleNamespace(Popen=_supervised, DEVNULL=subprocess.DEVNULL)


def _supervised(argv: Sequence[str], *, env: Mapping[str, str], **options: Any) -> Process:
    """What `up` starts, which ends with this process in the end: it is a child of the server, whose own end is its last."""
    if argv[-1] not in _LENT:
        return subprocess.Popen(argv, env=env, **options)
    return start(argv[-1], env={**env, "PENSTOCK_DIE_WITH_PARENT": "1"}, **options)


def start_cold(module: str, *arguments: str, **options: Any) -> Process:
    """Start `python -m MODULE ARGUMENTS` as everybody does; the options are those of `subprocess.Popen`."""
    return subprocess.Popen([sys.executable, "-m", module, *arguments], **options)


def _read_at_load(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(_READ_AT_LOAD)}


def _fd(stream: IO[Any] | int, opened: contextlib.ExitStack) -> int:
    if stream == subprocess.DEVNULL:
        return opened.enter_context(open(os.devnull, "r+b", buffering=0)).fileno()
    return stream if isinstance(stream, int) else stream.fileno()


class WarmProcess:
    """A forked process, for those who know `subprocess.Popen`. Its parent is the server, which also waits for it."""

    def __init__(self, args: Sequence[str], told: IO[bytes]) -> None:
        self.args = args
        self.returncode: int | None = None
        self._told = told
        self.pid = int(told.readline())

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, minus the signal's number if one ended the process. Raises `TimeoutExpired`."""
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = int(self._told.readline())
            self._told.close()
        return self.returncode

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Orders:
    """The way to the server of one module."""

    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders
        self._turn = threading.Lock()

    def fileno(self) -> int:
        return self._orders.fileno()

    def fork(self, order: Mapping[str, object], fds: Sequence[int], lent: Sequence[int] = ()) -> IO[bytes]:
        """Return the file from which the new process's pid is read at once, and its exit code once it has ended."""
        told, theirs = os.pipe()
        try:
            with self._turn:
                socket.send_fds(self._orders, [json.dumps(order).encode()], [*fds, theirs, *lent])
        finally:
            os.close(theirs)
        # Unbuffered, so that `select` sees all that is not read yet.
        return open(told, "rb", buffering=0)


class _Server(_Orders):
    """The server of one module; it ends with this process, and what it forked goes on."""

    def __init__(self, module: str) -> None:
        orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        super().__init__(orders)
        with theirs:
            command = [sys.executable, str(_SERVER), str(theirs.fileno()), *_LOADED[module]]
            plain = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "OTEL_"))}
            self._process = subprocess.Popen(command, env=plain, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        atexit.register(self._end)

    def _end(self) -> None:
        self._orders.close()
        self._process.wait()


_LENT: dict[str, _Orders] = {}


def _server(module: str) -> _Orders:
    return _LENT.get(module) or _own_server(module)


@cache
def _own_server(module: str) -> _Server:
    return _Server(module)

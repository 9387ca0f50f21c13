"""Starts the processes of `penstock up`, restarts them, drains them in order, and kills them at a second signal."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from penstock.backoff import Backoff
from penstock.cli.exits import StartError

_RESTART = Backoff(1.0, 30.0)
# The backoff starts over after a process has lived this long.
HEALTHY_AFTER_S = 60.0
DEATHS_BEFORE_READY = 3
_TURN_S = 0.1
# Exit codes for wrong usage and wrong settings: a restart would fail again in the same way.
_HOPELESS = (2, 4)


class StoreServer(Protocol):
    """The interface of an embedded server for the manager."""

    def check(self) -> bool:
        """Restart the server if it is gone; returns whether it was. Raises if it cannot be restarted."""
        ...


@dataclass(slots=True)
class RestartDelay:
    """The wait before the next start: 1 s after a first death, doubling up to 30 s."""

    deaths: int = 0

    def after_death(self, lived_s: float) -> float:
        self.deaths = 1 if lived_s >= HEALTHY_AFTER_S else self.deaths + 1
        return _RESTART.delay_s(self.deaths)


@dataclass(slots=True)
class ManagedProcess:
    """One process that a manager keeps running. `log_path` None: its output goes to this process's standard error."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    backoff: RestartDelay = field(default_factory=RestartDelay)
    log_path: Path | None = None
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    starts_at: float = 0.0

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        return self.process.pid if self.process else 0

    def start(self, now: float) -> None:
        # A new session: Ctrl-C reaches only the manager, which stops the store after its writers.
        # With --json, standard output has one line of JSON, so logs go to standard error.
        with self.log_path.open("ab") if self.log_path else nullcontext(sys.stderr) as log:
            self.process = subprocess.Popen(
                self.argv, env=dict(self.env), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self.started_at = now

    def signal(self, number: int) -> None:
        if self.process is not None and self.running:
            self.process.send_signal(number)


class StopSignals:
    """Counts the signals that ask this process to stop. Reading `count` never blocks; `wait` returns early at a signal."""

    def __init__(self) -> None:
        self.count = 0
        self._received = threading.Event()

    def install(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # Under nohup SIGHUP stays ignored. SIGINT is not: scripts start their background commands with it ignored, and
            # then stop them by it.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)

    def wait(self, seconds: float) -> None:
        self._received.wait(seconds)
        self._received.clear()

    def _on_signal(self, number: int, frame: Any) -> None:
        self.count += 1
        self._received.set()


class ProcessManager:
    """Keeps `processes` running until a stop signal comes. `say` gets one sentence per event."""

    def __init__(
        self,
        processes: Sequence[ManagedProcess],
        store: StoreServer | None,
        *,
        stop: StopSignals,
        say: Callable[[str], None],
    ) -> None:
        self._processes, self._store, self._stop, self._say = list(processes), store, stop, say

    def start(self) -> None:
        for process in self._processes:
            process.start(time.monotonic())

    def add(self, process: ManagedProcess) -> None:
        """Supervise one more process; the next turn starts it."""
        self._processes.append(process)

    def run_until(self, done: Callable[[], bool]) -> None:
        """Supervise until `done` or a stop signal. Raises `StartError` if a process keeps dying in the meantime."""
        while not self._stop.count and not done():
            self.turn(time.monotonic(), deaths_allowed=DEATHS_BEFORE_READY)
            self._stop.wait(_TURN_S)

    def run(self) -> None:
        """Supervise until a stop signal."""
        while not self._stop.count:
            self.turn(time.monotonic(), deaths_allowed=None)
            self._stop.wait(_TURN_S)

    def turn(self, now: float, *, deaths_allowed: int | None) -> None:
        if self._store is not None and self._store.check():
            self._say("the embedded store died and was restarted; no accepted job is lost")
        for process in self._processes:
            if process.process is None:
                self._start_if_due(process, now)
            elif not process.running:
                self._handle_death(process, now, deaths_allowed=deaths_allowed)

    def drain(self, grace_s: float) -> bool:
        """Ask every process to finish, and wait. True if all did; a second signal or the end of `grace_s` kills the rest."""
        for process in self._processes:
            process.signal(signal.SIGTERM)
        ends_at = time.monotonic() + grace_s
        while any(process.running for process in self._processes):
            if self._stop.count > 1 or time.monotonic() >= ends_at:
                self.kill()
                return False
            self._stop.wait(0.02)
        return True

    def kill(self) -> None:
        for process in self._processes:
            if process.running:
                self._say(f"the {process.name} did not finish in time and is killed; its unfinished jobs go back to the queue")
            process.signal(signal.SIGKILL)
            if process.process is not None:
                process.process.wait()

    def _start_if_due(self, process: ManagedProcess, now: float) -> None:
        if now >= process.starts_at:
            process.start(now)

    def _handle_death(self, process: ManagedProcess, now: float, *, deaths_allowed: int | None) -> None:
        code = process.process.returncode if process.process else 0
        wait_s = process.backoff.after_death(now - process.started_at)
        ending = _ending(code)
        if deaths_allowed is not None and (code in _HOPELESS or process.backoff.deaths >= deaths_allowed):
            raise StartError(
                f"the {process.name} {ending} before it was ready; its own messages are above",
                hint="`penstock doctor` checks this machine, `penstock config --check` the settings",
            )
        process.process, process.starts_at = None, now + wait_s
        self._say(f"the {process.name} {ending}; it is restarted in {wait_s:g} s")


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"

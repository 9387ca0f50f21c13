"""The processes of `penstock up`: started, restarted when they die, drained in order, killed when told twice."""

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
# A process that lived this long was well; its next death starts from the short wait again.
WELL_AFTER_S = 60.0
DEATHS_BEFORE_READY = 3
_TURN_S = 0.1
# Wrong usage and wrong settings: the same start again fails in the same way.
_HOPELESS = (2, 4)


class Store(Protocol):
    """What the supervisor asks of an embedded server."""

    def check(self) -> bool:
        """True if the server was gone and has been started again; raises when that does not help."""
        ...


@dataclass(slots=True)
class RestartDelay:
    """How long to wait before the next start: 1 s after a first death, doubling to 30 s."""

    deaths: int = 0

    def after_death(self, lived_s: float) -> float:
        self.deaths = 1 if lived_s >= WELL_AFTER_S else self.deaths + 1
        return _RESTART.delay_s(self.deaths)


@dataclass(slots=True)
class ManagedProcess:
    """One process that is to run all the time."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    backoff: RestartDelay = field(default_factory=RestartDelay)
    # Where what it says goes; None: our standard error.
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
        # A session of its own: Ctrl-C reaches us alone, so that the store outlives those who still write to it. Standard output
        # is ours (one line of JSON under --json), so logs go to standard error.
        with self.log_path.open("ab") if self.log_path else nullcontext(sys.stderr) as log:
            self.process = subprocess.Popen(
                self.argv, env=dict(self.env), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self.started_at = now

    def signal(self, number: int) -> None:
        if self.process is not None and self.running:
            self.process.send_signal(number)


class StopSignals:
    """How often we were told to stop. Reading it never blocks; `wait` returns early when a signal comes."""

    def __init__(self) -> None:
        self.count = 0
        self._came = threading.Event()

    def install(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # What the caller has us ignore stays ignored: hang-ups under nohup, Ctrl-C for a script's background jobs.
            if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._note)

    def wait(self, seconds: float) -> None:
        self._came.wait(seconds)
        self._came.clear()

    def _note(self, number: int, frame: Any) -> None:
        self.count += 1
        self._came.set()


class ProcessSupervisor:
    """Keeps `children` running until told to stop. `say` gets one sentence per event."""

    def __init__(
        self, children: Sequence[ManagedProcess], store: Store | None, *, stop: StopSignals, say: Callable[[str], None]
    ) -> None:
        self._children, self._store, self._stop, self._say = list(children), store, stop, say

    def start(self) -> None:
        for child in self._children:
            child.start(time.monotonic())

    def add(self, child: ManagedProcess) -> None:
        """One process more, started at the next turn."""
        self._children.append(child)

    def run_until(self, done: Callable[[], bool]) -> None:
        """Supervise until `done`, or until told to stop. Raises `StartError` when a process keeps dying meanwhile."""
        while not self._stop.count and not done():
            self.turn(time.monotonic(), deaths_allowed=DEATHS_BEFORE_READY)
            self._stop.wait(_TURN_S)

    def run(self) -> None:
        """Supervise until told to stop."""
        while not self._stop.count:
            self.turn(time.monotonic(), deaths_allowed=None)
            self._stop.wait(_TURN_S)

    def turn(self, now: float, *, deaths_allowed: int | None) -> None:
        if self._store is not None and self._store.check():
            self._say("the embedded store had died; it runs again, and no accepted job is lost")
        for child in self._children:
            if child.process is None:
                self._start_if_due(child, now)
            elif not child.running:
                self._bury(child, now, deaths_allowed=deaths_allowed)

    def drain(self, grace_s: float) -> bool:
        """Asks every process to finish, and waits. True if all did; a second signal or the end of `grace_s` kills the rest."""
        for child in self._children:
            child.signal(signal.SIGTERM)
        ends_at = time.monotonic() + grace_s
        while any(child.running for child in self._children):
            if self._stop.count > 1 or time.monotonic() >= ends_at:
                self.kill()
                return False
            self._stop.wait(0.02)
        return True

    def kill(self) -> None:
        for child in self._children:
            if child.running:
                self._say(f"the {child.name} has not finished and is killed; what it held goes back to the queue")
            child.signal(signal.SIGKILL)
            if child.process is not None:
                child.process.wait()

    def _start_if_due(self, child: ManagedProcess, now: float) -> None:
        if now >= child.starts_at:
            child.start(now)

    def _bury(self, child: ManagedProcess, now: float, *, deaths_allowed: int | None) -> None:
        code = child.process.returncode if child.process else 0
        wait_s = child.backoff.after_death(now - child.started_at)
        ending = _ending(code)
        if deaths_allowed is not None and (code in _HOPELESS or child.backoff.deaths >= deaths_allowed):
            raise StartError(
                f"the {child.name} {ending} before it was ready; what it said stands above",
                hint="`penstock doctor` checks this machine, `penstock config check` the settings",
            )
        child.process, child.starts_at = None, now + wait_s
        self._say(f"the {child.name} {ending}; it is started again in {wait_s:g} s")


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"

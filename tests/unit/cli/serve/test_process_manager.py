from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from penstock.cli.exits import StartError
from penstock.cli.serve.process_manager import ManagedProcess, ProcessManager, RestartDelay, StopSignals

FOREVER = "import signal; signal.pause()"


def child(code: str) -> ManagedProcess:
    return ManagedProcess("worker", [sys.executable, "-S", "-c", code], os.environ)


def test_an_interrupt_stops_a_command_that_a_script_started_in_the_background() -> None:
    """Regression: a shell without job control has its background commands ignore SIGINT, and `penstock up &` kept to that."""
    numbers, stop = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP), StopSignals()
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        stop.install()
        signal.raise_signal(signal.SIGHUP)
        assert stop.count == 0, "under nohup it outlives its terminal"
        signal.raise_signal(signal.SIGINT)
        assert stop.count == 1
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_waits_double_to_a_limit_and_begin_anew_after_a_long_life() -> None:
    delay = RestartDelay()
    assert [delay.after_death(0.1) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert delay.after_death(61.0) == 1


def test_a_child_that_dies_is_started_again_after_its_wait() -> None:
    said: list[str] = []
    worker = child("raise SystemExit(9)")
    supervisor = ProcessManager([worker], None, stop=StopSignals(), say=said.append)
    worker.start(now=0.0)
    assert worker.process is not None
    worker.process.wait()
    supervisor.turn(1.0, deaths_allowed=None)
    assert said == ["the worker ended with code 9; it is restarted in 1 s"]
    supervisor.turn(1.9, deaths_allowed=None)
    assert worker.pid == 0
    worker.argv = child(FOREVER).argv
    supervisor.turn(2.0, deaths_allowed=None)
    assert worker.running
    supervisor.kill()


def test_a_child_that_refuses_its_settings_ends_the_start_at_once() -> None:
    worker = child("raise SystemExit(4)")
    supervisor = ProcessManager([worker], None, stop=StopSignals(), say=lambda text: None)
    worker.start(now=0.0)
    assert worker.process is not None
    worker.process.wait()
    with pytest.raises(StartError, match="code 4 before it was ready"):
        supervisor.turn(0.1, deaths_allowed=3)


def test_a_drain_ends_children_that_listen() -> None:
    worker = child(FOREVER)
    supervisor = ProcessManager([worker], None, stop=StopSignals(), say=lambda text: None)
    supervisor.start()
    assert supervisor.drain(10.0)
    assert worker.process is not None
    assert worker.process.returncode == -signal.SIGTERM


def test_a_second_signal_kills_children_that_do_not_listen() -> None:
    said: list[str] = []
    worker, stop = child(FOREVER), StopSignals()
    supervisor = ProcessManager([worker], None, stop=stop, say=said.append)
    # Ignored signals stay ignored across exec, so the child ignores SIGTERM from its start.
    heard = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        supervisor.start()
    finally:
        signal.signal(signal.SIGTERM, heard)
    stop.count = 2
    assert not supervisor.drain(60.0)
    assert worker.process is not None
    assert worker.process.returncode == -signal.SIGKILL
    assert "killed" in said[0]


def test_a_store_that_died_is_told() -> None:
    class Store:
        def check(self) -> bool:
            return True

    said: list[str] = []
    ProcessManager([], Store(), stop=StopSignals(), say=said.append).turn(time.monotonic(), deaths_allowed=None)
    assert len(said) == 1
    assert "store" in said[0]

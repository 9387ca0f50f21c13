"""A process that `tests/warm_process.py` forks is to its user what `python -m` starts."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import eventually
from tests.integration.worker_process import FAULTY, WorkerProcess
from tests.warm_process import WarmProcess, start, start_cold

PROGRAM = "penstock.cli.main"


def ended(begin: Any, folder: Path, *arguments: str, **variables: str) -> tuple[int, str, str]:
    """Return the exit code of a command and what it wrote."""
    out, err = folder / f"{begin.__name__}.out", folder / f"{begin.__name__}.err"
    env = {**os.environ, "NO_COLOR": "1", **variables}
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = begin(PROGRAM, *arguments, env=env, cwd=folder, stdout=stdout, stderr=stderr)
        return process.wait(60.0), out.read_text(), err.read_text()


@pytest.mark.parametrize("arguments", [["config"], ["jobs", "nothing"], ["config", "--check"]])
def test_a_forked_command_reads_writes_and_returns_what_a_started_one_does(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "penstock.toml").write_text("[models.square]\nsource = 'absent.py'\n")
    warm, cold = (ended(begin, tmp_path, *arguments, PENSTOCK_GATEWAY__PORT="8123") for begin in (start, start_cold))
    assert warm == cold


def test_what_is_read_while_modules_load_takes_a_real_start(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONHASHSEED": "7"}
    process = start(PROGRAM, "--version", env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert not isinstance(process, WarmProcess)
    assert process.wait(60.0) == 0


def test_a_forked_process_dies_of_the_fault_in_its_environment(redis_url: str, tmp_path: Path) -> None:
    fault = {"PENSTOCK_FAULT": "in_sweep:kill"}
    with WorkerProcess(redis_url, tmp_path / "w", {"echo": {"source": f"{FAULTY}:Faulty"}}, fault, beat_s=0.4) as worker:
        assert isinstance(worker.process, WarmProcess)
        assert worker.exit_code(within_s=60.0) == -signal.SIGKILL


def test_a_signal_ends_it_alone_and_its_number_is_told() -> None:
    # Nothing is written to the pipe, so both commands wait for their input.
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stdin, os.fdopen(writing, "wb"):
        first, second = (
            start(PROGRAM, "call", "m", "-", env=os.environ, stdin=stdin, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for _ in range(2)
        )
        assert os.getpgid(first.pid) == os.getpgid(0)
        first.kill()
        assert first.wait(60.0) == -signal.SIGKILL
        assert second.poll() is None
        second.send_signal(signal.SIGSTOP)
        second.send_signal(signal.SIGKILL)
        assert eventually(second.poll) == -signal.SIGKILL
        second.kill()

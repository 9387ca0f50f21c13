from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.process_lifetime import PARENT_VARIABLE, die_with_parent
from tests.eventually import eventually

linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal at a parent's death is Linux' own")
SCRIPT = "from penstock.process_lifetime import die_with_parent; die_with_parent(); print('goes on', flush=True)"


def output_with(parent: str) -> str:
    environment = {**os.environ, PARENT_VARIABLE: parent}
    return subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True).stdout


@linux
def test_a_process_whose_parent_died_before_it_could_ask_ends_at_once() -> None:
    """Regression: if `penstock up` died while its runner imported modules, the runner bound itself to its new parent."""
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    assert output_with(str(gone.pid)) == ""


@linux
def test_a_process_whose_parent_lives_goes_on() -> None:
    assert output_with(str(os.getpid())) == "goes on\n"


@linux
def test_the_kernel_ends_a_process_whose_parent_is_killed() -> None:
    child = f"{SCRIPT}; import signal; signal.pause()"
    parent = (
        f"import subprocess, sys; started = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE); "
        "started.stdout.read(5); print(started.pid, flush=True); started.wait()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent], env={**os.environ, PARENT_VARIABLE: "1"}, stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        starter.kill()
    eventually(lambda: not is_running(pid), timeout_s=10.0)


def is_running(pid: int) -> bool:
    """Return whether the process runs; a zombie does not, although its parent has not collected it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_nobody_who_did_not_ask_for_it_ends() -> None:
    die_with_parent({})

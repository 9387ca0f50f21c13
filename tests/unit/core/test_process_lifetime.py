from __future__ import annotations

import os
import subprocess
import sys

import pytest

from penstock.process_lifetime import TOLD, die_with_parent

linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal at a parent's death is Linux' own")
SCRIPT = "from penstock.process_lifetime import die_with_parent; die_with_parent(); print('goes on')"


def said(told: str) -> str:
    environment = {**os.environ, TOLD: told}
    return subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True).stdout


@linux
def test_a_process_whose_parent_died_before_it_could_ask_ends_at_once() -> None:
    """`penstock up` was killed while its runner imported its modules: that asked for its new parent, and lived on."""
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    assert said(str(gone.pid)) == ""


@linux
def test_a_process_whose_parent_lives_goes_on() -> None:
    assert said(str(os.getpid())) == "goes on\n"


def test_nobody_who_did_not_ask_for_it_ends() -> None:
    die_with_parent({})

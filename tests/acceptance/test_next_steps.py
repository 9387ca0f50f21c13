"""What `penstock up` prints as the next step works as it is printed, and clients find what commands find."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.client.sync import Client
from tests.acceptance.test_cli import COMMAND, SQUARE, clean_environment
from tests.command import called_here


@contextmanager
def announced(folder: Path, *arguments: str) -> Iterator[dict[str, str]]:
    """The lines that a `penstock up` prints when it is ready, by their first word, while it runs."""
    with (folder / "up.log").open("w") as log:
        up = subprocess.Popen(
            [*COMMAND, "up", str(SQUARE), "--port", "0", *arguments],
            cwd=folder,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert up.stdout is not None
        lines: dict[str, str] = {}
        while "try" not in lines:
            line = up.stdout.readline()
            assert line, (folder / "up.log").read_text()
            word, _, rest = line.strip().partition(" ")
            lines[word] = rest.strip()
        yield lines
    finally:
        up.terminate()
        up.communicate(timeout=60)


def test_the_call_that_up_suggests_and_a_client_reach_a_state_folder_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Regression: with --state-dir the command asked port 8080. A state folder here: tests/acceptance/test_cli.py.
    with announced(tmp_path, "--state-dir", "my state") as lines:
        words = shlex.split(lines["try"])
        assert words[0] == "penstock"
        done = called_here(*words[1:], cwd=tmp_path, env=clean_environment())
        assert (done.returncode, done.stdout) == (0, '{"y": 1}\n'), done.stderr
        monkeypatch.chdir(tmp_path)
        for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("PENSTOCK_STORE__STATE_DIR", "my state")
        with Client() as client:
            assert client.predict("square", {"x": 3}) == {"y": 9}

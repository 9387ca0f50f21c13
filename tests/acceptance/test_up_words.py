"""What `penstock up` says to somebody at a terminal: where to look when it is ready, and what Ctrl-C waits for."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import pytest

from penstock import Client
from penstock.errors import JobFailed
from penstock.running_stack import running_gateway
from tests.acceptance.test_cli import COMMAND, clean_environment
from tests.eventually import eventually

# The job ends once the command has said that it waits for it: one of a fixed length ended before on a busy machine.
SLOW = """
import os, time, penstock

@penstock.model
def slow(gate: str) -> str:
    while gate.startswith("/") and not os.path.exists(gate):
        time.sleep(0.02)
    return gate
"""


def test_up_names_the_dashboard_first_and_at_ctrl_c_says_how_many_jobs_it_finishes(tmp_path: Path) -> None:
    # Started from above its settings: regression, the other commands there did not find it.
    folder = tmp_path / "service"
    folder.mkdir()
    (folder / "slow.py").write_text(SLOW)
    (folder / "penstock.toml").write_text('[models.slow]\nsource = "slow.py"\n')
    said, log, gate = tmp_path / "said.txt", tmp_path / "log.txt", tmp_path / "gate"
    with said.open("w") as out, log.open("w") as err:
        up = subprocess.Popen(
            [*COMMAND, "up", "service/penstock.toml", "--port", "0"],
            cwd=tmp_path,
            env=clean_environment(),
            stdout=out,
            stderr=err,
        )
    try:
        eventually(lambda: "try" in said.read_text(), timeout_s=60)
        lines = said.read_text().splitlines()
        assert lines[1].split()[0] == "open"
        url = lines[1].split()[1]
        assert running_gateway(tmp_path, {}) == running_gateway(folder, {}) == url.rstrip("/")
        assert "--" not in next(line for line in lines if line.split()[0] == "try"), "the call needs no address"
        with Client(url) as client:
            job = client.submit("slow", str(gate))
            eventually(lambda: job.refresh().status == "running", timeout_s=30)
        up.send_signal(signal.SIGINT)
        eventually(lambda: "finishing 1 job; Ctrl-C again stops at once" in log.read_text(), timeout_s=30)
        gate.touch()
        assert up.wait(60) == 0
    finally:
        up.kill()
        up.wait()
    assert (folder / ".penstock" / ".gitignore").read_text() == "*\n"
    assert not (tmp_path / ".penstock").exists(), "nothing stays where it was started"


CARELESS = """
import os, penstock

@penstock.model
def careless(x: int) -> int:
    print("given", x)
    return x * len(os.environ["SERVICE_KEY"]) if x > 100 else x
"""


@contextmanager
def up_at_a_terminal(folder: Path, *arguments: str) -> Iterator[list[str]]:
    """A `penstock up` whose output is a terminal: what it shows there, which grows."""
    screen, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (40, 200))
    env = {**clean_environment(), "TERM": "xterm", "NO_COLOR": "1"}
    process = subprocess.Popen([*COMMAND, "up", *arguments], cwd=folder, env=env, stdout=terminal, stderr=terminal)
    os.close(terminal)
    shown: list[str] = []

    def read() -> None:
        with suppress(OSError):  # the end of a terminal that nobody holds any more
            while part := os.read(screen, 1 << 16):
                shown.append(part.decode(errors="replace").replace("\r\n", "\n"))

    reader = Thread(target=read)
    reader.start()
    try:
        yield shown
    finally:
        process.terminate()
        process.wait(60)
        reader.join(60)
        os.close(screen)


def test_at_a_terminal_the_author_of_a_model_sees_what_it_raised_and_what_to_write(tmp_path: Path) -> None:
    (tmp_path / "careless.py").write_text(CARELESS)
    with up_at_a_terminal(tmp_path, "careless.py", "--port", "0") as shown:
        [url] = eventually(lambda: re.findall(r"open +(http://\S+)/ ", "".join(shown)), timeout_s=60)
        # Regression: its first output was 30 lines of calls that nobody had made.
        assert "".join(shown).count("warm-up: given") == 1
        with Client(url) as client, pytest.raises(JobFailed, match=r"KeyError: 'SERVICE_KEY'$"):
            client.submit("careless", 101).result(30)
        eventually(lambda: "SERVICE_KEY is not set; write SERVICE_KEY" in "".join(shown), timeout_s=30)
    text = "".join(shown)
    assert f'Traceback (most recent call last):\n  File "{tmp_path}/careless.py", line 7, in careless' in text
    assert "[models.careless.env]" in text

"""What `penstock up` says to somebody at a terminal: where to look when it is ready, and what Ctrl-C waits for."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

from penstock import Client
from tests.acceptance.test_cli import COMMAND, clean_environment
from tests.eventually import eventually

SLOW = """
import time, penstock

@penstock.model
def slow(seconds: float) -> float:
    time.sleep(seconds)
    return seconds
"""


def test_up_names_the_dashboard_first_and_at_ctrl_c_says_how_many_jobs_it_finishes(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    said, log = tmp_path / "said.txt", tmp_path / "log.txt"
    with said.open("w") as out, log.open("w") as err:
        up = subprocess.Popen(
            [*COMMAND, "up", "slow.py", "--port", "0"], cwd=tmp_path, env=clean_environment(), stdout=out, stderr=err
        )
    try:
        eventually(lambda: "try" in said.read_text(), timeout_s=60)
        lines = said.read_text().splitlines()
        assert lines[1].split()[0] == "open"
        url = lines[1].split()[1]
        with Client(url) as client:
            job = client.submit("slow", 1.5)
            eventually(lambda: job.refresh().status == "running", timeout_s=30)
        up.send_signal(signal.SIGINT)
        assert up.wait(60) == 0
    finally:
        up.kill()
        up.wait()
    assert "finishing 1 job; Ctrl-C again stops at once" in log.read_text()
    assert (tmp_path / ".penstock" / ".gitignore").read_text() == "*\n"

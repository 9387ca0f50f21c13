"""`penstock up` and all its processes are killed with SIGKILL amid its jobs and restarted: every job finishes exactly once."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from tests.acceptance.test_cli import Up, started, stopped
from tests.eventually import eventually

JOBS = 120
ENDED_BEFORE = 24
# The model writes down every run of a job and answers with a random stamp, so that a second run is noticed. The last job waits
# for a file, so that the kill always comes before all jobs have ended.
HANDLER = """
import os, time
from pathlib import Path
from penstock import Handler

RUNS = Path(__file__).with_name("runs")
GATE = Path(__file__).with_name("open")
LAST = 119

class Stamp(Handler):
    max_batch_size = 8

    def inference(self, batch: list[int], /) -> list[dict]:
        time.sleep(0.08)
        while LAST in batch and not GATE.exists():
            time.sleep(0.005)
        with RUNS.open("a") as runs:
            runs.writelines(f"{n}\\n" for n in batch)
        return [{"n": n, "stamp": os.urandom(8).hex()} for n in batch]
"""
# The lease is short, so that the test is short.
SETTINGS = """
[worker]
lease_s = 3.0
beat_s = 1.0

[models.stamp]
source = "stamp.py"
# A warm-up would be counted as a run.
warm_up = false
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "stamp.py").write_text(HANDLER)
    (tmp_path / "penstock.toml").write_text(SETTINGS)
    return tmp_path


def submitted(up: Up) -> dict[str, int]:
    """Submits all jobs and returns the number of each job by the job's id."""
    with httpx2.Client(base_url=up.ready["url"], timeout=30.0) as client, ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda n: client.post("/v1/models/stamp/jobs", json=n), range(JOBS)))
    assert {answer.status_code for answer in answers} == {202}
    return {answer.json()["id"]: n for n, answer in enumerate(answers)}


def ended(up: Up) -> list[str]:
    """The ids of all jobs that have ended, from all pages of the list."""
    jobs: list[dict[str, Any]] = []
    with httpx2.Client(base_url=up.ready["url"], timeout=30.0) as client:
        page = client.get("/v1/jobs", params={"limit": 200}).json()
        jobs += page["data"]
        while page["has_more"]:
            page = client.get("/v1/jobs", params={"limit": 200, "after": page["next_after"]}).json()
            jobs += page["data"]
    return [job["id"] for job in jobs if job["status"] not in ("queued", "running")]


def outputs(up: Up, jobs: list[str]) -> dict[str, Any]:
    with httpx2.Client(base_url=up.ready["url"], timeout=30.0) as client:
        answers = {job: client.get(f"/v1/jobs/{job}/result") for job in jobs}
    assert {answer.status_code for answer in answers.values()} == {200}
    return {job: json.loads(answer.content) for job, answer in answers.items()}


def kill_all(up: Up) -> None:
    """Kills all processes at once: neither the store nor the gateway nor the worker nor its children can shut down cleanly."""
    family = [up.process, *psutil.Process(up.process.pid).children(recursive=True)]
    assert len(family) >= 5
    for process in family:
        process.kill()
    up.process.communicate()
    eventually(lambda: not any(process.is_running() for process in family[1:]), timeout_s=30)


def test_killed_amid_its_jobs_and_started_again_all_finish_and_each_has_one_result(folder: Path) -> None:
    first = started(folder)
    numbers = submitted(first)
    eventually(lambda: len(ended(first)) >= ENDED_BEFORE, timeout_s=60)
    seen = outputs(first, ended(first))
    assert len(seen) < JOBS, "nothing would be left to recover"
    kill_all(first)

    (folder / "open").touch()
    second = started(folder)
    try:
        eventually(lambda: len(ended(second)) == JOBS, timeout_s=60)
        results = outputs(second, list(numbers))
        assert {job: result["n"] for job, result in results.items()} == numbers
        assert {job: results[job] for job in seen} == seen, "a result that was shown has changed"
        with httpx2.Client(base_url=second.ready["url"]) as client:
            assert f'penstock_jobs_total{{model="stamp",status="succeeded"}} {JOBS}.0' in client.get("/metrics").text
        runs = (folder / "runs").read_text().split()
        assert len(runs) - JOBS <= 2 * 8, "only what the killed child held may run twice"
    finally:
        assert stopped(second) == 0

"""Counts the files of penstock that one answer-now request runs through: a reader of the main path must read them all."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx2
import psutil
import pytest

from tests.acceptance import call_counts
from tests.acceptance.gateway_process import gateway_process
from tests.eventually import eventually
from tests.integration.worker_process import WorkerProcess

ROOT = Path(__file__).parents[2]
# A job runs through no file that does not concern it: what is optional is switched where it would be called.
MOST_FILES = 45
REQUESTS = 60
IDLE_S = 2.0


class CountedServer:
    """A gateway and a worker. All of their processes count their function calls."""

    def __init__(self, folder: Path, client: httpx2.Client) -> None:
        self._folder = folder
        self._looks = 0
        self.client = client

    def calls(self) -> Counter[str]:
        """The number of calls of each function since the start, by file and name, summed over all processes."""
        look, self._looks = self._looks, self._looks + 1
        (self._folder / f"look-{look}").touch()
        eventually(lambda: self._living() <= {path.stem.partition("-")[0] for path in self._answers(look)})
        return sum((Counter(json.loads(path.read_text())) for path in self._answers(look)), Counter())

    def _living(self) -> set[str]:
        found = {path.stem for path in self._folder.glob("*.counts")}
        return {pid for pid in found if psutil.pid_exists(int(pid))}

    def _answers(self, look: int) -> list[Path]:
        return list(self._folder.glob(f"*-{look}.json"))


@pytest.fixture
def server(fresh_redis: str, tmp_path: Path) -> Iterator[CountedServer]:
    call_counts.install(tmp_path)
    counted = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])}
    models = {"square": {"source": str(ROOT / "examples" / "square.py")}}
    with (
        WorkerProcess(fresh_redis, tmp_path / "w", models, counted) as worker,
        gateway_process(fresh_redis, tmp_path / "g", models=models, env=counted) as client,
    ):
        worker.await_ready()
        eventually(lambda: client.get("/readyz").status_code == 200)
        yield CountedServer(tmp_path, client)


def _passed(idle: Counter[str], busy: Counter[str], *, share: float) -> dict[str, list[str]]:
    """The files of penstock, each with its functions that ran for every request.

    `share` is the length of the busy period divided by the length of the idle period. Calls by background work such as beats
    and sweeps occur in both periods, so the calls of the idle period are subtracted.
    """
    files: dict[str, list[str]] = {}
    for called, count in busy.items():
        path, _, function = called.rpartition(":")
        own = _own_file(path)
        if own and count - idle[called] * share >= REQUESTS * 0.9:
            files.setdefault(own, []).append(function)
    return files


def _own_file(path: str) -> str:
    real = Path(path).resolve()
    if not path.startswith("/") or ROOT not in real.parents:
        return ""
    name = str(real.relative_to(ROOT))
    return "" if name.startswith(("tests", "examples", ".venv")) else name


def test_one_answer_now_request_passes_few_files(server: CountedServer) -> None:
    def predict() -> None:
        answer = server.client.post("/predictions/square", json={"x": 4})
        assert answer.json() == {"y": 16}, answer.text

    for _ in range(10):
        predict()
    first = server.calls()
    time.sleep(IDLE_S)
    second, began = server.calls(), time.monotonic()
    for _ in range(REQUESTS):
        predict()
    busy_s = time.monotonic() - began
    third = server.calls()
    files = _passed(second - first, third - second, share=max(1.0, busy_s / IDLE_S))
    listed = "\n".join(f"{file}: {', '.join(sorted(functions)[:8])}" for file, functions in sorted(files.items()))
    sys.stdout.write(f"{len(files)} files, {busy_s:.1f} s\n{listed}\n")
    assert len(files) <= MOST_FILES, listed

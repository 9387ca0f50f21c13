"""A model moves to another store under load, while the mover, the worker and a gateway are killed: nothing is lost."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from penstock.job import JobId, JobState, parse_job_id
from tests.acceptance.gateway_process import GatewayClient, gateway_process
from tests.acceptance.test_cli import clean_environment
from tests.eventually import eventually
from tests.faults.server import Server
from tests.integration.worker_process import WorkerProcess

SQUARE = str(Path(__file__).parents[2] / "examples" / "square.py")
MODELS = {"mover": {"source": SQUARE, "workers": 2}}


@pytest.fixture(scope="module")
def other(has_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("other"), fsync="everysec")
    server.start()
    yield server
    server.stop()


class Caller:
    """Submits jobs with keys, one after the other, at whichever gateway answers; repeats what was not answered."""

    def __init__(self, clients: list[GatewayClient]) -> None:
        self.clients = clients
        self.accepted: dict[str, str] = {}
        self.refused: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Caller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60.0)

    def _run(self) -> None:
        for number in itertools.count():
            if self._stop.is_set():
                return
            key = f"key-{number}"
            while (job := self.submit(key, number)) is None and not self._stop.is_set():
                time.sleep(0.05)
            if job is not None:
                self.accepted[key] = job

    def submit(self, key: str, number: int) -> str | None:
        for client in self.clients:
            try:
                answer = client.post("/v1/models/mover/jobs", json={"x": number}, headers={"idempotency-key": key})
            except httpx2.TransportError:
                continue
            if answer.status_code == 202:
                return str(answer.json()["id"])
            self.refused.append(answer.text)
        return None


class Mover:
    """A process of `penstock store move`, with the lines that it has printed."""

    def __init__(self, env: dict[str, str], log: Path) -> None:
        self._log = log
        with log.open("wb") as file, log.with_suffix(".err").open("wb") as errors:
            words = [sys.executable, "-m", "penstock", "store", "move", "mover", "--to", "b", "--json"]
            self.process = subprocess.Popen(words, env=env, stdout=file, stderr=errors)

    def steps(self) -> list[str]:
        return [json.loads(line)["step"] for line in self._log.read_text().splitlines()]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def test_a_move_under_load_loses_nothing_when_its_mover_the_worker_and_a_gateway_are_killed(
    fresh_redis: str, other: Server, tmp_path: Path
) -> None:
    env = {"PENSTOCK_STORES__B__URL": other.url, "PENSTOCK_WORKER__BEAT_S": "0.5", "PENSTOCK_WORKER__LEASE_S": "4"}
    own = clean_environment() | env | {"PENSTOCK_REDIS_URL": fresh_redis, "PENSTOCK_STORE__STATE_DIR": str(tmp_path / "m")}
    with (
        WorkerProcess(fresh_redis, tmp_path / "w", MODELS, env) as worker,
        gateway_process(fresh_redis, tmp_path / "g1", models=MODELS, env=env) as first,
        gateway_process(fresh_redis, tmp_path / "g2", models=MODELS, env=env) as second,
    ):
        eventually(lambda: second.get("/readyz").status_code == 200, timeout_s=60.0)
        with Caller([first, second]) as caller:
            eventually(lambda: len(caller.accepted) > 20, timeout_s=30.0)
            # Killed once it prepares the queues; repeated, it goes on.
            dying = Mover(own, tmp_path / "dying.log")
            eventually(lambda: dying.steps() == ["prepare"], timeout_s=30.0)
            dying.kill()
            moving = Mover(own, tmp_path / "moving.log")
            worker.kill()
            eventually(lambda: _in_b(caller), timeout_s=40.0)
            first.kill()
            worker.start()
            assert moving.process.wait(timeout=60.0) == 0, moving.steps()
            seen = len(caller.accepted)
            eventually(lambda: len(caller.accepted) > seen + 20, timeout_s=30.0)
        assert moving.steps()[-1] == "done"
        jobs = {key: parse_job_id(job) for key, job in caller.accepted.items()}
        assert {job.partition for job in jobs.values()} == {0, 1}, "jobs lie in both stores"
        assert len(set(jobs.values())) == len(jobs)
        eventually(lambda: _ended(second, list(jobs.values())), timeout_s=30.0)
        for key, job in list(jobs.items())[::7]:
            number = int(key.removeprefix("key-"))
            assert second.get(f"/v1/jobs/{job}/result").json() == {"y": number * number}
            assert caller.submit(key, number) == str(job), "a key holds across a move"
        stats = second.get("/v1/jobs?model=mover&limit=200").json()
        assert {one["status"] for one in stats["data"]} == {JobState.SUCCEEDED.value}
        assert _accepted(second) == len(jobs), "no key made a second job"
        assert _moves(second) == ["done", None], "the first command was killed"


def _moves(client: GatewayClient) -> list[str | None]:
    """How the acts of the audit log ended, all of them moves."""
    acts = client.get("/v1/audit").json()["data"]
    assert [(act["act"], act["on"], act["said"]) for act in acts] == [("move store", {"model": "mover"}, {"to": "b"})] * len(
        acts
    )
    assert all("@" in act["by"] for act in acts)
    return [act["outcome"] for act in acts]


def _in_b(caller: Caller) -> bool:
    return any(".1-" in job for job in list(caller.accepted.values()))


def _ended(client: GatewayClient, jobs: list[JobId]) -> bool:
    return all(client.get(f"/v1/jobs/{job}").json()["status"] == "succeeded" for job in jobs)


def _accepted(client: GatewayClient) -> int:
    text = client.get("/metrics").text
    [line] = [line for line in text.splitlines() if line.startswith('penstock_jobs_accepted_total{model="mover"}')]
    return int(float(line.rpartition(" ")[2]))

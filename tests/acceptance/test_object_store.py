"""A gateway, a worker and a run driver that share Redis and a bucket but no folder: real processes, a real S3 server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.broker.blobs.places import open_blobs
from penstock.job import BlobPlace
from penstock.runs import files
from tests.acceptance.gateway_process import gateway_process
from tests.acceptance.test_cli import COMMAND, clean_environment
from tests.eventually import eventually
from tests.faults.proxy import Proxy
from tests.integration.worker_process import WorkerProcess

# The outputs are too large for a record in Redis, so they go to the bucket. An item with a gate waits until that file exists,
# so that a test can stop jobs halfway.
MODEL = """
import os
import time

from penstock import Handler


class Pad(Handler):
    max_batch_size = 8

    def inference(self, batch: list[dict], /) -> list[dict]:
        time.sleep(0.02)
        while not all(os.path.exists(item.get("gate", ".")) for item in batch):
            time.sleep(0.005)
        return [{"n": item["n"], "size": len(item["pad"]), "pad": item["pad"] * 3} for item in batch]
"""
JOBS, JOB_PAD = 120, "j" * 40_000
ROWS, ROW_PAD = 400, "r" * 2_000


@dataclass
class Apart:
    """A gateway, a worker and a run driver, each in a folder of its own, and the `link` between the worker and S3."""

    client: httpx2.Client
    worker: WorkerProcess
    driver: Path
    env: dict[str, str]
    link: Proxy

    @property
    def gate(self) -> Path:
        return self.driver / "open"

    def submit(self, number: int, *, gated: bool = False) -> str:
        order = {"n": number, "pad": JOB_PAD, **({"gate": str(self.gate)} if gated else {})}
        answer = self.client.post("/v1/models/pad/jobs", json=order)
        assert answer.status_code == 202, answer.text
        job: str = answer.json()["id"]
        return job

    def result(self, job: str) -> Any:
        answer = self.client.get(f"/v1/jobs/{job}/result")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def ended(self) -> int:
        """The number of jobs that have succeeded."""
        text = self.client.get("/metrics").text
        [line] = [line for line in text.splitlines() if line.startswith('penstock_jobs_total{model="pad",status="succeeded"}')]
        return int(float(line.split()[-1]))


@pytest.fixture
def lease_s() -> float:
    """Leases are short, so that the tests are short."""
    return 3.0


@pytest.fixture
def apart(fresh_redis: str, s3_url: str, s3_environment: dict[str, str], tmp_path: Path, lease_s: float) -> Iterator[Apart]:
    for folder in ("gateway", "worker", "driver"):
        (tmp_path / folder).mkdir()
    source = tmp_path / "worker" / "pad.py"
    source.write_text(MODEL)
    models = {"pad": {"source": f"{source}:Pad"}}
    env = {**s3_environment, "PENSTOCK_STORE__BLOB_URL": s3_url}
    link = Proxy(int(s3_environment["AWS_ENDPOINT"].rpartition(":")[2]))
    link.start()
    theirs = env | {"AWS_ENDPOINT": f"http://127.0.0.1:{link.port}"}
    worker = WorkerProcess(fresh_redis, tmp_path / "worker", models, theirs, lease_s=lease_s, beat_s=lease_s / 3)
    with gateway_process(fresh_redis, tmp_path / "gateway", models=models, env=env) as client, worker:
        worker.await_ready()
        yield Apart(client, worker, tmp_path / "driver", env | {"PENSTOCK_REDIS_URL": fresh_redis}, link)
    link.stop()


def test_jobs_and_a_run_lose_nothing_when_the_worker_is_killed_and_no_folder_is_shared(
    apart: Apart, s3_url: str, tmp_path: Path
) -> None:
    rows = "".join(json.dumps({"n": row, "pad": ROW_PAD}) + "\n" for row in range(ROWS))
    (apart.driver / "in.jsonl").write_text(rows)
    command = [*COMMAND, "run", "pad", "in.jsonl", "-o", "out.jsonl", "--shard-rows", "50", "--json"]
    with (apart.driver / "run.log").open("w") as log:
        run = subprocess.Popen(command, cwd=apart.driver, env=clean_environment() | apart.env, stdout=log, stderr=log)
    with ThreadPoolExecutor(8) as threads:
        jobs = dict(zip(threads.map(apart.submit, range(JOBS - 1)), range(JOBS - 1), strict=True))
    jobs[apart.submit(JOBS - 1, gated=True)] = JOBS - 1
    eventually(lambda: apart.ended() >= 20, timeout_s=60.0)
    apart.worker.kill()
    assert apart.ended() < JOBS, "nothing would be left to recover"
    apart.gate.touch()
    apart.worker.start()

    eventually(lambda: apart.ended() >= JOBS, timeout_s=60.0)
    assert run.wait(timeout=60.0) == 0, (apart.driver / "run.log").read_text()
    results = {job: apart.result(job) for job in jobs}
    assert {job: (result["n"], result["size"], len(result["pad"])) for job, result in results.items()} == {
        job: (number, len(JOB_PAD), 3 * len(JOB_PAD)) for job, number in jobs.items()
    }
    outputs = [json.loads(line)["output"] for line in (apart.driver / "out.jsonl").read_text().splitlines()]
    assert [(output["n"], output["pad"]) for output in outputs] == [(row, 3 * ROW_PAD) for row in range(ROWS)]

    assert list(tmp_path.rglob("*.in")) == list(tmp_path.rglob("*.out")) == []
    eventually(lambda: list((tmp_path / "worker" / "state" / "blob-copies").rglob("*.in.*")) == [])
    left = {name.partition(".")[2].rpartition(".")[2] for name, _ in open_blobs(BlobPlace(tmp_path, s3_url)).names()}
    assert left == {"out"}, "inputs go with the jobs that needed them"


# 15 s is the default: the bucket's library retries for two seconds, and the slot cannot renew its lease meanwhile.
@pytest.mark.parametrize("lease_s", [15.0])
def test_a_worker_whose_bucket_is_away_waits_with_inputs_and_results_and_loses_none(apart: Apart) -> None:
    # On a busy machine a batch once ran twice: the bucket's library retried for 26 s, and the slot's lease expired meanwhile.
    jobs = [apart.submit(number, gated=number == 39) for number in range(40)]
    eventually(lambda: apart.ended() >= 8, timeout_s=60.0)
    apart.link.refuse()
    apart.gate.touch()
    told = eventually(lambda: apart.worker.events("blobs_away") + apart.worker.events("store_away"), timeout_s=60.0)
    assert apart.ended() < len(jobs), "nothing would be left to wait"
    assert "test-secret" not in json.dumps(told)
    apart.link.heal()
    eventually(lambda: apart.ended() == len(jobs), timeout_s=60.0)
    assert [apart.result(job)["n"] for job in jobs] == list(range(40))
    assert [apart.client.get(f"/v1/jobs/{job}").json()["attempts"] for job in jobs] == [1] * 40, "nothing ran twice"


def test_a_job_whose_object_is_gone_fails_and_says_where_it_was_looked_for(apart: Apart, s3_url: str, tmp_path: Path) -> None:
    apart.worker.kill()
    job = apart.submit(1)
    open_blobs(BlobPlace(tmp_path, s3_url)).delete(f"{job.partition('-')[0]}.in")
    apart.worker.start()
    eventually(lambda: apart.client.get(f"/v1/jobs/{job}").json()["status"] == "failed", timeout_s=60.0)
    error = apart.client.get(f"/v1/jobs/{job}").json()["error"]
    assert error["code"] == "input_missing"
    assert "store.blob_url" in error["message"]


def test_a_run_reads_and_writes_objects_as_its_files(apart: Apart, s3_url: str) -> None:
    (apart.driver / "in.jsonl").write_text("".join(json.dumps({"n": row, "pad": ""}) + "\n" for row in range(20)))
    files.upload(apart.driver / "in.jsonl", f"{s3_url}-files/in.jsonl")
    command = [*COMMAND, "run", "pad", f"{s3_url}-files/in.jsonl", "-o", f"{s3_url}-files/out.jsonl", "--json"]
    done = subprocess.run(
        command, cwd=apart.driver, env=clean_environment() | apart.env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with files.open_read(f"{s3_url}-files/out.jsonl") as out:
        outputs = [json.loads(line)["output"]["n"] for line in out.read().splitlines()]
    assert outputs == list(range(20))
    assert files.expand(f"{s3_url}-files/*.jsonl")[0] == [f"{s3_url}-files/in.jsonl", f"{s3_url}-files/out.jsonl"]

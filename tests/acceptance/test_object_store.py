"""A gateway, a worker and a run driver that share Redis and a bucket but no folder: real processes, a real S3 server."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.broker.blobs.files import BlobStore, BlobsUnavailable
from penstock.broker.blobs.opening import open_blobs
from penstock.embedded.server import EmbeddedServer
from penstock.job import BlobLocation
from penstock.runs import files
from tests.acceptance.gateway_process import gateway_process
from tests.acceptance.test_cli import clean_environment
from tests.acceptance.warm_command import run_command
from tests.eventually import eventually
from tests.faults.proxy import Proxy
from tests.integration.worker_process import WorkerProcess
from tests.s3_server import BUCKET

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
JOBS, JOB_PAD = 60, "j" * 40_000
ROWS, ROW_PAD = 200, "r" * 2_000


@dataclass
class Apart:
    """A gateway, a worker and a run driver, each in a folder of its own, and the `link` between the worker and S3."""

    client: httpx2.Client
    worker: WorkerProcess
    folder: Path
    s3_url: str
    env: dict[str, str]
    link: Proxy

    @property
    def driver(self) -> Path:
        return self.folder / "driver"

    @property
    def blobs(self) -> BlobStore:
        return open_blobs(BlobLocation(self.folder, self.s3_url))

    def submit(self, number: int, *, gate: Path | None = None) -> str:
        order = {"n": number, "pad": JOB_PAD, **({"gate": str(gate)} if gate else {})}
        answer = self.client.post("/v1/models/pad/jobs", json=order)
        assert answer.status_code == 202, answer.text
        job: str = answer.json()["id"]
        return job

    def status(self, job: str) -> str:
        return str(self.client.get(f"/v1/jobs/{job}").json()["status"])

    def result(self, job: str) -> Any:
        answer = self.client.get(f"/v1/jobs/{job}/result")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def ended(self) -> int:
        """The number of jobs that have succeeded since the gateway's store began."""
        text = self.client.get("/metrics").text
        lines = [line for line in text.splitlines() if line.startswith('penstock_jobs_total{model="pad",status="succeeded"}')]
        return sum(int(float(line.split()[-1])) for line in lines)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`penstock run` with the model, as the driver."""
        return run_command(("run", "pad", *arguments, "--json"), folder=self.driver, env=clean_environment() | self.env)


@pytest.fixture(scope="module")
def apart(has_server: None, s3_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart]:
    """One stack for all tests: each has jobs and files of its own. The lease is the default: the bucket's library retries for
    two seconds, and the slot cannot renew its lease meanwhile.
    """
    folder, s3_url = tmp_path_factory.mktemp("apart"), f"s3://{BUCKET}/{os.urandom(6).hex()}"
    for name in ("gateway", "worker", "driver"):
        (folder / name).mkdir()
    source = folder / "worker" / "pad.py"
    source.write_text(MODEL)
    models = {"pad": {"source": f"{source}:Pad"}}
    env = {**s3_environment, "PENSTOCK_STORE__BLOB_URL": s3_url}
    link = Proxy(int(s3_environment["AWS_ENDPOINT"].rpartition(":")[2]))
    link.start()
    theirs = env | {"AWS_ENDPOINT": f"http://127.0.0.1:{link.port}"}
    with (
        pytest.MonkeyPatch.context() as patched,
        EmbeddedServer(folder / "store", fsync="everysec") as server,
        gateway_process(server.url, folder / "gateway", models=models, env=env) as client,
        WorkerProcess(server.url, folder / "worker", models, theirs) as worker,
    ):
        for name, value in s3_environment.items():
            patched.setenv(name, value)
        worker.await_ready()
        yield Apart(client, worker, folder, s3_url, env | {"PENSTOCK_REDIS_URL": server.url}, link)
    link.stop()


def test_jobs_and_a_run_lose_nothing_when_the_worker_is_killed_and_no_folder_is_shared(apart: Apart) -> None:
    rows = "".join(json.dumps({"n": row, "pad": ROW_PAD}) + "\n" for row in range(ROWS))
    (apart.driver / "in.jsonl").write_text(rows)
    before, gate = apart.ended(), apart.driver / "open"
    with ThreadPoolExecutor(8) as threads:
        run = threads.submit(apart.run, "in.jsonl", "-o", "out.jsonl", "--shard-rows", "25")
        jobs = dict(zip(threads.map(apart.submit, range(JOBS - 1)), range(JOBS - 1), strict=True))
        gated = apart.submit(JOBS - 1, gate=gate)
        jobs[gated] = JOBS - 1
        eventually(lambda: apart.ended() >= before + 10, timeout_s=60.0)
        apart.worker.kill()
        killed_at = apart.ended() - before
        assert apart.status(gated) != "succeeded", "nothing would be left to recover"
        gate.touch()
        apart.worker.start()
        done = run.result(60.0)
    assert done.returncode == 0, done.stdout + done.stderr
    eventually(lambda: all(apart.status(job) == "succeeded" for job in jobs), timeout_s=60.0)
    results = {job: apart.result(job) for job in jobs}
    assert {job: (result["n"], result["size"], len(result["pad"])) for job, result in results.items()} == {
        job: (number, len(JOB_PAD), 3 * len(JOB_PAD)) for job, number in jobs.items()
    }
    outputs = [json.loads(line)["output"] for line in (apart.driver / "out.jsonl").read_text().splitlines()]
    assert [(output["n"], output["pad"]) for output in outputs] == [(row, 3 * ROW_PAD) for row in range(ROWS)]

    assert list(apart.folder.rglob("*.in")) == list(apart.folder.rglob("*.out")) == []
    eventually(lambda: list((apart.folder / "worker" / "state" / "blob-copies").rglob("*.in.*")) == [])
    # What the killed worker had not deleted yet goes with the records.
    eventually(lambda: sum(name.endswith(".in") for name, _ in apart.blobs.names()) <= killed_at, timeout_s=60.0)


def test_a_worker_whose_bucket_is_away_waits_with_inputs_and_results_and_loses_none(apart: Apart) -> None:
    # On a busy machine a batch once ran twice: the bucket's library retried for 26 s, and the slot's lease expired meanwhile.
    before, gate = apart.ended(), apart.driver / "away"
    jobs = [apart.submit(number, gate=gate if number == 39 else None) for number in range(40)]
    eventually(lambda: apart.ended() >= before + 8, timeout_s=60.0)
    apart.link.refuse()
    gate.touch()
    told = eventually(lambda: apart.worker.events("blobs_away") + apart.worker.events("store_away"), timeout_s=60.0)
    assert apart.ended() < before + len(jobs), "nothing would be left to wait"
    assert "test-secret" not in json.dumps(told)
    apart.link.heal()
    eventually(lambda: apart.ended() == before + len(jobs), timeout_s=60.0)
    assert [apart.result(job)["n"] for job in jobs] == list(range(40))
    assert [apart.client.get(f"/v1/jobs/{job}").json()["attempts"] for job in jobs] == [1] * 40, "nothing ran twice"


def test_a_job_whose_object_is_gone_fails_and_says_where_it_was_looked_for(apart: Apart) -> None:
    with apart.worker.standstill():
        job = apart.submit(1)
        apart.blobs.delete_all([f"{job.partition('-')[0]}.in"])
    eventually(lambda: apart.status(job) == "failed", timeout_s=60.0)
    error = apart.client.get(f"/v1/jobs/{job}").json()["error"]
    assert error["code"] == "input_missing"
    assert "store.blob_url" in error["message"]


def test_a_run_reads_and_writes_objects_as_its_files(apart: Apart) -> None:
    (apart.driver / "few.jsonl").write_text("".join(json.dumps({"n": row, "pad": ""}) + "\n" for row in range(20)))
    place = f"{apart.s3_url}-files"
    files.upload(apart.driver / "few.jsonl", f"{place}/in.jsonl")
    done = apart.run(f"{place}/in.jsonl", "-o", f"{place}/out.jsonl")
    assert done.returncode == 0, done.stdout + done.stderr
    with files.open_read(f"{place}/out.jsonl") as out:
        outputs = [json.loads(line)["output"]["n"] for line in out.read().splitlines()]
    assert outputs == list(range(20))
    assert files.expand(f"{place}/*.jsonl")[0] == [f"{place}/in.jsonl", f"{place}/out.jsonl"]


def test_a_bucket_that_does_not_exist_is_said_in_a_line(apart: Apart) -> None:
    """Regression: 27 lines of the library's debug output, which ended with "this is a bug"."""
    (apart.driver / "one.jsonl").write_text('{"n": 1, "pad": ""}\n')
    for arguments in (("s3://no-such-bucket/in.jsonl", "-o", "no.jsonl"), ("one.jsonl", "-o", "s3://no-such-bucket/no.jsonl")):
        done = apart.run(*arguments)
        error = json.loads(done.stdout.splitlines()[-1])["error"]
        assert (done.returncode, error["code"]) == (1, "io_error"), done.stdout + done.stderr
        assert error["message"].startswith("the object store: there is no such bucket; check")
    nowhere = open_blobs(BlobLocation(apart.folder, "s3://no-such-bucket/x"))
    with pytest.raises(BlobsUnavailable, match="there is no such bucket"):
        nowhere.put(f"{'0' * 26}.in", b"1")

"""A model with two partitions, through HTTP and the command: every job is found, listed, run and counted over both."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.broker.partitions import partition_of_key
from penstock.broker.store.sync import RedisStore
from penstock.extensions.webhooks.webhook import new_signing_key
from penstock.job import new_serial, parse_job_id, queues_of
from tests.acceptance.gateway_process import gateway_process
from tests.command import called_here
from tests.eventually import eventually
from tests.integration.worker_process import PACED, Gate, WorkerProcess
from tests.webhook_receiver import Receiver, receiver

MODELS: dict[str, dict[str, Any]] = {
    "paced": {"source": PACED, "max_batch_size": 4, "slots": 2, "partitions": 2},
    "grown": {"source": PACED},
}
JOBS = 24


@pytest.fixture(scope="module")
def worker(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    with WorkerProcess(redis_url, tmp_path_factory.mktemp("worker"), MODELS) as process:
        process.await_ready()
        yield process


@pytest.fixture(scope="module")
def hooks() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


@pytest.fixture(scope="module")
def client(
    redis_url: str, worker: WorkerProcess, hooks: Receiver, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx2.Client]:
    env = {"PENSTOCK_WEBHOOKS__SIGNING_KEYS": new_signing_key(), "PENSTOCK_WEBHOOKS__URLS": hooks.url}
    with gateway_process(redis_url, tmp_path_factory.mktemp("gateway"), models=MODELS, env=env) as client:
        eventually(lambda: client.get("/readyz").status_code == 200, timeout_s=60.0)
        yield client


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(tmp_path / "gate")
    yield gate
    gate.open()


# Where jobs end as fast as they come, those without a key may all go to one partition for a moment: depths are looked up four
# times a second. Random keys spread.


def submitted(client: httpx2.Client, order: Any, *, key: str = "", model: str = "paced", **params: str) -> str:
    headers = {"idempotency-key": key} if key else {}
    answer = client.post(f"/v1/models/{model}/jobs", json=order, params=params, headers=headers)
    assert answer.status_code == 202, answer.text
    job: str = answer.json()["id"]
    return job


def ended(client: httpx2.Client, job: str) -> Any:
    return client.get(f"/v1/jobs/{job}/result", params={"wait": 30}).json()


def partitions(jobs: list[str]) -> Counter[int]:
    return Counter(parse_job_id(job).partition for job in jobs)


def listed(client: httpx2.Client, **params: Any) -> list[str]:
    found: list[str] = []
    page = client.get("/v1/jobs", params=params).json()
    while True:
        found += [job["id"] for job in page["data"]]
        if not page.get("next_after"):
            return found
        page = client.get("/v1/jobs", params={**params, "after": page["next_after"]}).json()


def test_jobs_go_to_both_partitions_and_each_is_read_under_its_id(client: httpx2.Client) -> None:
    jobs = [submitted(client, {"tag": number}) for number in range(JOBS)]
    assert set(partitions(jobs)) == {0, 1}
    assert [ended(client, job) for job in jobs] == list(range(JOBS))
    assert client.get(f"/v1/jobs/{jobs[0]}").json()["status"] == "succeeded"
    answers = {client.post("/predictions/paced", json={"tag": number}).json() for number in range(JOBS)}
    assert answers == set(range(JOBS)), "callers who wait are answered from both"


def test_a_list_is_in_order_over_both_partitions_page_by_page(client: httpx2.Client) -> None:
    tag = f"t={new_serial()}"
    jobs = [submitted(client, {"tag": number}, key=new_serial(), tags=tag) for number in range(JOBS)]
    assert set(partitions(jobs)) == {0, 1}
    for params in ({"tag": tag}, {"tag": tag, "model": "paced"}):
        assert listed(client, limit=7, **params) == jobs[::-1]


def test_a_repeat_under_an_idempotency_key_meets_its_first_job(client: httpx2.Client) -> None:
    keys = [f"key-{number}" for number in range(8)]
    assert {partition_of_key("", key, 2) for key in keys} == {0, 1}
    first = [submitted(client, {"tag": key}, key=key) for key in keys]
    assert [parse_job_id(job).partition for job in first] == [partition_of_key("", key, 2) for key in keys]
    assert [submitted(client, {"tag": key}, key=key) for key in keys] == first
    other = client.post("/v1/models/paced/jobs", json={"tag": "another"}, headers={"idempotency-key": keys[0]})
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")


def test_the_depth_is_the_sum_and_a_tag_is_cancelled_in_both(client: httpx2.Client, gate: Gate) -> None:
    tag = f"t={new_serial()}"
    jobs = [submitted(client, gate.held(number), tags=tag) for number in range(30)]
    assert set(partitions(jobs)) == {0, 1}

    def counted() -> int:
        queue = client.get("/v1/queues/paced").json()
        assert queue["priorities"]["interactive"]["depth"] == queue["depth"]
        depth: int = queue["depth"] + queue["in_flight"]
        return depth

    assert eventually(lambda: counted() == len(jobs))
    done = client.post("/v1/jobs:cancel", params={"tag": tag})
    assert done.status_code == 202
    assert done.json()["cancelled"] + done.json()["requested"] == len(jobs)
    gate.open()
    states = eventually(
        lambda: (s := [client.get(f"/v1/jobs/{job}").json()["status"] for job in jobs]) and not {*s} - {"cancelled"}
    )
    assert states
    assert eventually(lambda: counted() == 0)


def test_events_of_both_are_delivered_and_looked_up_by_the_jobs_id(client: httpx2.Client, hooks: Receiver) -> None:
    jobs = [submitted(client, {"tag": number}, key=new_serial(), webhook=f"{hooks.url}ended") for number in range(JOBS)]
    assert set(partitions(jobs)) == {0, 1}
    eventually(lambda: len(hooks.of("/ended")) == len(jobs))
    assert {json.loads(got.body)["data"]["id"] for got in hooks.of("/ended")} == set(jobs)
    logs = [client.get(f"/v1/jobs/{job}/deliveries").json() for job in jobs]
    assert [(log["id"], log["event"]) for log in logs] == [(job, "job.succeeded") for job in jobs]


def test_failed_jobs_of_both_are_in_the_inbox_and_are_replayed_where_they_lie(client: httpx2.Client) -> None:
    jobs = [submitted(client, {"no": "tag"}, key=new_serial()) for _ in range(JOBS)]
    assert set(partitions(jobs)) == {0, 1}
    for job in jobs:
        ended(client, job)
    page = client.get("/ui/failed", params={"model": "paced"}).text
    assert f"{len(jobs)} jobs in 1 group" in page
    for job in jobs[:6]:
        again = client.post(f"/v1/jobs/{job}/replay").json()
        assert parse_job_id(again["id"]).partition == parse_job_id(job).partition
        assert again["replay_of"] == job


def test_a_number_that_is_raised_holds_at_once_for_workers_with_the_old_settings(client: httpx2.Client, redis_url: str) -> None:
    assert partitions([submitted(client, {"tag": 1}, model="grown") for _ in range(4)]) == {0: 4}
    store = RedisStore(redis_url)
    found = store.stored_models()["grown"]
    assert found.info is not None
    # As the first worker or gateway with the new settings writes it.
    assert store.swap_model("grown", found, replace(found.info, partitions=2, held=2))
    store.close()

    def reached() -> str:
        job = submitted(client, {"tag": "new"}, model="grown")
        return job if parse_job_id(job).partition else ""

    job = eventually(reached)
    assert ended(client, job) == "new"


def test_metrics_count_both(client: httpx2.Client, redis_url: str) -> None:
    store = RedisStore(redis_url)
    accepted = sum(store.stats(queue).accepted for queue in queues_of("paced", 2))
    store.close()
    lines = client.get("/metrics").text.splitlines()
    [line] = [line for line in lines if line.startswith('penstock_jobs_accepted_total{model="paced"}')]
    assert float(line.rpartition(" ")[2]) == accepted > JOBS


def test_a_run_by_the_command_uses_both_and_keeps_the_order(client: httpx2.Client, redis_url: str, tmp_path: Path) -> None:
    rows = [{"tag": number} for number in range(500)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    store = RedisStore(redis_url)
    before = [store.stats(queue).accepted for queue in queues_of("paced", 2)]
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PENSTOCK_REDIS_URL": redis_url}
    done = called_here("run", "paced", "in.jsonl", "-o", "out.jsonl", cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    outputs = [json.loads(line)["output"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert outputs == [row["tag"] for row in rows]
    after = [store.stats(queue).accepted for queue in queues_of("paced", 2)]
    store.close()
    assert all(now > then for now, then in zip(after, before, strict=True))


def test_a_worker_killed_by_sigkill_costs_no_job_of_either_partition(
    client: httpx2.Client, worker: WorkerProcess, gate: Gate
) -> None:
    jobs = [submitted(client, gate.held(number)) for number in range(JOBS)]
    eventually(lambda: gate.begun(worker) >= 2)
    worker.kill()
    gate.open()
    worker.start()
    assert [ended(client, job) for job in jobs] == list(range(JOBS))
    assert set(partitions(jobs)) == {0, 1}


def test_a_number_that_was_lowered_while_jobs_wait_is_an_error_and_costs_no_job(
    client: httpx2.Client, redis_url: str, worker: WorkerProcess, gate: Gate, tmp_path: Path
) -> None:
    """And a repeat still finds its first job, wherever that lies."""
    jobs = [submitted(client, gate.held(number), key=f"lowered-{number}") for number in range(JOBS)]
    assert set(partitions(jobs)) == {0, 1}
    worker.kill()
    lowered = {"paced": {**MODELS["paced"], "partitions": 1}}
    with (
        WorkerProcess(redis_url, tmp_path / "lowered", lowered) as process,
        gateway_process(redis_url, tmp_path / "gateway", models=lowered) as other,
    ):
        process.await_ready()
        [told] = eventually(lambda: process.events("partitions_still_in_use"))
        assert (told["model"], told["partitions"], told["were"]) == ("paced", 1, 2)
        assert "nothing is lost" in told["hint"]

        def lower() -> list[str]:
            found = [submitted(other, {"tag": number}) for number in range(8)]
            return found if partitions(found) == {0: 8} else []

        # The gateway reads the registry twice a second.
        new = eventually(lower)
        again = [submitted(other, gate.held(number), key=f"lowered-{number}") for number in range(JOBS)]
        assert again == jobs
        gate.open()
        assert [ended(other, job) for job in jobs] == list(range(JOBS))
        assert [ended(other, job) for job in new] == list(range(8))

"""A store that an earlier tree filled is served by this one: its records, the jobs that wait in it, and its runs."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.gateway_process import GatewayClient, gateway_process
from tests.eventually import eventually
from tests.integration.kept_store import GATEWAY, HOOK, MODELS, restore, submit
from tests.integration.worker_process import WorkerProcess
from tests.warm_process import start


@dataclass(frozen=True)
class Served:
    """The gateway, and the ids of the kept jobs and of the kept run by their story."""

    client: GatewayClient
    ids: dict[str, str]

    def job(self, story: str) -> dict[str, Any]:
        answer = self.client.get(f"/v1/jobs/{self.ids[story]}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def output(self, story: str) -> Any:
        eventually(lambda: self.job(story)["status"] == "succeeded", timeout_s=60.0)
        return self.client.get(f"/v1/jobs/{self.ids[story]}/result").json()


@pytest.fixture(scope="module")
def served(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("kept")
    ids = restore(redis_url, folder)
    with (
        gateway_process(
            redis_url, folder, models=MODELS, env={**GATEWAY, "PENSTOCK_RUNS__ROOTS": str(folder / "open")}
        ) as client,
        WorkerProcess(redis_url, folder / "worker", MODELS, {"PENSTOCK_STORE__STATE_DIR": str(folder)}) as worker,
    ):
        worker.await_ready()
        yield Served(client, ids)


def test_results_that_were_stored_are_read(served: Served) -> None:
    assert served.output("succeeded") == {"y": 9}


@pytest.mark.parametrize(("story", "y"), [("waiting", 49), ("waiting_large", 25), ("waiting_bulk", 64), ("delayed", 81)])
def test_jobs_that_waited_are_run(served: Served, story: str, y: int) -> None:
    assert served.output(story) == {"y": y}


def test_a_failed_job_is_in_the_inbox_and_can_be_replayed(served: Served) -> None:
    assert served.job("failed")["status"] == "failed"
    listed = served.client.get("/v1/failed").text
    assert served.ids["failed"] in listed
    answer = served.client.post(f"/v1/jobs/{served.ids['failed']}/replay")
    assert answer.status_code == 202, answer.text


def test_an_idempotency_key_still_names_its_job(served: Served) -> None:
    assert submit(served.client, {"x": 4}, key="kept-key") == served.ids["repeated"]


def test_tags_still_list_their_jobs(served: Served) -> None:
    listed = json.dumps(served.client.get("/v1/jobs?tag=kept").json())
    assert served.ids["succeeded"] in listed
    assert served.ids["waiting"] in listed


def test_the_event_of_an_ended_job_is_still_to_be_delivered(served: Served) -> None:
    answer = served.client.get(f"/v1/jobs/{served.ids['hooked']}/deliveries")
    assert answer.status_code == 200, answer.text
    assert HOOK in answer.text


def test_a_run_that_was_queued_is_driven(served: Served, redis_url: str, tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    run = f"/v1/runs/{served.ids['run']}"
    state_dir = str(Path(str(served.client.get(run).json()["input"])).parents[1])
    env |= {"PENSTOCK_REDIS_URL": redis_url, "PENSTOCK_STORE__STATE_DIR": state_dir, "PENSTOCK_MODELS": json.dumps(MODELS)}
    runner = start("penstock.runs", env={**env, "PENSTOCK_DIE_WITH_PARENT": "1"}, stdout=sys.stderr, stderr=sys.stderr)
    try:
        eventually(lambda: served.client.get(run).json()["status"] == "completed", timeout_s=60.0)
    finally:
        runner.send_signal(signal.SIGTERM)
        runner.wait(timeout=30.0)
    assert served.client.get(run).json()["progress"]["done"] == 5

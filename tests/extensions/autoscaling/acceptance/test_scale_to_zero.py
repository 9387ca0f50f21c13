"""What callers and autoscalers hear of a model without a worker, over HTTP. The workers are announced by the test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from penstock.model_spec import SlotInfo, WorkerInfo
from tests.acceptance.gateway_process import Hand, gateway_process
from tests.eventually import eventually

MODELS = {name: {"source": "square.py:Square"} for name in ("square", "text-a", "text-b")}


@pytest.fixture(scope="module")
def client(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    with gateway_process(redis_url, tmp_path_factory.mktemp("gateway"), models=MODELS) as client:
        yield client


def scaling(client: httpx2.Client, *models: str) -> dict[str, Any]:
    answer = client.get("/v1/scaling", params={"model": list(models)})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_gateway_without_workers_takes_jobs_and_says_so(client: httpx2.Client) -> None:
    assert client.get("/readyz").status_code == 503
    assert client.get("/readyz?workers=false").json() == {
        "status": "ready",
        "models": {name: {"ready_slots": 0, "devices": [], "providers": []} for name in MODELS},
    }


def test_a_job_and_a_caller_without_an_answer_are_each_worth_a_worker(client: httpx2.Client) -> None:
    assert scaling(client, "text-*")["work_s"] == 0.0
    accepted = client.post("/v1/models/text-a/jobs", json={"x": 4})
    assert accepted.status_code == 202
    assert "eta_s" not in accepted.json()
    assert 4 <= int(accepted.headers["retry-after"]) <= 6, "a guess, not a second"
    assert client.post("/predictions/text-b", json={"x": 4}).status_code == 503
    found = scaling(client, "text-*")
    assert found["work_s"] == 2.0
    assert [(row["model"], row["work_s"], row["depth"]) for row in found["data"]] == [("text-a", 1.0, 1), ("text-b", 1.0, 0)]
    text = client.get("/metrics").text
    assert 'penstock_queue_work_seconds{model="text-b"} 1.0' in text


def test_after_a_start_was_seen_a_202_says_when_its_job_will_have_run(client: httpx2.Client, redis_url: str) -> None:
    client.post("/v1/models/square/jobs", json={"x": 4})
    hand = Hand(redis_url)
    hand.store.announce_worker(WorkerInfo(hand.name, "here", os.getpid(), 0.0, (SlotInfo("square", "1", "loading"),)))
    eventually(lambda: "square: still loading" in client.get("/readyz").text)
    hand.announce()
    eventually(lambda: client.get("/v1/models/square").json()["ready"])
    for job in hand.claim().jobs:
        hand.finish(job)
    hand.store.withdraw_worker(hand.name)
    eventually(lambda: not client.get("/v1/models/square").json()["ready"])
    accepted = client.post("/v1/models/square/jobs", json={"x": 4})
    assert accepted.json()["eta_s"] > 0
    assert int(accepted.headers["retry-after"]) >= 1


def test_an_autoscaler_that_asks_for_a_model_that_is_none_is_told_so(client: httpx2.Client) -> None:
    answer = client.get("/v1/scaling", params={"model": "txt-a"})
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert client.get("/v1/scaling", params={"model": ["a"] * 101}).status_code == 400
    assert scaling(client, "none-*") == {"work_s": 0, "data": []}

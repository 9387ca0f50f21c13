"""Answer-now requests, and a stop while requests are open."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx2
import pytest

from penstock.model_spec import SlotInfo, WorkerInfo
from tests.acceptance.gateway_process import Hand, gateway_process
from tests.eventually import eventually

MODELS = {"square": {"source": "square.py:Square"}, "idle": {"source": "idle.py:Idle"}}


@pytest.fixture(scope="module")
def client(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    with gateway_process(redis_url, tmp_path_factory.mktemp("gateway"), models=MODELS) as client:
        yield client


@pytest.fixture
def hand(redis_url: str, client: httpx2.Client) -> Hand:
    hand = Hand(redis_url)
    hand.announce()
    for job in hand.claim().jobs:
        hand.finish(job)
    eventually(lambda: client.get("/v1/models/square").json()["ready"])
    return hand


def test_a_prediction_answers_with_the_output_the_job_and_its_timing(client: httpx2.Client, hand: Hand) -> None:
    with hand.serving():
        answer = client.post("/predictions/square", json={"x": 4})
    assert (answer.status_code, answer.json()) == (200, {"y": 16})
    assert client.get(f"/v1/jobs/{answer.headers['x-penstock-job']}").json()["status"] == "succeeded"
    timing = answer.headers["server-timing"].split(",")
    assert [item.split(";")[0].strip() for item in timing] == ["queue", "batch", "run", "total"]


def test_a_version_may_be_named(client: httpx2.Client, hand: Hand) -> None:
    with hand.serving():
        assert client.post("/predictions/square/1", json={"x": 4}).status_code == 200
    answer = client.post("/predictions/square/7", json={"x": 4})
    assert (answer.status_code, answer.json()["hint"]) == (404, "Its versions: 1.")


def test_a_model_without_a_live_worker_is_refused_here_but_queued_there(client: httpx2.Client, redis_url: str) -> None:
    answer = client.post("/predictions/idle", json={"x": 4})
    assert (answer.status_code, answer.json()["code"]) == (503, "no_worker")
    assert int(answer.headers["retry-after"]) >= 1
    assert client.post("/v1/models/idle/jobs", json={"x": 4}).status_code == 202


def test_a_deadline_that_the_model_forbids_is_refused_as_such_although_no_worker_is_there(client: httpx2.Client) -> None:
    # Regression: the answer was 503 with Retry-After, and the client repeated a request that can never succeed.
    answer = client.post("/predictions/idle?deadline_s=86399", json={"x": 4})
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")


def test_the_deadline_passes_with_a_504_that_names_the_job(client: httpx2.Client, hand: Hand) -> None:
    started = time.monotonic()
    answer = client.post("/predictions/square?deadline_s=0.3", json={"x": 4})
    # The deadline must be the requested one: the model's own deadline is a minute.
    assert 0.25 <= time.monotonic() - started < 20.0
    assert answer.status_code == 504
    assert answer.json()["job"].endswith("-square")


@pytest.mark.parametrize(("code", "status"), [("invalid_input", 422), ("handler_error", 500), ("oom", 507), ("timeout", 504)])
def test_a_failure_is_answered_by_its_code(client: httpx2.Client, hand: Hand, code: str, status: int) -> None:
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(client.post, "/predictions/square", json={"x": 4})
        hand.fail(hand.take(), code, "the reason")
        answer = asking.result(20.0)
    assert (answer.status_code, answer.json()["code"], answer.json()["detail"]) == (status, code, "the reason")


def test_a_client_that_hangs_up_cancels_its_job(client: httpx2.Client, hand: Hand) -> None:
    with pytest.raises(httpx2.ReadTimeout):
        client.post("/predictions/square", json={"x": 4}, timeout=2.0)
    newest: dict[str, str | int] = {"model": "square", "limit": 1}
    eventually(lambda: client.get("/v1/jobs", params=newest).json()["data"][0]["status"] == "cancelled")


def test_a_repeated_key_answers_with_the_first_jobs_output(client: httpx2.Client, hand: Hand) -> None:
    headers = {"Idempotency-Key": f"key-{time.time_ns()}"}
    with hand.serving():
        answers = [client.post("/predictions/square", json={"x": 4}, headers=headers) for _ in range(2)]
    assert [answer.json() for answer in answers] == [{"y": 16}, {"y": 16}]
    assert answers[0].headers["x-penstock-job"] == answers[1].headers["x-penstock-job"]


def test_a_stop_signal_answers_open_long_polls_and_predictions(redis_url: str, tmp_path: Path) -> None:
    hand = Hand(redis_url)
    hand.announce()
    answers: list[int] = []

    def ask(client: httpx2.Client, path: str) -> None:
        answers.append(client.get(path, params={"wait": "25"}).status_code)

    with gateway_process(redis_url, tmp_path, models=MODELS) as client:
        eventually(lambda: client.get("/v1/models/square").json()["ready"])
        job = client.post("/v1/models/square/jobs", json={"x": 4}).json()
        polls = [threading.Thread(target=ask, args=(client, job["links"][name])) for name in ("self", "result")]
        predicting = threading.Thread(
            target=lambda: answers.append(client.post("/predictions/square", json={"x": 4}).status_code)
        )
        for thread in (*polls, predicting):
            thread.start()
        claimed = [hand.take(), hand.take()]
        # All three requests have arrived before the signal: a request after the signal would find no server.
        eventually(lambda: in_flight(client) + len(answers) == 3)
        client.process.send_signal(signal.SIGTERM)
        for thread in polls:
            thread.join(20.0)
        for taken in claimed:
            hand.finish(taken)
        predicting.join(20.0)
    assert sorted(answers) == [200, 200, 202]


def in_flight(client: httpx2.Client) -> float:
    """The number of requests in progress, without the scrape itself."""
    [line] = [line for line in client.get("/metrics").text.splitlines() if line.startswith("penstock_http_requests_in_flight ")]
    return float(line.split()[1])


def _ready_text_has(client: httpx2.Client, why: str) -> bool:
    return why in client.get("/readyz").text


def test_a_model_that_loads_or_failed_to_is_not_said_to_lack_a_worker(client: httpx2.Client, redis_url: str) -> None:
    idle = Hand(redis_url, "idle")
    for state, error, why in (("loading", "", "still loading"), ("failed", "no weights", "could not be loaded: no weights")):
        slot = SlotInfo("idle", "1", state, error=error)
        idle.store.announce_worker(WorkerInfo(idle.name, "here", os.getpid(), 0.0, (slot,)))
        eventually(partial(_ready_text_has, client, why))
        answer = client.post("/predictions/idle", json={"x": 4})
        assert (answer.status_code, answer.json()["code"]) == (503, "no_worker")
        assert why in answer.json()["detail"]
    idle.store.announce_worker(WorkerInfo(idle.name, "here", os.getpid(), 0.0))

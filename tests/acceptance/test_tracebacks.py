"""Tracebacks of failed jobs: GET /v1/jobs/{id}/traceback, the client, `penstock jobs show --traceback`; for managers only."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import httpx2
import pytest

from penstock import Client
from penstock.broker.records import BatchStamp, Ending
from penstock.errors import NotFound
from penstock.gateway.auth.own_routes import OWN
from penstock.job import JobState
from tests.acceptance.gateway_process import Hand, gateway_process
from tests.command import called_here
from tests.eventually import eventually

MODELS = {"square": {"source": "square.py:Square"}}
RAISED = "Traceback (most recent call last):\n  File \"model.py\", line 4, in inference\nKeyError: 'größe'\n"


@pytest.fixture(scope="module")
def client(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    with gateway_process(redis_url, tmp_path_factory.mktemp("gateway"), models=MODELS) as client:
        yield client


@pytest.fixture
def hand(redis_url: str, client: httpx2.Client) -> Hand:
    hand = Hand(redis_url)
    hand.announce()
    eventually(lambda: client.get("/readyz").status_code == 200)
    for job in hand.claim().jobs:
        hand.finish(job)
    return hand


def failed(client: httpx2.Client, hand: Hand, traceback: str) -> str:
    client.post("/v1/models/square/jobs", json={"x": 4})
    job = hand.take()
    ending = Ending(job.id, job.token, JobState.FAILED, error_code="handler_error", error_message="no", traceback=traceback)
    hand.store.finish([ending], worker=hand.name, stamp=BatchStamp("b1"))
    return str(job.id)


def test_a_kept_traceback_is_read_and_stands_nowhere_else(client: httpx2.Client, hand: Hand) -> None:
    job = failed(client, hand, RAISED)
    answer = client.get(f"/v1/jobs/{job}/traceback")
    assert (answer.status_code, answer.text) == (200, RAISED)
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    for path in (f"/v1/jobs/{job}", f"/v1/jobs/{job}/result", f"/v1/jobs/{job}/timeline", "/v1/jobs"):
        assert "model.py" not in client.get(path).text
    with Client(str(client.base_url)) as ours:
        assert ours.traceback(job) == RAISED


def test_a_job_without_one_says_how_to_get_one(client: httpx2.Client, hand: Hand) -> None:
    job = failed(client, hand, "")
    answer = client.get(f"/v1/jobs/{job}/traceback")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert "keep_tracebacks = true in [models.square]" in answer.json()["hint"]
    with Client(str(client.base_url)) as ours, pytest.raises(NotFound):
        ours.traceback(job)


def test_the_command_shows_it(client: httpx2.Client, hand: Hand) -> None:
    env = {**os.environ, "PENSTOCK_URL": str(client.base_url)}
    job = failed(client, hand, RAISED)
    assert called_here("jobs", "show", job, "--traceback", env=env).stdout.endswith(RAISED)
    assert json.loads(called_here("jobs", "show", job, "--traceback", "--json", env=env).stdout)["traceback"] == RAISED
    assert "model.py" not in called_here("jobs", "show", job, env=env).stdout
    without = called_here("jobs", "show", failed(client, hand, ""), "--traceback", env=env)
    assert without.returncode != 0
    assert "no traceback" in without.stderr


def test_only_who_manages_the_gateway_may_read_it() -> None:
    assert OWN.roles_of("GET", "/v1/jobs/{job_id}/traceback") == OWN.roles_of("GET", "/v1/workers")

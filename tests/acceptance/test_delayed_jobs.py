"""Jobs with a start, over HTTP and through the client: stored at once, run when their time has come, never before."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest

from penstock import Client
from penstock.broker.records import ClaimedJob
from penstock.client.views import JobView
from penstock.errors import BadRequest
from penstock.job import new_serial, parse_job_id
from tests.acceptance.gateway_process import Hand, gateway_process
from tests.command import called_here
from tests.eventually import eventually

MODELS = {"square": {"source": "square.py:Square", "max_queue_depth": 20, "deadline_s": 600}}
JOBS = "/v1/models/square/jobs"


@pytest.fixture(scope="module")
def client(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    with gateway_process(redis_url, tmp_path_factory.mktemp("gateway"), models=MODELS) as client:
        yield client


@pytest.fixture
def hand(redis_url: str, client: httpx2.Client) -> Iterator[Hand]:
    hand = Hand(redis_url)
    hand.announce()
    eventually(lambda: client.get("/readyz").status_code == 200)
    yield hand
    for job in client.get("/v1/jobs", params={"status": "queued"}).json()["data"]:
        client.delete(f"/v1/jobs/{job['id']}")


def submitted(client: httpx2.Client, **params: Any) -> dict[str, Any]:
    answer = client.post(JOBS, json={"x": 4}, params=params)
    assert answer.status_code == 202, answer.text
    job: dict[str, Any] = answer.json()
    return job


def read(client: httpx2.Client, job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = client.get(job["links"]["self"]).json()
    return found


def claimed(hand: Hand, job_id: str) -> ClaimedJob:
    """Sweep, as workers do each second, until the job can be claimed."""

    def look() -> ClaimedJob | None:
        hand.store.sweep("square")
        return next((job for job in hand.claim().jobs if str(job.id) == job_id), None)

    return eventually(look)


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_a_job_with_a_delay_is_accepted_and_says_when_it_starts(client: httpx2.Client, hand: Hand) -> None:
    accepted = submitted(client, delay_s=3_600)
    assert accepted["status"] == "queued"
    assert accepted["eta_s"] == 3_600.0
    assert "position" not in accepted
    job = read(client, accepted)
    assert moment(job["not_before"]) - moment(job["created_at"]) == pytest.approx(3_600.0)
    # The model's limit of 600 s counts from the start.
    assert moment(job["deadline_at"]) - moment(job["not_before"]) == pytest.approx(600.0)
    assert (job["status"], "position" in job) == ("queued", False)
    timeline = client.get(job["links"]["timeline"]).json()
    assert timeline["slowest"] == "delay"
    assert client.get("/v1/queues/square").json()["delayed"] == 1
    assert client.get("/v1/queues/square").json()["depth"] == 0


def test_a_job_runs_when_its_time_has_come_and_not_before(client: httpx2.Client, hand: Hand) -> None:
    accepted = submitted(client, delay_s=0.3)
    hand.finish(claimed(hand, accepted["id"]))
    job = read(client, accepted)
    assert job["status"] == "succeeded"
    assert moment(job["started_at"]) >= moment(job["not_before"])


def test_a_start_is_by_the_stores_clock(client: httpx2.Client, hand: Hand) -> None:
    start = datetime.fromtimestamp(hand.store.now() + 3_600.0, UTC)
    for text in (start.isoformat(), f"{start.timestamp():.3f}"):
        job = read(client, submitted(client, not_before=text))
        assert moment(job["not_before"]) == pytest.approx(start.timestamp(), abs=5.0)
        assert moment(job["not_before"]) >= start.timestamp() - 0.002


def test_a_start_in_the_past_is_now(client: httpx2.Client, hand: Hand) -> None:
    job = read(client, submitted(client, not_before="2020-01-01T00:00:00Z"))
    assert "not_before" not in job
    assert job["position"] == 0


def test_a_job_that_waits_for_its_start_can_be_cancelled(client: httpx2.Client, hand: Hand) -> None:
    job = submitted(client, delay_s=3_600)
    assert client.delete(job["links"]["self"]).json()["status"] == "cancelled"


def test_a_deadline_before_the_start_is_refused(client: httpx2.Client, hand: Hand) -> None:
    refused = client.post(JOBS, json={"x": 4}, params={"delay_s": 60, "deadline_s": 30})
    assert (refused.status_code, refused.json()["code"]) == (400, "bad_request")
    assert "the deadline comes before the start" in refused.json()["detail"]
    assert client.post(JOBS, json={"x": 4}, params={"delay_s": 60, "deadline_s": 661}).status_code == 400
    assert submitted(client, delay_s=60, deadline_s=660)["status"] == "queued"


def test_a_prediction_takes_no_delay(client: httpx2.Client, hand: Hand) -> None:
    for params in ({"delay_s": "60"}, {"not_before": f"{hand.store.now() + 60.0:.3f}"}):
        refused = client.post("/predictions/square", json={"x": 4}, params=params)
        assert refused.status_code == 400
        assert "/v1/models/square/jobs?delay_s=" in refused.json()["hint"]


def test_later_jobs_have_the_same_limit_and_do_not_keep_out_those_of_now(client: httpx2.Client, hand: Hand) -> None:
    for _ in range(20):
        submitted(client, delay_s=3_600)
    refused = client.post(JOBS, json={"x": 4}, params={"delay_s": 3_600})
    assert (refused.status_code, refused.json()["code"]) == (429, "overloaded")
    assert "with a later start included: the limit is 20" in refused.json()["detail"]
    now = submitted(client)
    assert now["position"] == 0
    assert read(client, now)["position"] == 0


def test_many_jobs_take_one_start(client: httpx2.Client, hand: Hand) -> None:
    answer = client.post(f"{JOBS}:batch", json=[{"x": 1}, {"x": 2}], params={"delay_s": 3_600})
    assert answer.status_code == 202
    rows = answer.json()["data"]
    assert [row["eta_s"] for row in rows] == [3_600.0] * 2
    assert all("not_before" in read(client, row) for row in rows)
    assert client.post(f"{JOBS}:batch", json=[{"x": 1}], params={"not_before": "soon"}).status_code == 400


def test_the_client_submits_with_a_start(client: httpx2.Client, hand: Hand) -> None:
    with Client(str(client.base_url)) as ours:
        views: list[JobView] = [
            ours.submit("square", {"x": 1}, delay_s=3_600.0).refresh(),
            ours.submit("square", {"x": 1}, not_before=datetime.now(UTC) + timedelta(hours=1)).refresh(),
            ours.submit("square", {"x": 1}, not_before=hand.store.now() + 3_600.0).refresh(),
            ours.submit_many("square", [{"x": 1}], delay_s=3_600.0)[0].refresh(),
        ]
        assert all(view.not_before is not None and view.status == "queued" for view in views)
        with pytest.raises(BadRequest, match="no offset"):
            ours.submit("square", {"x": 1}, not_before=datetime(2030, 1, 1))  # noqa: DTZ001 - what a caller forgets


def test_the_command_takes_a_start_and_the_list_shows_it(client: httpx2.Client, hand: Hand) -> None:
    env = {**os.environ, "PENSTOCK_URL": str(client.base_url)}
    called = called_here("call", "square", '{"x": 4}', "--async", "--delay", "3600", env=env)
    job = called.stdout.strip()
    assert f"{job}  square  delayed until" in called_here("jobs", "list", env=env).stdout
    assert "delayed until" in called_here("jobs", "show", job, env=env).stdout
    far = called_here("call", "square", '{"x": 4}', "--not-before", "2099-12-24T18:00:00+01:00", env=env)
    assert "not_before lies" in far.stderr
    assert called_here("call", "square", '{"x": 4}', "--not-before", "2099-12-24", env=env).returncode == 2


def test_the_pages_say_until_when_a_job_is_delayed(client: httpx2.Client, hand: Hand) -> None:
    job = submitted(client, delay_s=3_600)
    assert "starts in 1 h" in client.get("/ui/jobs").text or "starts in 59 min" in client.get("/ui/jobs").text
    assert "Delayed until" in client.get(f"/ui/jobs/{job['id']}").text


def test_a_job_with_a_start_survives_in_the_store_as_any_job_does(client: httpx2.Client, hand: Hand) -> None:
    """A repeat with the same key finds the job, and its start stays as it was."""
    headers = {"idempotency-key": new_serial(), "content-type": "application/json"}
    first, second = (client.post(JOBS, content=json.dumps({"x": 4}), params={"delay_s": 3_600}, headers=headers) for _ in "ab")
    assert first.json()["id"] == second.json()["id"]
    assert hand.store.read(parse_job_id(first.json()["id"])) is not None

"""Tags over HTTP, through the client and the command: jobs are found, and cancelled, by the words that they were given."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from penstock import Client
from penstock.client.views import CancelledJobs
from penstock.errors import BadRequest
from penstock.gateway.jobs.job_list import MAX_READ
from penstock.job import new_serial
from tests.acceptance.gateway_process import Hand, gateway_process
from tests.command import called_here
from tests.eventually import eventually

MODELS = {"square": {"source": "square.py:Square"}, "cube": {"source": "square.py:Square"}}


@pytest.fixture(scope="module")
def client(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    with gateway_process(redis_url, tmp_path_factory.mktemp("gateway"), models=MODELS) as client:
        yield client


@pytest.fixture
def hand(redis_url: str, client: httpx2.Client) -> Iterator[Hand]:
    hand = Hand(redis_url)
    hand.announce()
    eventually(lambda: client.get("/v1/models/square").json()["versions"]["1"]["loaded"])
    yield hand
    for job in hand.claim(1_000).jobs:
        hand.finish(job)


@pytest.fixture
def tag() -> str:
    """Return a tag that no other test uses."""
    return f"t={new_serial()}"


def submitted(client: httpx2.Client, tags: str, *, model: str = "square") -> str:
    answer = client.post(f"/v1/models/{model}/jobs", json={"x": 4}, params={"tags": tags} if tags else {})
    assert answer.status_code == 202, answer.text
    assert answer.json().get("tags", []) == (tags.split(",") if tags else [])
    job: str = answer.json()["id"]
    return job


def listed(client: httpx2.Client, **params: Any) -> list[str]:
    return [job["id"] for job in client.get("/v1/jobs", params=params).json()["data"]]


def cancelled(client: httpx2.Client, **params: Any) -> dict[str, Any]:
    answer = client.post("/v1/jobs:cancel", params=params)
    assert answer.status_code == 202, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_jobs_are_found_by_their_tags(client: httpx2.Client, hand: Hand, tag: str) -> None:
    first, second = submitted(client, f"{tag},nightly"), submitted(client, tag)
    other = submitted(client, "", model="cube")
    elsewhere = submitted(client, tag, model="cube")
    assert client.get(f"/v1/jobs/{first}").json()["tags"] == [tag, "nightly"]
    assert "tags" not in client.get(f"/v1/jobs/{other}").json()
    assert listed(client, tag=tag) == [elsewhere, second, first]
    assert listed(client, tag=tag, model="square") == [second, first]
    assert listed(client, tag=tag, status="succeeded") == []
    assert listed(client, tag=f"{tag}-2") == []
    page = client.get("/v1/jobs", params={"tag": tag, "limit": 2}).json()
    assert page["has_more"]
    assert listed(client, tag=tag, after=page["next_after"]) == [first]


def test_a_tag_that_cannot_be_one_is_refused(client: httpx2.Client, hand: Hand) -> None:
    for tags in ("a b", "", "a,", "x" * 65, "grün", ",".join(f"t{number}" for number in range(9))):
        refused = client.post("/v1/models/square/jobs", json={"x": 4}, params={"tags": tags})
        assert (refused.status_code, refused.json()["code"]) == (400, "bad_request"), tags
    assert client.get("/v1/jobs", params={"tag": "a,b"}).status_code == 400
    assert client.post("/v1/jobs:cancel", params={"tag": "a,b"}).status_code == 400
    assert client.post("/v1/jobs:cancel").status_code == 400


def test_a_tag_is_kept_once(client: httpx2.Client, hand: Hand, tag: str) -> None:
    answer = client.post("/v1/models/square/jobs", json={"x": 4}, params={"tags": f"{tag},{tag}"})
    assert answer.json()["tags"] == [tag]


def test_the_jobs_of_a_tag_are_cancelled_and_no_others(client: httpx2.Client, hand: Hand, tag: str) -> None:
    running = submitted(client, tag)
    hand.claim()
    delayed = client.post("/v1/models/square/jobs", json={"x": 4}, params={"tags": tag, "delay_s": 3_600}).json()["id"]
    waiting, other, elsewhere = submitted(client, tag), submitted(client, ""), submitted(client, tag, model="cube")
    assert cancelled(client, tag=tag, model="square") == {"cancelled": 2, "requested": 1, "has_more": False}
    statuses = {job: client.get(f"/v1/jobs/{job}").json() for job in (running, delayed, waiting, other, elsewhere)}
    assert [found["status"] for found in statuses.values()] == ["running", "cancelled", "cancelled", "queued", "queued"]
    assert statuses[running]["cancel_requested"]
    assert cancelled(client, tag=tag) == {"cancelled": 1, "requested": 1, "has_more": False}
    assert cancelled(client, tag=f"{tag}-2") == {"cancelled": 0, "requested": 0, "has_more": False}


def test_more_jobs_than_one_request_looks_at_are_cancelled_in_several(client: httpx2.Client, hand: Hand, tag: str) -> None:
    count = MAX_READ + 20
    body = [{"x": x} for x in range(count)]
    answer = client.post("/v1/models/square/jobs:batch", json=body, params={"tags": tag})
    assert answer.json()["data"][0]["tags"] == [tag]
    first = cancelled(client, tag=tag)
    assert (first["cancelled"], first["has_more"]) == (MAX_READ, True)
    with Client(str(client.base_url)) as ours:
        assert ours.cancel_tagged(tag) == CancelledJobs(20, 0)


def test_the_client_submits_lists_and_cancels_by_tag(client: httpx2.Client, hand: Hand, tag: str) -> None:
    with Client(str(client.base_url)) as ours:
        handle = ours.submit("square", {"x": 4}, tags=[tag, "b"])
        assert handle.view.tags == (tag, "b")
        many = ours.submit_many("square", [{"x": 1}, {"x": 2}], tags=[tag])
        assert [job.id for job in ours.jobs(tag=tag, limit=2)] == [many[1].id, many[0].id, handle.id]
        assert ours.cancel_tagged(tag, model="square") == CancelledJobs(cancelled=3, requested=0)
        for wrong in ("nightly", ["a,b"]):
            with pytest.raises(BadRequest, match="list of words"):
                ours.submit("square", {"x": 4}, tags=wrong)


def test_the_command_submits_lists_and_cancels_by_tag(client: httpx2.Client, hand: Hand, tag: str) -> None:
    env = {**os.environ, "PENSTOCK_URL": str(client.base_url)}
    job = called_here("call", "square", '{"x": 4}', "--async", "--tag", tag, "--tag", "b", env=env).stdout.strip()
    listing = called_here("jobs", "list", "--tag", tag, "--json", env=env).stdout
    assert [json.loads(line)["id"] for line in listing.splitlines()] == [job]
    assert f"{tag}, b" in called_here("jobs", "show", job, env=env).stdout
    said = called_here("jobs", "cancel", "--tag", tag, env=env)
    assert said.stdout == "1 job cancelled, 0 running: cancel requested\n"
    again = called_here("jobs", "cancel", "--tag", tag, "--model", "square", "--json", env=env)
    assert json.loads(again.stdout) == {"cancelled": 0, "requested": 0}
    for wrong in ((), (job, "--tag", tag), (job, "--model", "square")):
        assert called_here("jobs", "cancel", *wrong, env=env).returncode == 2


def test_a_replay_has_the_tags_of_the_job_that_it_repeats(client: httpx2.Client, hand: Hand, tag: str) -> None:
    submitted(client, tag)
    [job] = hand.claim().jobs
    hand.fail(job, "handler_error", "no")
    new = client.post(f"/v1/jobs/{job.id}/replay").json()
    assert new["tags"] == [tag]
    assert listed(client, tag=tag) == [new["id"], str(job.id)]


def test_the_pages_show_tags_and_list_by_them(client: httpx2.Client, hand: Hand, tag: str) -> None:
    job, other = submitted(client, tag), submitted(client, "")
    assert f"/ui/jobs?tag={tag.replace('=', '%3D')}" in client.get(f"/ui/jobs/{job}").text
    page = client.get("/ui/jobs", params={"tag": tag}).text
    assert job in page
    assert other not in page

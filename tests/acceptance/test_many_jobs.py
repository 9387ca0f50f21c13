"""GET /v1/jobs?ids= and GET /v1/jobs/events?ids=: a caller with hundreds of jobs needs no request for each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from penstock.gateway.asgi.negotiation import JSON
from penstock.gateway.jobs.many import MAX_IDS
from tests.acceptance.gateway_process import GatewayClient, Hand
from tests.security.keyed import ALICE, BOB, UNKNOWN_ID, keyed_gateway


@pytest.fixture(scope="module")
def gateway(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayClient]:
    folder: Path = tmp_path_factory.mktemp("many")
    with keyed_gateway(redis_url, folder, keys=(ALICE, BOB), heartbeat_s=0.2) as client:
        yield client
    with Redis.from_url(redis_url) as redis:
        redis.flushall()


@pytest.fixture
def hand(redis_url: str) -> Iterator[Hand]:
    hand = Hand(redis_url)
    yield hand
    hand.store.close()


def submit(gateway: GatewayClient, count: int) -> list[str]:
    sent = [gateway.post("/v1/models/square/jobs", json={"x": 4}, headers=ALICE.header) for _ in range(count)]
    return [answer.json()["id"] for answer in sent]


def read(gateway: GatewayClient, ids: list[str], **params: str) -> dict[str, Any]:
    answer = gateway.get("/v1/jobs", params={"ids": ",".join(ids), **params}, headers=ALICE.header)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def events_of(text: str) -> list[tuple[str, dict[str, Any]]]:
    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("event: ")]
    return [(block[0].removeprefix("event: "), json.loads(block[1].removeprefix("data: "))) for block in blocks]


def test_many_jobs_are_read_in_one_request_in_the_order_that_was_asked(gateway: GatewayClient) -> None:
    jobs = submit(gateway, 5)
    wanted = [*reversed(jobs), jobs[0], UNKNOWN_ID]
    found = read(gateway, wanted)
    assert [job["id"] for job in found["data"]] == [*reversed(jobs)]
    assert found["missing"] == [UNKNOWN_ID]


def test_another_owners_job_is_missing_as_one_that_never_was(gateway: GatewayClient) -> None:
    jobs = submit(gateway, 2)
    answer = gateway.get("/v1/jobs", params={"ids": ",".join(jobs)}, headers=BOB.header)
    assert answer.json() == {"data": [], "has_more": False, "missing": jobs}
    told = gateway.get("/v1/jobs/events", params={"ids": ",".join(jobs)}, headers=BOB.header)
    assert events_of(told.text) == [("gone", {"id": job}) for job in jobs]


def test_a_wait_for_many_ends_with_the_first_that_ends(gateway: GatewayClient, hand: Hand) -> None:
    jobs = submit(gateway, 3)
    assert {job["status"] for job in read(gateway, jobs, wait="0.2")["data"]} == {"queued"}
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(read, gateway, jobs, wait="25")
        gateway.delete(f"/v1/jobs/{jobs[1]}", headers=ALICE.header)
        states = [job["status"] for job in waiting.result(24.0)["data"]]
    assert states == ["queued", "cancelled", "queued"]
    assert read(gateway, jobs, wait="25")["data"][1]["status"] == "cancelled", "one has ended already: this returns at once"


def test_small_outputs_come_with_the_list_and_others_are_left_out(gateway: GatewayClient, hand: Hand) -> None:
    while hand.claim().jobs:
        pass
    jobs = submit(gateway, 4)
    for output, media in ((b'{"y":%d}' % 10**30, JSON), (b"not JSON, whatever the model says", JSON), (b"1,2", "text/csv")):
        hand.finish(hand.take(), output, media=media)
    bodies = read(gateway, jobs, outputs="true")["data"]
    assert [body.get("output") for body in bodies] == [{"y": 10**30}, None, None, None]
    assert all("output" not in body for body in read(gateway, jobs)["data"])


def test_one_stream_tells_the_changes_of_many_jobs_and_ends_with_the_last(gateway: GatewayClient, hand: Hand) -> None:
    while hand.claim().jobs:
        pass
    jobs = submit(gateway, 3)
    told = []
    with gateway.stream("GET", "/v1/jobs/events", params={"ids": ",".join(jobs)}, headers=ALICE.header) as stream:
        lines, text = stream.iter_lines(), ""
        while text.count("event: status") < 3:
            text += f"{next(lines)}\n"
        gateway.delete(f"/v1/jobs/{jobs[2]}", headers=ALICE.header)
        for job in (hand.take(), hand.take()):
            hand.finish(job)
        text += "\n".join(lines)
        told = events_of(text)
    assert [job["id"] for name, job in told[:3] if name == "status"] == jobs
    ended = {job["id"]: job["status"] for name, job in told if name == "end"}
    assert ended == {jobs[0]: "succeeded", jobs[1]: "succeeded", jobs[2]: "cancelled"}


@pytest.mark.parametrize(
    "query",
    [
        {"ids": ""},
        {"ids": ",".join(f"{UNKNOWN_ID[:-6]}m{n}" for n in range(MAX_IDS + 1))},
        {"ids": "not an id"},
        {"ids": UNKNOWN_ID, "model": "square"},
        {"wait": "20"},
    ],
)
def test_what_cannot_be_answered_is_a_400(gateway: GatewayClient, query: dict[str, str]) -> None:
    assert gateway.get("/v1/jobs", params=query, headers=ALICE.header).status_code == 400


def test_as_many_as_are_allowed_are_read(gateway: GatewayClient) -> None:
    ids = [f"{UNKNOWN_ID[:-6]}m{n}" for n in range(MAX_IDS)]
    assert read(gateway, ids)["missing"] == ids

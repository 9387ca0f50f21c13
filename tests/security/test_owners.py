"""Owners of jobs: for a caller, a job of another owner does not exist, on any route and in any state of the job."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from redis import Redis

from penstock.broker.records import NewJob
from penstock.job import Payload, new_job_id
from tests.acceptance.gateway_process import Hand
from tests.eventually import eventually
from tests.security.keyed import (
    ALICE,
    BOB,
    BOSS,
    READER,
    SENDER,
    SMALL,
    UNKNOWN_ID,
    WITH_ID,
    TestKey,
    filled,
    keyed_gateway,
    send,
)

STATES = ("queued", "running", "succeeded", "collected")


def submitted(gateway: httpx2.Client, key: TestKey, *, model: str = "square", **headers: str) -> dict[str, Any]:
    answer = gateway.post(f"/v1/models/{model}/jobs", json={"x": 4}, headers={**key.header, **headers})
    assert answer.status_code == 202, answer.text
    body: dict[str, Any] = answer.json()
    return body


def listed(gateway: httpx2.Client, key: TestKey, **params: str) -> list[str]:
    return [job["id"] for job in gateway.get("/v1/jobs", params=params, headers=key.header).json()["data"]]


@pytest.fixture(scope="module")
def hand(redis_url: str) -> Iterator[Hand]:
    hand = Hand(redis_url)
    yield hand
    hand.store.withdraw_worker(hand.name)
    hand.store.close()


@pytest.fixture(scope="module")
def jobs(gateway: httpx2.Client, hand: Hand) -> dict[str, str]:
    """One job of team-a in every state that another owner might be able to tell apart, by state."""
    hand.store.submit(
        [gone := NewJob(new_job_id("square"), "1", Payload("application/json", b"4"), owner="team-a", result_ttl_s=0.0)]
    )
    done = submitted(gateway, ALICE)["id"]
    for job in hand.claim().jobs:
        hand.finish(job)
    hand.store.sweep("square")
    running = submitted(gateway, ALICE)["id"]
    hand.claim()
    return {"queued": submitted(gateway, ALICE)["id"], "running": running, "succeeded": done, "collected": str(gone.id)}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(("method", "path"), WITH_ID)
def test_another_owners_job_is_answered_byte_for_byte_as_one_that_never_was(
    gateway: httpx2.Client, jobs: dict[str, str], method: str, path: str, state: str
) -> None:
    theirs, absent = (send(gateway, method, filled(path, job_id=id), key=BOB) for id in (jobs[state], UNKNOWN_ID))
    # Tracebacks are for who manages the gateway, whosever the job is.
    assert theirs.status_code == (403 if path.endswith("/traceback") else 404)
    assert theirs.content.replace(jobs[state].encode(), UNKNOWN_ID.encode()) == absent.content
    assert [item for item in theirs.headers.items() if item[0] != "date"] == [
        item for item in absent.headers.items() if item[0] != "date"
    ]


@pytest.mark.parametrize("path", ["/v1/jobs/{job_id}", "/v1/jobs/{job_id}/result"])
def test_waiting_for_another_owners_job_is_not_held_either(gateway: httpx2.Client, jobs: dict[str, str], path: str) -> None:
    answer = gateway.get(filled(path, job_id=jobs["running"]), params={"wait": "20"}, headers=BOB.header, timeout=15.0)
    assert answer.status_code == 404


@pytest.mark.parametrize("state", STATES[:2])
@pytest.mark.parametrize(
    "path", [path for method, path in WITH_ID if method == "GET"] + ["/v1/jobs?ids={job_id}", "/v1/jobs/events?ids={job_id}"]
)
def test_reading_another_owners_job_writes_nothing_into_its_record(
    gateway: httpx2.Client, redis_url: str, jobs: dict[str, str], path: str, state: str
) -> None:
    # Regression: a refused `?wait=` had registered its gateway in the record, to be told of each change of the job.
    with Redis.from_url(redis_url) as redis:
        key = f"ps:{{square}}:job:{jobs[state].partition('-')[0]}"
        before = redis.hgetall(key)
        headers = BOB.header | {"last-event-id": "1.1.1"}
        url = filled(path, job_id=jobs[state])
        for query in ("", ("&" if "?" in url else "?") + "wait=20"):
            with gateway.stream("GET", url + query, headers=headers) as answer:
                assert answer.status_code != 500
        assert before
        assert redis.hgetall(key) == before


def test_its_own_owner_sees_each_of_them_as_it_is(gateway: httpx2.Client, jobs: dict[str, str]) -> None:
    statuses = {state: gateway.get(f"/v1/jobs/{id}", headers=READER.header) for state, id in jobs.items()}
    assert statuses.pop("collected").status_code == 410
    assert {state: answer.json()["status"] for state, answer in statuses.items()} == {state: state for state in statuses}


def test_a_list_shows_ones_own_jobs_and_to_the_manager_all(gateway: httpx2.Client, jobs: dict[str, str]) -> None:
    bobs = submitted(gateway, BOB)["id"]
    assert bobs in listed(gateway, BOB)
    assert set(listed(gateway, BOB)).isdisjoint(jobs.values())
    assert bobs not in listed(gateway, READER)
    assert {bobs, jobs["queued"]} <= set(listed(gateway, BOSS))


def test_turning_the_pages_shows_each_own_job_once_and_no_id_of_others(gateway: httpx2.Client) -> None:
    mine = {submitted(gateway, key)["id"] for _ in range(12) for key in (ALICE, BOB) if key is BOB} | set(listed(gateway, BOB))
    for _ in range(30):
        submitted(gateway, ALICE)
    others = set(listed(gateway, READER))
    seen: list[str] = []
    after: str | None = None
    pages = ""
    while True:
        answer = gateway.get("/v1/jobs", params={"limit": "3", **({"after": after} if after else {})}, headers=BOB.header)
        pages += answer.text
        seen += [job["id"] for job in answer.json()["data"]]
        after = answer.json().get("next_after")
        if not after:
            break
    assert (sorted(seen), len(seen)) == (sorted(mine), len(set(seen)))
    assert not any(id.partition("-")[0] in pages for id in others)


# The gateway itself reads something now and then, such as how long a queue is. The whole crowd are 700 records.
BESIDE = 20


@pytest.mark.parametrize(("query", "most"), [({}, 100), ({"limit": "20"}, 20), ({"status": "succeeded"}, 500)])
def test_a_list_reads_no_more_records_than_it_says_whatever_others_have_stored(
    gateway: httpx2.Client, redis_url: str, query: dict[str, str], most: int
) -> None:
    # Regression: one call read up to 5,000 records of all owners, 140 ms in which nobody else was served.
    hand = Hand(redis_url)
    crowd = [NewJob(new_job_id("square"), "1", Payload("application/json", b"7"), owner="team-crowd") for _ in range(700)]
    hand.store.submit(crowd)
    mine = submitted(gateway, BOB)["id"]
    try:
        for key, bound in ((BOSS, most), (BOB, min(most, len(listed(gateway, BOB)) + 1))):
            before = records_read(redis_url)
            found = listed(gateway, key, **query)
            assert records_read(redis_url) - before <= bound + BESIDE
            assert (mine in found) == ("status" not in query)
        older = gateway.get("/v1/jobs", params={"status": "succeeded"}, headers=BOSS.header).json()
        assert (older["has_more"], bool(older["next_after"])) == (True, True)
    finally:
        for job in crowd:
            hand.store.cancel(job.id, owner="team-crowd")


def records_read(redis_url: str) -> int:
    """How many records the functions of the store have read so far; no worker runs beside these tests."""
    with Redis.from_url(redis_url) as redis:
        stats: dict[str, Any] = redis.info("commandstats")
    return int(stats.get("cmdstat_hmget", {"calls": 0})["calls"])


def test_a_job_can_be_cancelled_by_its_owner_and_by_the_manager_alone(gateway: httpx2.Client) -> None:
    for key, status in ((BOB, 404), (READER, 403), (SENDER, 202)):
        id = submitted(gateway, ALICE)["id"]
        assert gateway.delete(f"/v1/jobs/{id}", headers=key.header).status_code == status
    assert gateway.delete(f"/v1/jobs/{submitted(gateway, ALICE)['id']}", headers=BOSS.header).status_code == 202


def test_one_idempotency_key_of_two_owners_makes_two_jobs(gateway: httpx2.Client) -> None:
    first, again = (submitted(gateway, key, **{"idempotency-key": "k"})["id"] for key in (ALICE, SENDER))
    other = submitted(gateway, BOB, **{"idempotency-key": "k"})["id"]
    assert (again == first, other == first) == (True, False)


def test_an_owner_at_its_quota_is_told_when_to_come_back_and_others_are_served(gateway: httpx2.Client) -> None:
    answers = [gateway.post("/v1/models/square/jobs", json={"x": 4}, headers=SMALL.header) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [202, 202, 429]
    refusal = answers[-1]
    assert refusal.json()["code"] == "quota_spent"
    assert int(refusal.headers["retry-after"]) >= 1
    submitted(gateway, BOB)
    for answer in answers[:2]:
        gateway.delete(f"/v1/jobs/{answer.json()['id']}", headers=SMALL.header)
    submitted(gateway, SMALL)


def test_a_prediction_whose_client_hangs_up_is_cancelled_although_it_has_an_owner(gateway: httpx2.Client, hand: Hand) -> None:
    hand.announce()
    while hand.claim().jobs:
        pass
    eventually(lambda: gateway.get("/v1/models/square", headers=ALICE.header).json()["ready"])
    before = hand.store.stats("square").ended.get("cancelled", 0)
    with pytest.raises(httpx2.ReadTimeout):
        gateway.post("/predictions/square", json={"x": 4}, headers=ALICE.header, timeout=2.0)
    eventually(lambda: hand.store.stats("square").ended.get("cancelled", 0) == before + 1)


async def test_an_owner_that_holds_its_share_of_waits_gets_no_more_and_others_do(redis_url: str, tmp_path: Path) -> None:
    answers: list[int] = []
    six = asyncio.Event()
    with keyed_gateway(redis_url, tmp_path, max_waits=40) as gateway:
        job, others = submitted(gateway, ALICE)["id"], submitted(gateway, BOB)["id"]
        limits = httpx2.Limits(max_connections=100)
        async with httpx2.AsyncClient(base_url=gateway.base_url, limits=limits, timeout=30.0) as client:

            async def poll() -> None:
                answer = await client.get(f"/v1/jobs/{job}", params={"wait": "20"}, headers=ALICE.header)
                answers.append(answer.status_code)
                if len(answers) == 6:
                    six.set()

            async with asyncio.TaskGroup() as polls:
                for _ in range(10 + 6):
                    polls.create_task(poll())
                # While the job waits, only refused polls return.
                await six.wait()
                waited = await client.get(f"/v1/jobs/{others}", params={"wait": "0.1"}, headers=BOB.header)
                assert waited.status_code == 200
                assert (await client.get(f"/v1/jobs/{job}", headers=READER.header)).status_code == 200, "a look is no wait"
                wish = {**ALICE.header, "prefer": "wait=20"}
                made = await client.post("/v1/models/square/jobs", json={"x": 4}, headers=wish)
                assert made.status_code == 202, "a wait that was only preferred is left out"
                assert (await client.delete(f"/v1/jobs/{job}", headers=ALICE.header)).status_code == 202
    assert answers[:6] == [429] * 6
    assert answers[6:] == [200] * 10


def test_a_tag_finds_and_cancels_the_owners_jobs_alone(gateway: httpx2.Client, hand: Hand) -> None:
    ids = {}
    for key in (ALICE, BOB):
        answer = gateway.post("/v1/models/square/jobs", json={"x": 4}, params={"tags": "both"}, headers=key.header)
        ids[key.id] = answer.json()["id"]
    assert listed(gateway, READER, tag="both") == [ids[ALICE.id]]
    assert listed(gateway, BOSS, tag="both") == [ids[BOB.id], ids[ALICE.id]]
    counts = gateway.post("/v1/jobs:cancel", params={"tag": "both"}, headers=BOB.header).json()
    assert counts == {"cancelled": 1, "requested": 0, "has_more": False}
    statuses = {id: gateway.get(f"/v1/jobs/{id}", headers=BOSS.header).json()["status"] for id in ids.values()}
    assert statuses == {ids[ALICE.id]: "queued", ids[BOB.id]: "cancelled"}
    assert gateway.post("/v1/jobs:cancel", params={"tag": "both"}, headers=READER.header).status_code == 403
    assert gateway.post("/v1/jobs:cancel", params={"tag": "both"}, headers=BOSS.header).json()["cancelled"] == 1

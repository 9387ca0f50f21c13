"""Many inputs in one request: POST /v1/models/{model}/jobs:batch makes one job of each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock import AsyncClient, Client
from penstock.broker.store.sync import RedisStore
from penstock.client.handles.job_handle import JobHandle
from penstock.client.problems import WaitTimeout
from penstock.errors import BadRequest, InvalidInput, NotFound
from penstock.gateway.jobs.submitting.submit_many import MAX_INPUTS
from penstock.job import new_job_id, parse_job_id
from penstock.model_spec import VersionInfo
from tests.acceptance.gateway_process import Hand, gateway_process
from tests.eventually import eventually

ROOT = Path(__file__).parents[2]
MODELS = {
    "square": {"source": str(ROOT / "examples" / "square.py"), "max_batch_size": 64},
    "small": {"source": str(ROOT / "examples" / "square.py"), "max_queue_depth": 70},
    "little": {"source": str(ROOT / "examples" / "square.py"), "max_queue_depth": 70},
}
PATH = "/v1/models/square/jobs:batch"
LINES = {"content-type": "application/x-ndjson"}


@pytest.fixture(scope="module")
def client(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    with gateway_process(redis_url, tmp_path_factory.mktemp("gateway"), models=MODELS) as client:
        yield client


@pytest.fixture
def hand(redis_url: str, client: httpx2.Client) -> Iterator[Hand]:
    hand = Hand(redis_url)
    hand.announce(VersionInfo({"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}))
    eventually(lambda: client.get("/v1/models/square").json()["versions"]["1"]["loaded"])
    finish_all(hand)
    yield hand
    finish_all(hand)


def finish_all(hand: Hand) -> None:
    """Finish what waits: other tests of the same server leave jobs of the same model."""
    while jobs := hand.claim().jobs:
        for job in jobs:
            hand.finish(job)


def xs(count: int) -> list[dict[str, int]]:
    return [{"x": x} for x in range(count)]


def inputs_of(hand: Hand, count: int) -> list[Any]:
    """The inputs of the jobs that wait, oldest first."""
    found: list[Any] = []
    while len(found) < count:
        jobs = hand.claim().jobs
        assert jobs, f"only {len(found)} jobs wait"
        found += [json.loads(job.input.data) for job in jobs]
        for job in jobs:
            hand.finish(job)
    return found


def accepted(answer: httpx2.Response) -> httpx2.Response | None:
    return answer if answer.status_code == 202 else None


@pytest.mark.parametrize("form", ["array", "lines"])
def test_each_input_becomes_a_job_in_order_and_all_have_ids_of_their_own(client: httpx2.Client, hand: Hand, form: str) -> None:
    sent = xs(150)
    body = json.dumps(sent) if form == "array" else "".join(f"{json.dumps(one)}\n\n" for one in sent)
    answer = client.post(PATH, content=body, headers=LINES if form == "lines" else {"content-type": "application/json"})
    assert answer.status_code == 202, answer.text
    said = answer.json()
    assert (said["accepted"], said["refused"]) == (150, 0)
    assert [row["index"] for row in said["data"]] == list(range(150))
    assert len({row["id"] for row in said["data"]}) == 150
    assert client.get(said["data"][7]["links"]["self"]).json()["status"] == "queued"
    assert inputs_of(hand, 150) == sent


def test_options_hold_for_each_job(client: httpx2.Client, hand: Hand) -> None:
    answer = client.post(f"{PATH}?priority=bulk&deadline_s=50", json=xs(2))
    for row in answer.json()["data"]:
        job = client.get(row["links"]["self"]).json()
        assert (job["priority"], bool(job["deadline_at"])) == ("bulk", True)


def test_one_bad_input_stores_none_and_each_fault_is_named_with_its_place(client: httpx2.Client, hand: Hand) -> None:
    answer = client.post(PATH, json=[{"x": 1}, {"x": "one"}, {"y": 2}])
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input")
    assert answer.json()["detail"] == "2 of 3 inputs cannot be used; none was stored"
    assert [fault["pointer"].split("/")[1] for fault in answer.json()["errors"]] == ["1", "2"]
    assert not hand.claim().jobs


def test_with_partial_the_good_inputs_are_stored_beside_the_bad(client: httpx2.Client, hand: Hand) -> None:
    answer = client.post(f"{PATH}?partial=true", content=b'{"x":1}\n{"x":\n{"x":3}', headers=LINES)
    said = answer.json()
    assert (answer.status_code, said["accepted"], said["refused"]) == (202, 2, 1)
    assert (said["data"][1]["index"], said["data"][1]["error"]["status"]) == (1, 400)
    assert inputs_of(hand, 2) == [{"x": 1}, {"x": 3}]


def test_a_repeat_with_the_same_key_finds_every_job_again(client: httpx2.Client, hand: Hand) -> None:
    key = {"idempotency-key": "night-42"}
    first, again = (client.post(PATH, json=xs(3), headers=key).json()["data"] for _ in range(2))
    assert [row["id"] for row in first] == [row["id"] for row in again]
    other = client.post(PATH, json=xs(4)[1:], headers=key)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    assert len(inputs_of(hand, 3)) == 3


def test_a_queue_without_room_for_all_takes_none(client: httpx2.Client, redis_url: str) -> None:
    """The first group of 64 fits, and is cancelled again when the second does not."""
    answer = client.post("/v1/models/small/jobs:batch", json=xs(100))
    assert (answer.status_code, answer.json()["code"]) == (429, "overloaded")
    store = RedisStore(redis_url)
    eventually(lambda: store.stats("small").depth == 0)
    store.close()


def test_with_a_key_what_was_stored_waits_for_the_repeat(client: httpx2.Client, redis_url: str) -> None:
    """Cancelled jobs would be all that the repeat finds under its keys."""
    key, hand = {"idempotency-key": "k"}, Hand(redis_url, "little")
    sent = xs(100)
    assert client.post("/v1/models/little/jobs:batch", json=sent, headers=key).status_code == 429
    found = inputs_of(hand, 64)
    # The gateway's count of the queue is at most a second old.
    again = eventually(
        lambda: (answer := client.post("/v1/models/little/jobs:batch", json=sent, headers=key)).is_success and answer
    )
    assert again.json()["accepted"] == 100
    ended = [row for row in again.json()["data"] if row["status"] == "succeeded"]
    assert len(ended) == len(found)
    assert inputs_of(hand, 100 - len(found)) == sent[len(found) :]


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{}", {"content-type": "application/json"}, 400),
        (b"[]", {"content-type": "application/json"}, 400),
        (b"[1,", {"content-type": "application/json"}, 400),
        (b"\n \n", LINES, 400),
        (b"[" + b"1," * MAX_INPUTS + b"1]", {"content-type": "application/json"}, 400),
        (b'[{"x":1}]', {"content-type": "text/csv"}, 415),
        (b'[{"x":1}]', {"content-type": "application/json", "content-encoding": "gzip"}, 415),
        (b'[{"x":1}]', {"content-type": "application/json", "idempotency-key": "k" * 250}, 400),
        (b"[" * 100_000, {"content-type": "application/json"}, 400),
        (b'[{"x":1},{"x":1,"x":2}]', {"content-type": "application/json"}, 400),
    ],
)
def test_what_cannot_be_read_is_refused(
    client: httpx2.Client, hand: Hand, body: bytes, headers: dict[str, str], status: int
) -> None:
    assert client.post(PATH, content=body, headers=headers).status_code == status
    assert not hand.claim().jobs


def test_a_body_over_the_limit_is_refused_and_so_is_one_input_over_its_own(redis_url: str, tmp_path: Path) -> None:
    limits = {"PENSTOCK_GATEWAY__MAX_RAW_BYTES": "100000", "PENSTOCK_GATEWAY__MAX_JSON_BYTES": "1000"}
    with gateway_process(redis_url, tmp_path, models=MODELS, env=limits) as small:
        assert small.post(PATH, content=b" " * 100_001, headers=LINES).status_code == 413
        assert small.post(PATH, content=(b" " * 1_000 for _ in range(101)), headers=LINES).status_code == 413
        refused = small.post(f"{PATH}?partial=true", json=[{"x": 1, "y": "y" * 1_000}]).json()
        assert (refused["accepted"], refused["data"][0]["error"]["status"]) == (0, 413)


@pytest.mark.parametrize("query", ["partial=yes", "priority=urgent", "deadline_s=0", "dedline_s=1"])
def test_a_wrong_option_is_refused(client: httpx2.Client, query: str) -> None:
    assert client.post(f"{PATH}?{query}", json=xs(1)).status_code in (400, 422)


def test_a_model_or_version_that_is_not_there_is_a_404(client: httpx2.Client) -> None:
    assert client.post("/v1/models/nothing/jobs:batch", json=xs(1)).status_code == 404
    assert client.post("/v1/models/square/versions/9/jobs:batch", json=xs(1)).status_code == 404


def test_a_version_may_be_named(client: httpx2.Client, hand: Hand) -> None:
    answer = client.post("/v1/models/square/versions/1/jobs:batch", json=xs(1))
    assert parse_job_id(answer.json()["data"][0]["id"]).model == "square"
    assert answer.json()["data"][0]["version"] == "1"


@pytest.fixture
def python(client: httpx2.Client) -> Iterator[Client]:
    with Client(str(client.base_url)) as python:
        yield python


def test_the_client_sends_any_number_of_inputs_a_thousand_at_a_time(python: Client, hand: Hand) -> None:
    handles = python.submit_many("square", ({"x": x} for x in range(1_200)), priority="bulk")
    assert len({handle.id for handle in handles}) == 1_200
    assert inputs_of(hand, 1_200) == xs(1_200)
    assert python.submit_many("square", []) == []


def test_the_client_repeats_under_one_key_without_making_a_job_twice(python: Client, hand: Hand) -> None:
    first, again = (python.submit_many("square", xs(3), idempotency_key="once") for _ in range(2))
    assert [handle.id for handle in first] == [handle.id for handle in again]


@pytest.mark.parametrize("value", [b"bytes", Path("a.png")])
def test_what_is_no_json_value_is_refused_before_anything_is_sent(python: Client, hand: Hand, value: object) -> None:
    with pytest.raises(BadRequest, match="one by one with submit"):
        python.submit_many("square", [{"x": 1}, value])
    assert not hand.claim().jobs


def test_a_bad_input_raises_with_its_place(python: Client, hand: Hand) -> None:
    with pytest.raises(InvalidInput, match="1 of 2 inputs cannot be used") as caught:
        python.submit_many("square", [{"x": 1}, {"x": "one"}])
    assert caught.value.errors[0]["pointer"].startswith("/1")


def test_handles_come_as_their_jobs_end(python: Client, hand: Hand) -> None:
    handles = python.submit_many("square", xs(3))
    one, two, three = hand.claim().jobs
    hand.finish(two)
    assert python.wait_any(handles, timeout_s=20.0).id == str(two.id)
    completed = python.as_completed(handles, timeout_s=20.0)
    assert next(completed).id == str(two.id)
    hand.fail(three, "bad_image", "no image")
    seen = next(completed)
    assert (seen.id, seen.status) == (str(three.id), "failed")
    hand.finish(one)
    assert [handle.id for handle in completed] == [str(one.id)]


def test_waiting_ends_with_its_time(python: Client, hand: Hand) -> None:
    handles = python.submit_many("square", xs(1))
    with pytest.raises(WaitTimeout):
        python.wait_any(handles, timeout_s=0.2)
    with pytest.raises(BadRequest, match="no job to wait for"):
        python.wait_any([])


def test_a_job_that_is_gone_is_named(python: Client, hand: Hand) -> None:
    [handle] = python.submit_many("square", xs(1))
    unknown = JobHandle(python, replace(handle.view, id=str(new_job_id("square"))))
    with pytest.raises(NotFound, match=unknown.id):
        list(python.as_completed([handle, unknown]))


async def test_the_asyncio_client_does_the_same(client: httpx2.Client, hand: Hand) -> None:
    async with AsyncClient(str(client.base_url)) as python:
        handles = await python.submit_many("square", xs(150))
        jobs = [job for _ in range(3) for job in hand.claim().jobs]
        for job in jobs:
            hand.finish(job)
        assert len([handle async for handle in python.as_completed(handles, timeout_s=20.0)]) == 150
        assert (await python.wait_any(handles, timeout_s=5.0)).status == "succeeded"


def test_each_further_job_costs_a_tenth_of_a_request_of_its_callers_rate(redis_url: str, tmp_path: Path) -> None:
    limits = {"PENSTOCK_GATEWAY__RATE_PER_S": "0.01", "PENSTOCK_GATEWAY__BURST": "10"}
    with gateway_process(redis_url, tmp_path, models=MODELS, env=limits) as limited:
        assert limited.post(PATH, json=xs(61)).status_code == 202
        refused = limited.post(PATH, json=xs(61))
        assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
        assert limited.post(PATH, json=xs(1)).status_code == 202

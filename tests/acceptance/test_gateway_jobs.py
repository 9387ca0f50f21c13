"""The jobs API of a real gateway on a real store, with a fake worker that the test controls."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.broker.blobs.files import LocalBlobs
from penstock.broker.store.notifications import RECHECK_S
from penstock.embedded.server import EmbeddedServer
from penstock.model_spec import VersionInfo
from tests.acceptance.gateway_process import Hand, gateway_process
from tests.eventually import eventually

MODELS = {"square": {"source": "square.py:Square", "max_queue_depth": 50, "deadline_s": 600}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gateway")


@pytest.fixture(scope="module")
def client(redis_url: str, folder: Path) -> Iterator[httpx2.Client]:
    with gateway_process(redis_url, folder, models=MODELS, heartbeat_s=0.3) as client:
        yield client


@pytest.fixture
def hand(redis_url: str, client: httpx2.Client) -> Hand:
    """The fake worker, after it has finished the jobs that the previous test left."""
    hand = Hand(redis_url)
    hand.announce()
    for job in hand.claim().jobs:
        hand.finish(job)
    eventually(lambda: client.get("/readyz").status_code == 200)
    return hand


def submit(client: httpx2.Client, x: float = 4, **options: Any) -> dict[str, Any]:
    answer = client.post("/v1/models/square/jobs", json={"x": x}, **options)
    assert answer.status_code == 202, answer.text
    job: dict[str, Any] = answer.json()
    return job


def later(call: Any) -> Future[Any]:
    return ThreadPoolExecutor(1).submit(call)


def test_a_job_is_accepted_with_its_links(client: httpx2.Client, hand: Hand) -> None:
    answer = client.post("/v1/models/square/jobs", json={"x": 4})
    job = answer.json()
    assert answer.status_code == 202
    assert answer.headers["location"] == job["links"]["self"] == f"/v1/jobs/{job['id']}"
    assert 1 <= int(answer.headers["retry-after"]) <= 120
    assert (job["status"], job["position"]) == ("queued", 0)
    hand.finish(hand.take())


def test_a_job_goes_from_queued_over_running_to_succeeded(client: httpx2.Client, hand: Hand) -> None:
    links = submit(client)["links"]
    assert client.get(links["self"]).json()["status"] == "queued"
    assert client.get(links["result"]).status_code == 202
    claimed = hand.take()
    assert client.get(links["self"]).json()["status"] == "running"
    hand.finish(claimed)
    job = client.get(links["self"])
    assert (job.json()["status"], job.json()["attempts"]) == ("succeeded", 1)
    assert "retry-after" not in job.headers
    result = client.get(links["result"])
    assert (result.status_code, result.json(), result.headers["content-type"]) == (200, {"y": 16}, "application/json")


def test_an_unchanged_job_is_answered_with_304(client: httpx2.Client, hand: Hand) -> None:
    links = submit(client)["links"]
    tag = client.get(links["self"]).headers["etag"]
    assert client.get(links["self"], headers={"if-none-match": tag}).status_code == 304
    hand.finish(hand.take())
    assert client.get(links["self"], headers={"if-none-match": tag}).status_code == 200


def test_a_long_poll_returns_at_the_first_change(client: httpx2.Client, hand: Hand) -> None:
    links = submit(client)["links"]
    seen = {"if-none-match": client.get(links["self"]).headers["etag"]}
    polling = later(lambda: client.get(links["self"], params={"wait": "20"}, headers=seen))
    claimed = hand.take()
    assert polling.result(15.0).json()["status"] == "running"
    polling = later(lambda: client.get(links["result"], params={"wait": "20"}))
    hand.finish(claimed)
    assert polling.result(15.0).json() == {"y": 16}


def test_a_long_poll_ends_with_the_wait(client: httpx2.Client, hand: Hand) -> None:
    links = submit(client)["links"]
    started = time.monotonic()
    assert client.get(links["result"], params={"wait": "0.3"}).status_code == 202
    # The wait must be the requested one: the maximum is half a minute.
    assert 0.25 <= time.monotonic() - started < 20.0
    hand.finish(hand.take())


def test_a_long_poll_at_another_gateway_returns_at_once_when_the_job_ends(
    client: httpx2.Client, hand: Hand, redis_url: str, folder: Path
) -> None:
    with gateway_process(redis_url, folder, models=MODELS) as other:
        links = submit(client)["links"]
        polling = later(lambda: other.get(links["result"], params={"wait": "20"}))
        claimed = hand.take()
        eventually(lambda: not polling.done())
        finished = time.monotonic()
        hand.finish(claimed)
        assert polling.result(15.0).json() == {"y": 16}
        # The gateway was notified by a push: without a push, the gateway reads the job again after five seconds.
        assert time.monotonic() - finished < RECHECK_S - 0.5


def test_a_failed_job_is_read_as_its_recorded_problem(client: httpx2.Client, hand: Hand) -> None:
    job = submit(client)
    hand.fail(hand.take(), "handler_error", "ValueError: no such square")
    shown = client.get(job["links"]["self"]).json()
    assert (shown["status"], shown["error"]["message"]) == ("failed", "ValueError: no such square")
    result = client.get(job["links"]["result"])
    # The gateway did its work: a 5xx for what a model did would have a proxy take the gateway out of service.
    assert (result.status_code, result.json()["status"]) == (409, 409)
    assert (result.json()["code"], result.json()["job"]) == ("handler_error", job["id"])
    assert result.headers["x-should-retry"] == "false"


def test_prefer_wait_answers_a_job_that_fails_in_time_like_a_read_of_its_result(client: httpx2.Client, hand: Hand) -> None:
    asking = later(lambda: client.post("/v1/models/square/jobs", json={"x": 4}, headers={"Prefer": "wait=20"}))
    hand.fail(hand.take(), "load_failed", "no such file")
    answer = asking.result(15.0)
    assert (answer.status_code, answer.json()["code"], answer.json()["retryable"]) == (409, "load_failed", True)


def test_a_waiting_job_is_cancelled_at_once_and_a_repeat_is_answered_alike(client: httpx2.Client, hand: Hand) -> None:
    links = submit(client)["links"]
    # Regression: the repeat of a cancel whose answer was lost was a 409.
    for answer in (client.post(links["cancel"]), client.post(links["cancel"]), client.delete(links["self"])):
        assert (answer.status_code, answer.json()["status"]) == (202, "cancelled")
    assert client.get(links["result"]).status_code == 409


def test_a_job_that_ended_otherwise_cannot_be_cancelled(client: httpx2.Client, hand: Hand) -> None:
    links = submit(client)["links"]
    hand.finish(hand.take())
    answer = client.post(links["cancel"])
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")


def test_a_running_job_is_cancelled_at_its_end(client: httpx2.Client, hand: Hand) -> None:
    links = submit(client)["links"]
    claimed = hand.take()
    answer = client.delete(links["self"])
    assert (answer.status_code, answer.json()["status"], answer.json()["cancel_requested"]) == (202, "running", True)
    hand.finish(claimed)
    assert client.get(links["self"]).json()["status"] == "cancelled"
    assert client.delete(links["self"]).status_code == 202


def test_a_repeated_idempotency_key_finds_the_first_job(client: httpx2.Client, hand: Hand) -> None:
    key = {"Idempotency-Key": f"key-{time.time_ns()}"}
    first, second = submit(client, headers=key), submit(client, headers=key)
    assert first["id"] == second["id"]
    hand.finish(hand.take())
    assert hand.claim().jobs == ()
    other = client.post("/v1/models/square/jobs", json={"x": 5}, headers=key)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")


def test_prefer_wait_answers_with_the_output_when_it_comes_in_time(client: httpx2.Client, hand: Hand) -> None:
    asking = later(lambda: client.post("/v1/models/square/jobs", json={"x": 4}, headers={"Prefer": "wait=20"}))
    hand.finish(hand.take())
    answer = asking.result(15.0)
    assert (answer.status_code, answer.json(), answer.headers["preference-applied"]) == (200, {"y": 16}, "wait=20")


def test_prefer_wait_waits_for_the_first_job_of_a_repeated_key(client: httpx2.Client, hand: Hand) -> None:
    # Regression: a repeat was answered at once with 202, whatever it preferred.
    key = {"Idempotency-Key": f"key-{time.time_ns()}"}
    first = submit(client, headers=key)
    asking = later(lambda: client.post("/v1/models/square/jobs", json={"x": 4}, headers={"Prefer": "wait=20", **key}))
    claimed = hand.take()
    eventually(lambda: not asking.done())
    hand.finish(claimed)
    answer = asking.result(15.0)
    assert (answer.status_code, answer.json(), answer.headers["location"]) == (200, {"y": 16}, first["links"]["self"])
    again = client.post("/v1/models/square/jobs", json={"x": 4}, headers={"Prefer": "wait=20", **key})
    assert (again.status_code, again.json()) == (200, {"y": 16})


def test_an_output_is_never_taken_for_anything_but_its_media_type(client: httpx2.Client, hand: Hand) -> None:
    links = submit(client)["links"]
    hand.finish(hand.take(), b"<script>alert(1)</script>", media="text/plain")
    read = client.get(links["result"])
    assert (read.headers["x-content-type-options"], read.headers["content-security-policy"]) == ("nosniff", "sandbox")
    asking = later(lambda: client.post("/v1/models/square/jobs", json={"x": 4}, headers={"Prefer": "wait=20"}))
    hand.finish(hand.take())
    predicting = later(lambda: client.post("/predictions/square", json={"x": 4}))
    hand.finish(hand.take())
    for answer in (asking.result(15.0), predicting.result(15.0)):
        assert (answer.status_code, answer.headers["x-content-type-options"]) == (200, "nosniff")


def test_the_tag_of_a_job_changes_when_it_is_replayed(client: httpx2.Client, hand: Hand) -> None:
    links = submit(client)["links"]
    hand.fail(hand.take(), "handler_error", "no")
    tag = client.get(links["self"]).headers["etag"]
    replayed = client.post(links["replay"] if "replay" in links else f"{links['self']}/replay").json()
    answer = client.get(links["self"], headers={"If-None-Match": tag})
    # Regression: this was a 304, and the reader never learned of the replay.
    assert (answer.status_code, answer.json()["replayed_as"]) == (200, replayed["id"])
    assert client.get(links["self"], headers={"If-None-Match": answer.headers["etag"]}).status_code == 304
    hand.finish(hand.take())


def test_prefer_wait_answers_with_the_job_when_it_does_not(client: httpx2.Client, hand: Hand) -> None:
    answer = client.post("/v1/models/square/jobs", json={"x": 4}, headers={"Prefer": "respond-async, wait=1"})
    assert (answer.status_code, answer.headers["preference-applied"]) == (202, "respond-async, wait=1")
    hand.finish(hand.take())


def test_the_events_of_a_job_lead_from_its_status_to_its_end(client: httpx2.Client, hand: Hand) -> None:
    links = submit(client)["links"]
    claimed: list[Any] = []
    with client.stream("GET", links["events"]) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = stream.iter_lines()
        assert next(lines) == "retry: 2000"
        assert next(line for line in lines if line.startswith("event:")) == "event: status"
        claimed.append(hand.take())
        assert next(line for line in lines if line.startswith("event:")) == "event: status"
        hand.finish(claimed[0])
        rest = list(lines)
    assert "event: end" in rest
    assert any(line.startswith("data:") and '"succeeded"' in line for line in rest)


def test_progress_is_an_event_and_a_field_of_the_job_and_changes_its_tag(client: httpx2.Client, hand: Hand) -> None:
    links = submit(client)["links"]
    job = hand.take()
    tag = client.get(links["self"]).headers["etag"]
    with client.stream("GET", links["events"]) as stream:
        lines = stream.iter_lines()
        assert next(line for line in lines if line.startswith("event:")) == "event: status"
        hand.report(job, 0.4, "step 12 of 30")
        assert next(line for line in lines if line.startswith("event:")) == "event: progress"
        told = json.loads(next(line for line in lines if line.startswith("data:")).removeprefix("data:"))
        assert (told["fraction"], told["note"]) == (0.4, "step 12 of 30")
        hand.finish(job)
        assert next(line for line in lines if line.startswith("event:")) == "event: end"
    seen = client.get(links["self"], headers={"If-None-Match": tag})
    assert (seen.status_code, seen.json()["progress"]) == (200, told)


def test_a_wait_without_a_tag_is_not_ended_by_progress(client: httpx2.Client, hand: Hand) -> None:
    links = submit(client)["links"]
    job = hand.take()

    def end() -> None:
        hand.report(job, 0.4)
        hand.finish(job)

    threading.Timer(0.3, end).start()
    assert client.get(links["self"], params={"wait": "20"}).json()["status"] == "succeeded"


def test_a_reader_who_has_seen_the_status_is_not_told_it_again(client: httpx2.Client, hand: Hand) -> None:
    links = submit(client)["links"]
    seen = client.get(links["self"]).headers["etag"].removeprefix('W/"').removesuffix('"')
    threading.Timer(0.3, lambda: hand.finish(hand.take())).start()
    answer = client.get(links["events"], headers={"Last-Event-ID": seen})
    events = [line for line in answer.text.splitlines() if line.startswith(("event:", "id:"))]
    assert f"id: {seen}" not in events
    assert events[-2] == "event: end"


def test_a_reader_with_another_history_is_told_to_start_over(client: httpx2.Client, hand: Hand) -> None:
    links = submit(client)["links"]
    hand.finish(hand.take())
    answer = client.get(links["events"], headers={"Last-Event-ID": "9.9.1"})
    assert [line for line in answer.text.splitlines() if line.startswith("event:")] == ["event: reset", "event: end"]


def test_jobs_are_listed_newest_first_in_pages(client: httpx2.Client, hand: Hand) -> None:
    made = [submit(client)["id"] for _ in range(3)]
    first = client.get("/v1/jobs", params={"model": "square", "limit": 2}).json()
    assert [job["id"] for job in first["data"]] == made[:0:-1]
    assert first["has_more"] is True
    second = client.get("/v1/jobs", params={"limit": 1, "after": first["next_after"]}).json()
    assert second["data"][0]["id"] == made[0]
    assert {job["id"] for job in client.get("/v1/jobs", params={"status": "queued"}).json()["data"]} == set(made)
    for job in hand.claim().jobs:
        hand.finish(job)
    assert client.get("/v1/jobs", params={"status": "queued"}).json() == {"data": [], "has_more": False}


def test_a_raw_body_reaches_the_worker_byte_for_byte(client: httpx2.Client, hand: Hand) -> None:
    answer = client.post("/v1/models/square/jobs", content=b"\x89PNG", headers={"content-type": "image/png"})
    assert answer.status_code == 202
    claimed = hand.take()
    assert (claimed.input.content_type, claimed.input.data) == ("image/png", b"\x89PNG")
    hand.finish(claimed, b"\x00\x01", media="application/octet-stream")
    result = client.get(answer.json()["links"]["result"])
    assert (result.content, result.headers["content-type"]) == (b"\x00\x01", "application/octet-stream")


def test_the_only_file_of_a_form_is_the_input(client: httpx2.Client, hand: Hand) -> None:
    assert client.post("/v1/models/square/jobs", files={"f": ("a.png", b"\x89PNG", "image/png")}).status_code == 202
    claimed = hand.take()
    assert (claimed.input.content_type, claimed.input.data) == ("image/png", b"\x89PNG")
    hand.finish(claimed)


def test_a_large_input_lies_in_the_blob_store(client: httpx2.Client, hand: Hand, folder: Path) -> None:
    data = b"\xff" * 100_000
    job = client.post("/v1/models/square/jobs", content=data, headers={"content-type": "image/png"}).json()
    claimed = hand.take()
    assert claimed.input.blob.startswith(f"{claimed.id.serial}.in")
    assert LocalBlobs(folder / "blobs").get(claimed.input.blob) == data
    hand.finish(claimed)
    assert client.get(job["links"]["self"]).json()["status"] == "succeeded"


def test_a_full_queue_is_refused_with_the_limit_and_leaves_no_blob(client: httpx2.Client, hand: Hand, folder: Path) -> None:
    for _ in range(50):
        submit(client)
    blobs = LocalBlobs(folder / "blobs")
    before = {name for name, _ in blobs.names()}
    answer = client.post("/v1/models/square/jobs", content=b"\xff" * 40_000, headers={"content-type": "image/png"})
    assert (answer.status_code, answer.json()["code"], answer.json()["retryable"]) == (429, "overloaded", True)
    assert "50" in answer.json()["detail"]
    assert 1 <= int(answer.headers["retry-after"]) <= 120
    assert {name for name, _ in blobs.names()} == before
    for job in hand.claim().jobs:
        hand.finish(job)


def test_a_job_that_cannot_make_its_deadline_is_refused(client: httpx2.Client, hand: Hand) -> None:
    hand.announce(latency_s={1: 1.0, 8: 1.0})
    eventually(lambda: client.get("/v1/workers").json()["data"][0]["slots"][0]["latency_s"])
    for _ in range(20):
        submit(client)
    answer = client.post("/v1/models/square/jobs?deadline_s=1", json={"x": 4})
    assert (answer.status_code, answer.json()["code"]) == (429, "overloaded")
    assert "deadline" in answer.json()["detail"]
    hand.announce()
    for job in hand.claim().jobs:
        hand.finish(job)


def test_the_models_and_workers_are_listed(client: httpx2.Client, hand: Hand) -> None:
    hand.announce(VersionInfo(input_schema={"type": "object"}, description="squares"))
    model = eventually(lambda: (m := client.get("/v1/models/square").json())["versions"]["1"].get("description") and m)
    assert model["limits"]["max_queue_depth"] == 50
    assert [worker["name"] for worker in client.get("/v1/workers").json()["data"]] == ["hand-square"]
    hand.announce()


def test_the_scrape_tells_the_queue(client: httpx2.Client, hand: Hand) -> None:
    submit(client)
    assert 'penstock_queue_depth{model="square",priority="interactive"} 1.0' in client.get("/metrics").text
    claimed = hand.take()
    scrape = client.get("/metrics").text
    assert 'penstock_jobs_in_flight{model="square"} 1.0' in scrape
    assert 'penstock_http_requests_total{method="POST",route="/v1/models/{model}/jobs",status="202"}' in scrape
    assert str(claimed.id) not in scrape
    hand.finish(claimed)


def test_a_gateway_says_that_its_store_is_away_and_goes_on_when_it_is_back(tmp_path: Path, state_dir: Path) -> None:
    with EmbeddedServer(state_dir, fsync="everysec") as server, gateway_process(server.url, tmp_path, models=MODELS) as client:
        assert client.post("/v1/models/square/jobs", json={"x": 1}).status_code == 202
        server.stop()
        away = client.post("/v1/models/square/jobs", json={"x": 1})
        assert (away.status_code, away.json()["code"]) == (503, "store_unavailable")
        assert "retry-after" in away.headers
        assert server.url.removeprefix("unix://") not in away.text
        assert client.get("/readyz").status_code == 503
        assert client.get("/livez").status_code == 200
        server.start()
        eventually(lambda: client.post("/v1/models/square/jobs", json={"x": 1}).status_code == 202)


def test_a_silent_stream_of_events_is_kept_alive_by_comments(client: httpx2.Client, hand: Hand) -> None:
    links = submit(client)["links"]
    with client.stream("GET", links["events"]) as stream:
        lines = stream.iter_lines()
        assert next(line for line in lines if line.startswith("event:")) == "event: status"
        assert [next(lines) for _ in range(4)][-1] == ": still here"
    hand.finish(hand.take())

"""Cog's container contract below /cog/{model}, with predictors in a real worker."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.broker.records import NewJob
from penstock.gateway.jobs.submitting.submit_options import fingerprint
from penstock.job import Payload, new_job_id
from tests.acceptance.gateway_process import GatewayClient, Hand
from tests.eventually import eventually
from tests.extensions.replicate.acceptance.predictors import predictors_served

ASYNC = {"prefer": "respond-async"}
EVENTS = {"accept": "text/event-stream"}
SERIAL = "01k9xw3c5t8ze2m4v6b7n0q1rs"
ids = (f"call-{number}" for number in count())


@pytest.fixture(scope="module")
def gateway(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayClient]:
    with predictors_served(redis_url, tmp_path_factory.mktemp("cog")) as client:
        yield client


def predicted(gateway: GatewayClient, model: str, given: dict[str, Any]) -> dict[str, Any]:
    answer = gateway.post(f"/cog/{model}/predictions", json={"input": given})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def status_of(gateway: GatewayClient, model: str) -> str:
    answer = gateway.get(f"/cog/{model}/health-check")
    assert answer.status_code == 200
    return str(answer.json()["status"])


def jobs_of(gateway: GatewayClient, prediction_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = gateway.get(f"/v1/jobs?tag=cog:{prediction_id}").json()["data"]
    return found


def events_of(answer: httpx2.Response) -> list[tuple[str, Any]]:
    blocks = [block.split("\n") for block in answer.text.strip().split("\n\n") if not block.startswith(":")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in blocks]


@contextmanager
def hung_on(gateway: GatewayClient, path: str, body: dict[str, Any]) -> Iterator[None]:
    """A client that sends a PUT, and hangs up at the end of the block."""
    content = json.dumps(body).encode()
    head = f"PUT {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    with socket.create_connection((gateway.base_url.host, gateway.base_url.port or 80), timeout=10.0) as connection:
        connection.sendall(head.encode() + content)
        yield


def test_the_root_lists_urls_that_answer(gateway: GatewayClient) -> None:
    for path in ("/cog/hello", "/cog/hello/"):
        urls = gateway.get(path).json()
        assert urls["predictions_url"] == "/cog/hello/predictions"
        assert gateway.get(urls["healthcheck_url"]).json()["status"] == "READY"
        assert gateway.get(urls["openapi_url"]).json()["openapi"] == "3.0.2"


def test_the_document_is_that_of_cog(gateway: GatewayClient) -> None:
    found = gateway.get("/cog/hello/openapi.json").json()
    given = found["components"]["schemas"]["Input"]
    assert {name: own["x-order"] for name, own in given["properties"].items()} == {"text": 0, "times": 1}
    assert given["required"] == ["text"]
    assert found["components"]["schemas"]["Output"] == {"title": "Output", "type": "string"}
    for path, method in (("/predictions", "post"), ("/predictions/{prediction_id}", "put"), ("/health-check", "get")):
        assert method in found["paths"][path]


def test_a_prediction_is_waited_for(gateway: GatewayClient) -> None:
    found = predicted(gateway, "hello", {"text": "you", "times": 2})
    assert (found["status"], found["output"], found["error"], found["logs"]) == ("succeeded", "hello you hello you", None, "")
    assert found["input"] == {"text": "you", "times": 2}
    assert found["metrics"]["predict_time"] >= 0.0
    assert found["created_at"] <= found["started_at"] <= found["completed_at"]
    assert gateway.get(f"/v1/jobs/{found['id']}/result").json() == found["output"]


def test_the_failure_of_a_model_is_an_answer(gateway: GatewayClient) -> None:
    found = predicted(gateway, "hello", {"text": "trouble"})
    assert (found["status"], found["error"], found["output"]) == ("failed", "ValueError: no greeting for trouble", None)


def test_files_come_as_data_urls_and_large_ones_as_links(gateway: GatewayClient) -> None:
    given = {"image": "data:text/plain;base64,YQ==", "grow": 1_000_000}
    found = predicted(gateway, "files", given)["output"]
    assert base64.b64decode(found["large"].partition(",")[2]) == b"a" + bytes(1_000_000)
    found = predicted(gateway, "files", {**given, "grow": 4_500_000})["output"]
    assert found["small"].startswith("data:text/plain")
    assert gateway.get(found["large"]).content == b"a" + bytes(4_500_000)


def test_a_prediction_in_the_background_is_found_again_by_its_id(gateway: GatewayClient) -> None:
    url, body = f"/cog/hello/predictions/{(named := next(ids))}", {"input": {"text": "me"}}
    made = gateway.put(url, json=body, headers=ASYNC)
    assert (made.status_code, made.json()["id"], made.headers["preference-applied"]) == (202, named, "respond-async")
    assert made.json()["status"] in ("starting", "processing", "succeeded")
    for _ in range(2):
        again = gateway.put(url, json=body)
        assert (again.status_code, again.json()["status"], again.json()["output"]) == (200, "succeeded", "hello me")
    posted = gateway.post("/cog/hello/predictions", json={**body, "id": named}, headers=ASYNC)
    assert (posted.status_code, posted.json()["output"]) == (202, "hello me")
    assert len(jobs_of(gateway, named)) == 1


def test_many_at_once_with_one_id_make_one_job(gateway: GatewayClient) -> None:
    url, named = "/cog/hello/predictions", next(ids)

    def put(_: int) -> Any:
        return gateway.put(f"{url}/{named}", json={"input": {"text": "all"}}).json()["output"]

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(put, range(24))) == {"hello all"}
    assert len(jobs_of(gateway, named)) == 1


def test_an_id_whose_prediction_failed_may_be_tried_again(gateway: GatewayClient) -> None:
    url = f"/cog/hello/predictions/{(named := next(ids))}"
    texts = ("trouble", "peace", "peace")
    found = [gateway.put(url, json={"input": {"text": text}}).json() for text in texts]
    assert [one["status"] for one in found] == ["failed", "succeeded", "succeeded"]
    assert found[1:] == [found[1]] * 2
    assert len(jobs_of(gateway, named)) == 2


def test_an_id_whose_result_is_no_longer_kept_is_gone(gateway: GatewayClient, redis_url: str) -> None:
    url, named = "/cog/absent/predictions", next(ids)
    same = fingerprint("cog", "absent", "", Payload(""))
    old = NewJob(new_job_id("absent"), "1", Payload("application/json", b"{}"), result_ttl_s=0.0, fingerprint=same)
    hand = Hand(redis_url, "absent")
    with closing(hand.store):
        hand.store.submit([replace(old, idempotency_key=f"cog:{named}", tags=(f"cog:{named}",))])
        hand.finish(hand.take())
        hand.store.sweep("absent")
    answer = gateway.put(f"{url}/{named}", json=GOOD, headers=ASYNC)
    assert (answer.status_code, answer.json()["code"]) == (410, "gone")


def test_a_model_that_yields_is_a_stream_of_cogs_events(gateway: GatewayClient) -> None:
    url, body = f"/cog/teller/predictions/{(named := next(ids))}", {"input": {"n": 1}}
    for _ in range(2):
        answer = gateway.put(url, json=body, headers=EVENTS)
        assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, EVENTS["accept"])
        events = events_of(answer)
        assert events[:-1] == [
            ("start", {"id": named, "status": "processing"}),
            ("output", {"chunk": "line 0\n", "index": 0}),
            ("output", {"chunk": "end", "index": 1}),
        ]
        name, end = events[-1]
        assert (name, end["id"], end["status"], end["output"]) == ("completed", named, "succeeded", ["line 0\n", "end"])
    assert len(jobs_of(gateway, named)) == 1
    failed = events_of(gateway.post("/cog/teller/predictions", json={"input": {"n": 1, "fail": True}}, headers=EVENTS))
    assert (failed[-1][0], failed[-1][1]["status"], failed[-1][1]["error"]) == ("completed", "failed", "ValueError: no more")


def test_a_model_that_does_not_yield_has_no_stream(gateway: GatewayClient) -> None:
    answer = gateway.post("/cog/hello/predictions", json={"input": {"text": "a"}}, headers=EVENTS)
    assert (answer.status_code, answer.json()["code"]) == (406, "not_acceptable")


def test_a_busy_model_says_so_and_predictions_wait_until_they_are_cancelled(gateway: GatewayClient, tmp_path: Path) -> None:
    gate, running, waiting, lost = tmp_path / "gate", next(ids), next(ids), next(ids)
    url, held = "/cog/teller/predictions", {"input": {"n": 1, "gate": str(gate)}}
    assert status_of(gateway, "absent") == "STARTING"
    eventually(lambda: status_of(gateway, "teller") == "READY")
    gateway.put(f"{url}/{running}", json=held, headers=ASYNC)
    eventually(lambda: jobs_of(gateway, running)[0]["status"] == "running")
    assert status_of(gateway, "teller") == "BUSY"
    made = gateway.put(f"{url}/{waiting}", json=held, headers=ASYNC)
    assert (made.status_code, made.json()["status"]) == (202, "starting")
    with hung_on(gateway, f"{url}/{lost}", held):
        eventually(lambda: jobs_of(gateway, lost))
    eventually(lambda: jobs_of(gateway, lost)[0]["status"] == "cancelled" or jobs_of(gateway, lost)[0]["cancel_requested"])
    assert gateway.post(f"{url}/{waiting}/cancel").status_code == 200
    assert gateway.post(f"{url}/{jobs_of(gateway, running)[0]['id']}/cancel").json() == {}
    gate.touch()
    eventually(lambda: jobs_of(gateway, waiting)[0]["status"] == "cancelled")
    eventually(lambda: status_of(gateway, "teller") == "READY")


@pytest.mark.parametrize("named", ["nobody", f"{SERIAL}-hello", f"{SERIAL}-teller", "%F0%9F%92%A9", "x" * 300])
def test_a_prediction_that_is_not_there_cannot_be_cancelled(gateway: GatewayClient, named: str) -> None:
    assert gateway.post(f"/cog/hello/predictions/{named}/cancel").status_code == 404


def test_a_prediction_of_another_model_cannot_be_cancelled(gateway: GatewayClient) -> None:
    found = predicted(gateway, "hello", {"text": "a"})
    assert gateway.post(f"/cog/hello/predictions/{found['id']}/cancel").status_code == 200
    assert gateway.post(f"/cog/teller/predictions/{found['id']}/cancel").status_code == 404


GOOD = {"input": {"text": "a"}}
BAD: list[tuple[dict[str, Any], int]] = [
    ({"json": {"input": {"text": 3}}}, 422),
    ({"json": {"input": {"text": "a", "times": 9}}}, 422),
    ({"json": {"input": {"nose": 1}}}, 422),
    ({"json": {}}, 422),
    ({"json": {"input": ["a"]}}, 422),
    ({"json": [GOOD]}, 422),
    ({"json": {**GOOD, "surprise": 1}}, 422),
    ({"json": {**GOOD, "webhook": "https://example.com/"}}, 422),
    ({"json": {**GOOD, "webhook_events_filter": ["ended"]}}, 422),
    ({"json": {**GOOD, "output_file_prefix": "https://example.com/"}}, 422),
    ({"json": {**GOOD, "id": "a/b"}}, 400),
    ({"json": {**GOOD, "id": "x" * 61}}, 400),
    ({"json": {**GOOD, "id": ""}}, 400),
    ({"json": {**GOOD, "id": 7}}, 422),
    ({"content": b"{", "headers": {"content-type": "application/json"}}, 400),
    ({"content": b"text", "headers": {"content-type": "text/plain"}}, 415),
    ({"json": GOOD, "headers": {"content-encoding": "gzip"}}, 415),
    ({"json": GOOD, "params": {"wiat": "1"}}, 400),
]


@pytest.mark.parametrize(("sent", "status"), BAD)
def test_a_bad_request_is_refused_as_a_problem(gateway: GatewayClient, sent: dict[str, Any], status: int) -> None:
    answer = gateway.post("/cog/hello/predictions", **sent)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert answer.json()["detail"]


def test_an_id_in_the_body_must_be_that_of_the_path(gateway: GatewayClient) -> None:
    answer = gateway.put("/cog/hello/predictions/one", json={**GOOD, "id": "two"})
    assert (answer.status_code, "'two'" in answer.json()["detail"]) == (422, True)


def test_a_model_without_a_worker_is_refused_at_once_and_queued_in_the_background(gateway: GatewayClient) -> None:
    url = "/cog/absent/predictions"
    for headers in ({}, EVENTS):
        answer = gateway.post(url, json=GOOD, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (503, "no_worker")
    queued = gateway.post(url, json=GOOD, headers=ASYNC)
    assert (queued.status_code, queued.json()["status"]) == (202, "starting")
    assert gateway.post(f"{url}/{queued.json()['id']}/cancel").status_code == 200


@pytest.mark.parametrize(("method", "path"), [("POST", "/shutdown"), ("POST", "/trainings"), ("GET", "/docs")])
def test_what_the_page_calls_refused_is_a_404(gateway: GatewayClient, method: str, path: str) -> None:
    assert gateway.request(method, f"/cog/hello{path}").status_code == 404

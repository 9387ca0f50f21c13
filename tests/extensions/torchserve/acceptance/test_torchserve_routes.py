"""TorchServe's inference routes of a real gateway: which request becomes which job, and what it is answered with."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock import Client, Media
from penstock.errors import InvalidInput, NotFound
from penstock.inputs.form import decode_form
from penstock.job import FORM_MEDIA
from penstock.model_spec import VersionInfo
from penstock.outputs.response_head import ResponseHead, with_head
from tests.acceptance.gateway_process import GatewayClient, Hand, gateway_process
from tests.eventually import eventually
from tests.extensions.torchserve.acceptance.torchserve_gateway import (
    MODELS,
    RAW,
    TORCHSERVE,
    Asked,
    announced,
    check_headers,
    error_of,
)

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the gateway writes to stdout."""
    return tmp_path_factory.mktemp("output") / "gateway.log"


@pytest.fixture(scope="module")
def client(redis_url: str, tmp_path_factory: pytest.TempPathFactory, output: Path) -> Iterator[GatewayClient]:
    env = {**TORCHSERVE, "PENSTOCK_TORCHSERVE__ACCESS_LOG": "true"}
    with (
        output.open("wb") as log,
        gateway_process(redis_url, tmp_path_factory.mktemp("gateway"), models=MODELS, env=env, log=log) as client,
    ):
        yield client


def test_each_answer_is_a_line_of_torchserves_access_log_if_that_is_asked_for(client: GatewayClient, output: Path) -> None:
    client.get("/predictions/nobody-is-called-this?a=1")
    line = r'ACCESS_LOG - /127\.0\.0\.1:\d+ "GET /predictions/nobody-is-called-this\?a=1 HTTP/1\.1" 404 \d+\n'
    eventually(lambda: re.search(line, output.read_text()))
    assert "TS_METRICS - Requests4XX.Count:1.0|#Level:Host|#hostname:" in output.read_text()


@pytest.fixture
def square(redis_url: str, client: httpx2.Client) -> Hand:
    return announced(redis_url, client, "square")


@pytest.fixture
def raw(redis_url: str, client: httpx2.Client) -> Hand:
    return announced(redis_url, client, "raw", RAW)


@pytest.fixture
def flow(redis_url: str, client: httpx2.Client) -> Hand:
    return announced(redis_url, client, "flow", VersionInfo(accepts=RAW.accepts, streams=True))


def test_a_model_of_our_own_answers_with_its_json_and_torchserves_headers(client: httpx2.Client, square: Hand) -> None:
    with square.serving():
        answer = client.post("/predictions/square", json={"x": 4})
    assert (answer.status_code, answer.reason_phrase, answer.json()) == (200, "", {"y": 16})
    check_headers(answer)
    assert UUID.fullmatch(answer.headers["x-request-id"])
    assert answer.headers["content-type"] == "application/json"
    assert client.get(f"/v1/jobs/{answer.headers['x-penstock-job']}").json()["status"] == "succeeded"


@pytest.mark.parametrize("status", [204, 205, 304])
def test_no_body_stands_behind_a_status_that_has_none_where_it_would_pass_for_the_next_response(
    client: httpx2.Client, raw: Hand, status: int
) -> None:
    forged = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged"
    where = (client.base_url.host, client.base_url.port)
    head = ResponseHead(status, "Mine")
    with raw.serving(forged, media=with_head("text/plain", head)), socket.create_connection(where, timeout=10.0) as caller:
        caller.sendall(b"GET /predictions/raw HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        found = b"".join(iter(lambda: caller.recv(65_536), b""))
    assert found.startswith(b"HTTP/1.1 %d Mine\r\n" % status)
    assert b"forged" not in found
    assert b"content-length: 4" not in found


def test_a_callers_own_request_id_is_the_replys(client: httpx2.Client, square: Hand) -> None:
    with square.serving():
        assert (
            client.post("/predictions/square", json={"x": 4}, headers={"x-request-id": "mine"}).headers["x-request-id"]
            == "mine"
        )
    assert client.post("/predictions/nope", headers={"x-request-id": "mine"}).headers["x-request-id"] == "mine"


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH"])
def test_predictions_take_any_method(client: httpx2.Client, raw: Hand, method: str) -> None:
    asked = Asked(client, raw, method, "/predictions/raw", content=b"" if method == "GET" else b"x")
    assert asked.answer.status_code == 200
    assert asked.input.content_type == "application/octet-stream"


@pytest.mark.parametrize(
    ("path", "added"),
    [
        ("/predictions/raw", {"explain": "False", "url_path": ""}),
        ("/predictions/raw/", {"explain": "False", "url_path": ""}),
        ("/predictions/raw/1", {"explain": "False", "url_path": ""}),
        ("/predictions/raw/1/a/b", {"explain": "False", "url_path": "a/b"}),
        ("/explanations/raw", {"explain": "True", "url_path": ""}),
        ("/explanations/raw/1", {"explain": "True", "url_path": ""}),
        ("/v1/models/raw:predict", {"explain": "False"}),
        ("/v1/models/raw:explain", {"explain": "True"}),
        ("/v2/models/raw/infer", {"explain": "False"}),
        ("/v2/models/raw/versions/1/infer", {"explain": "False"}),
        ("/v2/models/raw/explain", {"explain": "True"}),
        ("/models/raw/invoke", {}),
        ("/raw/predict", {}),
        ("/raw/1/predict", {}),
    ],
)
def test_each_route_stores_the_body_as_it_came_with_torchserves_headers(
    client: httpx2.Client, raw: Hand, path: str, added: dict[str, str]
) -> None:
    # The body cannot be parsed: TorchServe leaves it to the handler.
    sent = {**JSON, "x-tenant": "blue", "authorization": "Bearer x", "cookie": "a=b", "explain": "caller", "describe": "True"}
    asked = Asked(client, raw, "POST", path, content=b'{"a":', headers=sent)
    answer, found = asked.answer, asked.input
    assert (answer.status_code, found.content_type, found.data) == (200, "application/json", b'{"a":')
    names = {"explain", "url_path", "describe"}
    assert {name: value for name, value in found.headers.items() if name in names} == added
    assert found.headers["x-tenant"] == "blue"
    assert found.headers["x-request-id"] == answer.headers["x-request-id"]
    assert not {"authorization", "cookie"} & found.headers.keys()


def test_a_form_is_stored_whole_with_its_types(client: httpx2.Client, raw: Hand) -> None:
    files = [("data", (None, b"hi")), ("file", ("a.txt", b"text", "text/plain")), ("data", (None, b"again"))]
    asked = Asked(client, raw, "POST", "/predictions/raw", files=files)
    parts = decode_form(asked.input.data)
    assert asked.input.content_type == FORM_MEDIA
    assert [(part.name, part.data, part.filename) for part in parts] == [
        ("data", b"hi", None),
        ("file", b"text", "a.txt"),
        ("data", b"again", None),
    ]
    assert parts[1].content_type == "text/plain"


def test_an_urlencoded_body_is_stored_as_it_came(client: httpx2.Client, raw: Hand) -> None:
    asked = Asked(client, raw, "POST", "/predictions/raw", data={"a": "1", "b": "2"})
    assert (asked.input.content_type, asked.input.data) == ("application/x-www-form-urlencoded", b"a=1&b=2")


@pytest.mark.parametrize("path", ["/raw/predict?z=2&k=v", "/raw/1/predict?z=2&k=v", "/models/raw/invoke?z=2&k=v"])
def test_query_parameters_are_fields_beside_the_body_on_the_old_routes(client: httpx2.Client, raw: Hand, path: str) -> None:
    asked = Asked(client, raw, "POST", path, content=b'{"a":1}', headers=JSON)
    parts = [(part.name, part.data, part.content_type, part.filename) for part in decode_form(asked.input.data)]
    assert parts == [("z", b"2", "", None), ("k", b"v", "", None), ("body", b'{"a":1}', "application/json", "")]


def test_query_parameters_and_a_form_are_one_form(client: httpx2.Client, raw: Hand) -> None:
    asked = Asked(client, raw, "POST", "/raw/predict?z=2", data={"a": "1"})
    assert [(part.name, part.data) for part in decode_form(asked.input.data)] == [("z", b"2"), ("a", b"1")]


def test_a_model_of_our_own_has_its_fields_in_the_query_of_the_old_routes(client: httpx2.Client, square: Hand) -> None:
    with square.serving():
        assert client.post("/square/predict?x=4").json() == {"y": 16}
    assert error_of(client.post("/square/predict?x=four"))["type"] == "BadRequestException"


def test_on_other_routes_foreign_query_parameters_are_ignored_and_ours_are_not(client: httpx2.Client, square: Hand) -> None:
    with square.serving():
        assert client.post("/predictions/square?now=1&deadline_s=20", json={"x": 4}).status_code == 200
    assert error_of(client.post("/predictions/square?deadline_s=never", json={"x": 4}))["code"] == 400


@pytest.mark.parametrize(
    ("path", "how"),
    [
        ("/invocations?model_name=raw", {"content": b"x"}),
        ("/invocations", {"data": {"model_name": "raw"}}),
        ("/invocations/", {"files": [("model_name", (None, b"raw")), ("data", (None, b"1"))]}),
    ],
)
def test_an_invocation_names_its_model_in_a_field(client: httpx2.Client, raw: Hand, path: str, how: dict[str, Any]) -> None:
    assert Asked(client, raw, "POST", path, **how).answer.status_code == 200


def test_what_a_handler_says_of_its_response_is_the_response(client: httpx2.Client, raw: Hand) -> None:
    class Said(Asked):
        def finish(self, hand: Hand) -> None:
            head = ResponseHead(422, "Bad Thing", {"X-Mine": "1"}, untyped=True)
            hand.finish(self.job, b"why", media=with_head("text/plain; charset=utf-8", head))

    asked = Said(client, raw, "POST", "/predictions/raw", content=b"x")
    answer = asked.answer
    assert (answer.status_code, answer.reason_phrase, answer.text, answer.headers["x-mine"]) == (422, "Bad Thing", "why", "1")
    assert "content-type" not in answer.headers
    assert "x-handler-status" not in answer.headers
    check_headers(answer)
    # Its job has succeeded, so our own route answers 200 and tells the handler's status in a header.
    result = client.get(f"/v1/jobs/{asked.job.id}/result")
    assert (result.status_code, result.text, result.headers["x-mine"]) == (200, "why", "1")
    assert (result.headers["x-handler-status"], result.headers["content-type"]) == ("422", "text/plain; charset=utf-8")


def test_outputs_keep_the_media_type_that_their_handler_names(client: httpx2.Client, raw: Hand) -> None:
    class Page(Asked):
        def finish(self, hand: Hand) -> None:
            hand.finish(self.job, b"<b>", media="text/html")

    answer = Page(client, raw, "POST", "/predictions/raw", content=b"x").answer
    assert (answer.status_code, answer.headers["content-type"], answer.content) == (200, "text/html", b"<b>")
    # A page of a model's is none of ours.
    assert answer.headers["content-security-policy"] == "sandbox"


def test_chunks_are_sent_as_they_come_and_the_first_one_opens_the_response(client: httpx2.Client, flow: Hand) -> None:
    class Told(Asked):
        def finish(self, hand: Hand) -> None:
            head = with_head("text/plain", ResponseHead(201, "Made", {"x-mine": "1"}))
            hand.say(self.job, {"$head": head}, "pärt\n", {"$bytes": "AAE="}, {"a": 1})
            hand.finish(self.job, b"all of it", media="text/plain")

    answer = Told(client, flow, "POST", "/predictions/flow", content=b"x").answer
    assert (answer.status_code, answer.reason_phrase) == (201, "Made")
    assert answer.content == "pärt\n".encode() + b'\x00\x01{\n  "a": 1\n}'
    assert (answer.headers["transfer-encoding"], answer.headers["content-type"]) == ("chunked", "text/plain")
    assert answer.headers["x-mine"] == "1"
    check_headers(answer)


def test_chunks_without_a_media_type_are_untyped(client: httpx2.Client, flow: Hand) -> None:
    class Told(Asked):
        def finish(self, hand: Hand) -> None:
            hand.say(self.job, "a", "b")
            hand.finish(self.job, b"ab", media="text/plain")

    answer = Told(client, flow, "POST", "/predictions/flow", content=b"x").answer
    assert (answer.text, "content-type" in answer.headers) == ("ab", False)


def test_a_model_that_may_stream_and_does_not_answers_as_others_do(client: httpx2.Client, flow: Hand) -> None:
    answer = Asked(client, flow, "POST", "/predictions/flow", content=b"x").answer
    assert (answer.status_code, answer.json(), answer.headers["content-length"]) == (200, {"y": 16}, "8")


def test_a_client_that_leaves_cancels_its_job(client: httpx2.Client, raw: Hand) -> None:
    with socket.create_connection((client.base_url.host, client.base_url.port or 80)) as connection:
        connection.sendall(b"GET /predictions/raw HTTP/1.1\r\nhost: localhost\r\n\r\n")
        job = raw.take()
    eventually(lambda: client.get(f"/v1/jobs/{job.id}").json()["cancel_requested"])
    raw.finish(job)


@pytest.mark.parametrize("path", ["/ping", "/ping/"])
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_a_ping_tells_whether_every_declared_model_is_served(client: httpx2.Client, method: str, path: str) -> None:
    answer = client.request(method, path)
    check_headers(answer)
    # Some models of this test have no worker.
    assert (answer.status_code, answer.text) == (500, '{\n  "status": "Unhealthy"\n}\n')


@pytest.mark.parametrize(("method", "path"), [("OPTIONS", "/"), ("GET", "/api-description"), ("POST", "/api-description/")])
def test_the_routes_describe_themselves(client: httpx2.Client, method: str, path: str) -> None:
    found = client.request(method, path).json()
    assert (found["openapi"], found["info"]["title"]) == ("3.0.1", "TorchServe APIs")
    assert {"/ping", "/predictions/{model_name}", "/v2/models/{model_name}/infer"} <= found["paths"].keys()


def test_a_model_describes_itself(client: httpx2.Client) -> None:
    found = client.request("OPTIONS", "/predictions/square")
    check_headers(found)
    assert found.json()["info"]["title"] == "RESTful API for: square"
    assert list(found.json()["paths"]) == ["/predictions/square"]
    assert error_of(client.request("OPTIONS", "/predictions/nope"))["code"] == 404


def test_a_page_of_another_site_runs_nothing_with_any_method(client: httpx2.Client, square: Hand) -> None:
    for method in ("GET", "POST"):
        answer = client.request(method, "/predictions/square", headers={"sec-fetch-site": "cross-site"})
        assert error_of(answer)["code"] == 403


def test_penstocks_own_client_and_routes_keep_their_own_words(client: httpx2.Client, square: Hand, flow: Hand) -> None:
    with Client(str(client.base_url)) as ours:
        with pytest.raises(NotFound) as refused:
            ours.predict("nope", {"x": 4})
        assert refused.value.kind == "not_found"
        with pytest.raises(InvalidInput):
            ours.predict("square", {"x": "four"})
        with square.serving():
            assert ours.predict("square", {"x": 4}) == {"y": 16}
        # The answer of a handler that writes chunks, or sets a status, is what it is without TorchServe's routes.
        with flow.serving(b"why", media=with_head("text/plain", ResponseHead(422, "Bad Thing"))):
            assert ours.predict("flow", b"x") == Media(b"why", "text/plain")
    assert client.get("/v1/jobs/nope").json()["code"] == "malformed_id"
    assert client.get("/").headers["content-type"].startswith("text/html")
    # The Open Inference Protocol stays with models that speak it.
    assert "error" in client.post("/v2/models/square/infer", json={}).json()

"""Predictions through the unmodified `replicate` package, with Cog's predictors in a real worker."""

from __future__ import annotations

import io
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.job import JobState
from tests.acceptance.gateway_process import GatewayClient
from tests.eventually import eventually
from tests.extensions.replicate.acceptance.predictors import predictors_served

with warnings.catch_warnings():
    # The package builds on pydantic's first version.
    warnings.simplefilter("ignore")
    from replicate.client import Client
    from replicate.exceptions import ModelError, ReplicateError


@pytest.fixture(scope="module")
def gateway(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayClient]:
    with predictors_served(redis_url, tmp_path_factory.mktemp("replicate")) as client:
        yield client


@pytest.fixture(scope="module")
def client(gateway: GatewayClient) -> Iterator[Client]:
    made = Client(api_token="none", base_url=f"{gateway.base_url}/replicate")
    made.poll_interval = 0.02
    yield made
    made._client.close()


def test_run_waits_for_the_output(client: Client) -> None:
    assert client.run("me/hello", input={"text": "world"}) == "hello world"
    assert client.run("me/hello:hello:1", input={"text": "world", "times": 2}) == "hello world hello world"
    assert client.run("me/hello", input={"text": "later"}, wait=False) == "hello later"


def test_a_prediction_is_a_job_that_both_protocols_show(client: Client, gateway: GatewayClient) -> None:
    made = client.predictions.create(version="hello:1", input={"text": "you"})
    assert (made.input, made.model, made.version) == ({"text": "you"}, "hello", "hello:1")
    # A quick model may have ended by the time its record is read.
    assert made.status in ("starting", "succeeded")
    made.wait()
    assert (made.status, made.output, made.error, made.logs) == ("succeeded", "hello you", None, "")
    assert made.metrics is not None
    assert made.metrics["predict_time"] >= 0.0
    assert made.created_at is not None
    assert made.completed_at is not None
    assert gateway.get(f"/v1/jobs/{made.id}/result").json() == "hello you"
    assert made.id in [one.id for one in client.predictions.list()]


def test_the_list_goes_on_by_its_cursor(client: Client, gateway: GatewayClient) -> None:
    for _ in range(101):
        gateway.post("/replicate/v1/predictions", json={"version": "hello:1", "input": {"text": "page"}})
    first = client.predictions.list()
    assert (len(first), first.previous) == (100, None)
    assert first.next is not None
    second = client.predictions.list(first.next)
    assert not {one.id for one in first} & {one.id for one in second}


def test_the_failure_of_a_model_is_its_error(client: Client) -> None:
    with pytest.raises(ModelError) as raised:
        client.run("me/hello", input={"text": "trouble"})
    assert raised.value.prediction.error == "ValueError: no greeting for trouble"


def test_a_model_and_its_versions_are_shown_with_cogs_schemas(client: Client) -> None:
    model = client.models.get("me/hello")
    assert (model.owner, model.name) == ("me", "hello")
    version = model.versions.get("hello:1")
    assert [one.id for one in model.versions.list()] == ["hello:1"]
    schemas = version.openapi_schema["components"]["schemas"]
    assert schemas["Input"]["properties"]["text"]["description"] == "Whom to greet"
    assert schemas["Output"] == {"title": "Output", "type": "string"}
    assert client.run(version, input={"text": "version"}) == "hello version"  # type: ignore[arg-type]


def test_open_files_are_uploaded_and_data_urls_taken(client: Client, gateway: GatewayClient) -> None:
    sent = io.BytesIO(b"picture")
    sent.name = "picture.png"
    output: Any = client.run("me/files", input={"image": sent})
    assert output["size"] == 7
    assert output["small"].read() == b"picture"
    made: Any = client.run("me/files", input={"image": io.BytesIO(b"more")}, file_encoding_strategy="base64")
    assert made["small"].read() == b"more"
    [file] = client.files.list()
    assert (file.name, file.size, file.content_type) == ("picture.png", 7, "image/png")
    assert client.files.get(file.id).urls == file.urls
    assert client.files.delete(file.id)
    with pytest.raises(ReplicateError) as raised:
        client.run("me/files", input={"image": file.urls["get"]})
    assert raised.value.status == 404


def test_a_large_file_of_the_output_is_a_link(client: Client, gateway: GatewayClient) -> None:
    output: Any = client.run("me/files", input={"image": "data:text/plain;base64,YQ==", "grow": 300_000})
    assert output["small"].read() == b"a"
    assert gateway.get(output["large"]).content == b"a" + bytes(300_000)


def test_a_predictor_that_yields_streams_and_its_output_is_a_list(client: Client, gateway: GatewayClient) -> None:
    events = list(client.stream("me/teller", input={"n": 2}))
    assert [event.event.value for event in events] == ["output", "output", "output", "done"]
    assert [event.data for event in events] == ["line 0\n", "line 1\n", "end", "{}"]
    assert client.run("me/teller", input={"n": 1}) == ["line 0\n", "end"]
    assert list(client.run("me/teller:teller:1", input={"n": 1})) == ["line 0\n", "end"]
    with pytest.raises(RuntimeError, match="no more"):
        list(client.stream("me/teller", input={"n": 1, "fail": True}))


def test_what_was_yielded_so_far_is_the_output_of_a_running_prediction(client: Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    made = client.predictions.create(version="teller:1", input={"n": 2, "gate": str(gate)})

    def grown() -> bool:
        made.reload()
        return made.status == "processing" and made.output == ["line 0\n", "line 1\n"]

    eventually(grown)
    assert made.input == {"n": 2, "gate": str(gate)}
    gate.touch()
    made.wait()
    assert made.output == ["line 0\n", "line 1\n", "end"]


def test_a_wait_that_runs_out_says_starting_although_the_model_runs(client: Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    made = client.predictions.create(version="teller:1", input={"n": 1, "gate": str(gate)}, wait=1)
    before = made.status
    gate.touch()
    made.wait()
    assert (before, made.status) == ("starting", "succeeded")


def test_a_cancelled_prediction_is_canceled_and_a_late_one_too(client: Client, gateway: GatewayClient, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    running = client.predictions.create(version="teller:1", input={"n": 1, "gate": str(gate)})
    eventually(lambda: client.predictions.get(running.id).status == "processing")
    waiting = client.predictions.create(version="teller:1", input={"n": 1})
    waiting.cancel()
    late = {"version": "teller:1", "input": {"n": 1}}
    made = gateway.post("/replicate/v1/predictions", json=late, headers={"Cancel-After": "1s"}).json()
    # Its time is over before the model is free; a worker may have had it in its hands, and then ends it when it gets to it.
    time.sleep(1.1)
    gate.touch()
    eventually(lambda: client.predictions.get(made["id"]).status == "canceled")
    assert "deadline" in str(client.predictions.get(made["id"]).error)
    running.wait()
    running.cancel()
    assert running.status == "succeeded"
    # A worker may have had it in its hands, and ends it when it gets to it.
    eventually(lambda: client.predictions.get(waiting.id).status == "canceled")
    assert gateway.get(f"/v1/jobs/{waiting.id}").json()["status"] == JobState.CANCELLED.public


HELLO = {"version": "hello:1", "input": {"text": "a"}}
BAD: list[tuple[dict[str, Any], int]] = [
    ({"json": {"version": "nobody:1", "input": {}}}, 422),
    ({"json": {"version": "hello:9", "input": {}}}, 422),
    ({"json": {"version": "1", "input": {}}}, 422),
    ({"json": {"input": {"text": "a"}}}, 422),
    ({"json": {"version": "hello:1"}}, 422),
    ({"json": {"version": "hello:1", "input": ["a"]}}, 422),
    ({"json": {"version": "hello:1", "input": {"text": 3}}}, 422),
    ({"json": {"version": "hello:1", "input": {"text": "a", "times": 9}}}, 422),
    ({"json": {"version": "hello:1", "input": {"nose": 1}}}, 422),
    ({"json": {**HELLO, "webhook": "https://example.com/"}}, 422),
    ({"json": {**HELLO, "surprise": 1}}, 422),
    ({"json": HELLO, "headers": {"Cancel-After": "soon"}}, 400),
    ({"content": b"{", "headers": {"content-type": "application/json"}}, 400),
    ({"content": b"text", "headers": {"content-type": "text/plain"}}, 415),
    ({"json": HELLO, "params": {"priorty": "bulk"}}, 400),
]


@pytest.mark.parametrize(("sent", "status"), BAD)
def test_a_bad_request_is_refused_as_a_problem_that_the_client_reads(
    gateway: GatewayClient, sent: dict[str, Any], status: int
) -> None:
    answer = gateway.post("/replicate/v1/predictions", **sent)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    problem = answer.json()
    assert problem["status"] == status
    assert problem["detail"]


def test_the_client_raises_what_the_problem_says(client: Client) -> None:
    with pytest.raises(ReplicateError) as raised:
        client.run("me/hello", input={"text": "a", "times": 9})
    assert (raised.value.status, "/times" in str(raised.value.detail)) == (422, True)
    with pytest.raises(ReplicateError) as raised:
        client.predictions.get("01k9xw3c5t8ze2m4v6b7n0q1rs-hello")
    assert raised.value.status == 404


def test_an_upload_without_its_part_is_refused(gateway: GatewayClient) -> None:
    answer = gateway.post("/replicate/v1/files", files={"file": ("a", b"x")})
    assert (answer.status_code, "`content`" in answer.text) == (400, True)


def test_links_follow_the_name_by_which_the_gateway_was_called(gateway: GatewayClient) -> None:
    host = f"localhost:{httpx2.URL(str(gateway.base_url)).port}"
    made = gateway.post("/replicate/v1/predictions", json=HELLO, headers={"host": host}).json()
    assert made["urls"]["get"].startswith(f"http://{host}/replicate/v1/predictions/")
    for said, scheme in (("https", "https"), ("HTTPS, http", "https"), ("gopher", "http"), ("", "http")):
        head = {"host": host, "x-forwarded-proto": said}
        found = gateway.get(f"/replicate/v1/predictions/{made['id']}", headers=head).json()
        assert found["urls"]["get"].startswith(f"{scheme}://{host}/")


def test_what_is_said_of_a_file_is_kept(client: Client, gateway: GatewayClient) -> None:
    made = client.files.create(io.BytesIO(b"abc"), metadata={"kind": "mask", "of": [1, 2]})
    assert client.files.get(made.id).metadata == made.metadata == {"kind": "mask", "of": [1, 2]}
    assert client.files.delete(made.id)
    for said in ("[1]", "{", '"kind"'):
        refused = gateway.post("/replicate/v1/files", files={"content": ("a", b"x")}, data={"metadata": said})
        assert (refused.status_code, "metadata" in refused.json()["detail"]) == (400, True)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/predictions"),
        ("GET", "/health-check"),
        ("GET", "/replicate/v1/trainings"),
        ("GET", "/replicate/v1/collections"),
        ("GET", "/replicate/v1/hardware"),
        ("GET", "/replicate/v1/account"),
        ("POST", "/replicate/v1/models"),
    ],
)
def test_what_the_page_calls_refused_is_a_404(gateway: GatewayClient, method: str, path: str) -> None:
    assert gateway.request(method, path).status_code == 404

"""Files and embeddings through the unmodified `openai` package, with a fake worker that the test controls."""

from __future__ import annotations

import base64
import json
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

import openai
import psutil
import pytest

from penstock.inputs.request import decode_request
from penstock.model_spec import VersionInfo
from tests.acceptance.gateway_process import GatewayClient, Hand, gateway_process
from tests.eventually import eventually

MIB = 1024 * 1024
TEXT = VersionInfo(input_schema={"type": "string"}, accepts=("application/json",))
MODELS = {
    "embedder": {"source": "embedder.py:Embedder"},
    "knowing": {"source": "embedder.py:Embedder", "request_headers": ["x-tenant"]},
    "square": {"source": "square.py:Square"},
    # No other file of the suite serves it: a worker of theirs would have left the model's schema in the shared store.
    "never_served": {"source": "square.py:Square"},
}


@pytest.fixture(scope="module")
def gateway(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayClient]:
    env = {"PENSTOCK_RUNS__MAX_FILE_BYTES": str(150 * MIB)}
    with gateway_process(redis_url, tmp_path_factory.mktemp("gateway"), models=MODELS, env=env, cold=True) as client:
        yield client


@pytest.fixture(scope="module")
def client(gateway: GatewayClient) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.base_url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def embedder(redis_url: str, gateway: GatewayClient) -> Iterator[Hand]:
    hand = Hand(redis_url, "embedder")
    hand.announce(TEXT)
    eventually(lambda: gateway.get("/v1/models/embedder").json()["ready"])
    yield hand
    hand.store.withdraw_worker(hand.name)
    hand.store.close()


@contextmanager
def embedding(hand: Hand) -> Iterator[None]:
    """Answers each text with the embedding [length, length / 2], until the block ends."""
    stop = threading.Event()

    def serve() -> None:
        while not stop.wait(0.002):
            for job in hand.claim().jobs:
                length = len(json.loads(job.input.data))
                hand.finish(job, json.dumps([length, length / 2]).encode())

    with ThreadPoolExecutor(1) as pool:
        served = pool.submit(serve)
        try:
            yield
        finally:
            stop.set()
            served.result(5.0)


def test_what_there_is_not_is_refused_in_openais_form_and_says_what_there_is(client: openai.OpenAI) -> None:
    """Regression: the refusal of /v1/chat/completions had our form alone, and the client showed no reason."""
    with pytest.raises(openai.NotFoundError, match="there are /v1/files, /v1/batches, /v1/embeddings") as refused:
        client.chat.completions.create(model="square", messages=[{"role": "user", "content": "4"}])
    assert refused.value.code == "not_found"
    with pytest.raises(openai.NotFoundError, match="/v1/models/MODEL/jobs"):
        client.responses.create(model="square", input="4")


def test_a_file_is_stored_listed_read_and_deleted(client: openai.OpenAI) -> None:
    data = b'{"a": 1}\n' * 100
    made = client.files.create(file=("../../input.jsonl", data), purpose="batch")
    assert (made.bytes, made.purpose, made.status, made.filename) == (900, "batch", "processed", "input.jsonl")
    assert made.expires_at is not None
    assert made.expires_at - made.created_at == 30 * 86_400
    assert client.files.retrieve(made.id) == made
    assert made.id in [file.id for file in client.files.list(purpose="batch")]
    assert made.id not in [file.id for file in client.files.list(purpose="vision")]
    assert client.files.content(made.id).read() == data
    assert client.files.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.content(made.id)


def test_the_pages_of_the_list_hold_each_file_once(client: openai.OpenAI) -> None:
    made = {client.files.create(file=("a.jsonl", b"x"), purpose="vision").id for _ in range(5)}
    for order in ("asc", "desc"):
        found = [file.id for file in client.files.list(purpose="vision", limit=2, order=order)]
        assert (set(found), len(found)) == (made, 5)


def test_a_file_is_kept_as_long_as_its_uploader_says(client: openai.OpenAI) -> None:
    made = client.files.create(file=("a.jsonl", b"x"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600})
    assert made.expires_at == made.created_at + 3600
    for seconds in (3599, 2_592_001):
        with pytest.raises(openai.BadRequestError) as refused:
            client.files.create(file=b"x", purpose="batch", expires_after={"anchor": "created_at", "seconds": seconds})
        assert refused.value.param == "expires_after"


def test_an_upload_takes_no_memory_of_its_size_and_leaves_nothing_when_it_is_refused(
    client: openai.OpenAI, gateway: GatewayClient
) -> None:
    watched = psutil.Process(gateway.process.pid)
    client.files.create(file=b"x" * MIB, purpose="batch")
    before = watched.memory_info().rss
    made = client.files.create(file=("large.jsonl", b"x" * 100 * MIB), purpose="batch")
    assert made.bytes == 100 * MIB
    assert watched.memory_info().rss - before < 16 * MIB
    known = len(client.files.list().data)
    answer = gateway.post("/v1/files", files={"file": ("larger.jsonl", b"x" * 151 * MIB)}, data={"purpose": "batch"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    assert watched.memory_info().rss - before < 16 * MIB
    assert len(client.files.list().data) == known
    assert client.files.delete(made.id).deleted


@pytest.mark.parametrize(
    ("files", "data", "code"),
    [
        ({"file": ("a", b"")}, {"purpose": "batch"}, 400),
        ({"file": ("a", b"x")}, {}, 400),
        ({"other": ("a", b"x")}, {"purpose": "batch"}, 400),
        ({"file": ("a", b"x")}, {"purpose": "x" * 5_000}, 400),
        ({"file": ("a", b"x")}, {f"f{number}": "x" for number in range(20)}, 400),
    ],
)
def test_a_form_that_is_not_one_file_with_a_purpose_is_refused(
    gateway: GatewayClient, files: dict[str, tuple[str, bytes]], data: dict[str, str], code: int
) -> None:
    answer = gateway.post("/v1/files", files=files, data=data)
    assert answer.status_code == code, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "body",
    [
        b"--b\r\n" + b"".join(b"h%d: a\r\n" % number for number in range(100_000)) + b"\r\nx\r\n--b--\r\n",
        b"".join(b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\nx\r\n' for _ in range(5_000)) + b"--b--\r\n",
        b"no form at all",
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\ncut off',
    ],
    ids=["headers", "parts", "none", "cut"],
)
def test_a_form_that_is_a_bomb_or_no_form_is_refused(gateway: GatewayClient, body: bytes) -> None:
    answer = gateway.post("/v1/files", content=body, headers={"content-type": "multipart/form-data; boundary=b"})
    assert answer.status_code == 400, answer.text


def test_the_models_are_listed_as_the_package_reads_them_and_as_penstock_shows_them(
    client: openai.OpenAI, gateway: GatewayClient
) -> None:
    # Regression: the package listed models whose id was None.
    listed = {model.id: model for model in client.models.list()}
    assert MODELS.keys() <= listed.keys()
    assert {(model.object, model.owned_by, model.created) for model in listed.values()} == {("model", "penstock", 0)}
    assert client.models.retrieve("square").id == "square"
    page = gateway.get("/v1/models").json()
    assert page["object"] == "list"
    assert {model["name"] for model in page["data"]} == listed.keys()
    assert {"default_version", "ready", "versions", "limits"} <= page["data"][0].keys()


def test_embeddings_come_as_the_package_asks_for_them(client: openai.OpenAI, embedder: Hand, gateway: GatewayClient) -> None:
    texts = ["four", "five!", "sixsix"]
    with embedding(embedder):
        packed = client.embeddings.create(model="embedder", input=texts)
        plain = client.embeddings.create(model="embedder", input=texts, encoding_format="float", dimensions=2)
        single = client.embeddings.create(model="embedder", input="one")
        wire = gateway.post("/v1/embeddings", json={"model": "embedder", "input": "one", "encoding_format": "base64"})
    expected = [[4, 2.0], [5, 2.5], [6, 3.0]]
    assert [item.embedding for item in packed.data] == [item.embedding for item in plain.data] == expected
    assert [item.index for item in packed.data] == [0, 1, 2]
    assert single.data[0].embedding == [3, 1.5]
    assert wire.json()["data"][0]["embedding"] == base64.b64encode(struct.pack("<2f", 3, 1.5)).decode()
    job = wire.headers["x-penstock-job"]
    assert gateway.get(f"/v1/jobs/{job}").json()["status"] == "succeeded"


def test_a_model_of_embeddings_is_told_the_headers_that_its_settings_name(redis_url: str, gateway: GatewayClient) -> None:
    hand, ask = Hand(redis_url, "knowing"), {"model": "knowing", "input": "one"}
    hand.announce(TEXT)
    eventually(lambda: gateway.get("/v1/models/knowing").json()["ready"])
    with closing(hand.store), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(gateway.post, "/v1/embeddings", json=ask, headers={"x-tenant": "acme"})
        job = hand.take()
        hand.finish(job, b"[1, 2]")
        assert asked.result(30.0).status_code == 200
        hand.store.withdraw_worker(hand.name)
    told = decode_request(job.input.data)
    assert (told.data, told.headers) == (b'"one"', {"x-tenant": "acme"})


def test_what_cannot_be_embedded_is_refused_in_openais_words(client: openai.OpenAI, embedder: Hand) -> None:
    for given in ([1, 2, 3], [[1, 2], [3]]):
        with pytest.raises(openai.BadRequestError, match="takes texts, not token ids") as refused:
            client.embeddings.create(model="embedder", input=given)
        assert refused.value.param == "input"
    with pytest.raises(openai.NotFoundError, match="embedder"):
        client.embeddings.create(model="embeder", input="x")
    with embedding(embedder), pytest.raises(openai.BadRequestError) as wrong:
        client.embeddings.create(model="embedder", input="x", dimensions=3)
    assert wrong.value.param == "dimensions"
    with pytest.raises(openai.InternalServerError, match="no ready worker"):
        client.embeddings.create(model="never_served", input="x")


def test_a_batch_is_made_found_listed_and_cancelled_before_a_runner_takes_it(client: openai.OpenAI) -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": "embedder", "input": "x"}}
    file = client.files.create(file=("in.jsonl", json.dumps(line).encode()), purpose="batch")
    made = client.batches.create(
        input_file_id=file.id, endpoint="/v1/embeddings", completion_window=cast("Any", "1h30m"), metadata={"team": "data"}
    )
    assert (made.status, made.input_file_id, made.completion_window) == ("validating", file.id, "1h30m")
    assert (made.model, made.metadata, made.output_file_id) == ("embedder", {"team": "data"}, None)
    assert made.expires_at == made.created_at + 5400
    assert client.batches.retrieve(made.id) == made
    assert made.id in [batch.id for batch in client.batches.list(limit=1)]
    assert client.batches.cancel(made.id).status == "cancelled"
    # A repeat is answered alike, as the package repeats a call whose answer was lost.
    assert client.batches.cancel(made.id).status == "cancelled"


def test_one_idempotency_key_makes_one_batch(client: openai.OpenAI) -> None:
    file = client.files.create(file=("in.jsonl", b"{}"), purpose="batch")

    def create(window: str) -> str:
        return client.batches.create(
            input_file_id=file.id,
            endpoint=cast("Any", "/v1/models/square/jobs"),
            completion_window=cast("Any", window),
            extra_headers={"idempotency-key": "once"},
        ).id

    assert create("1h") == create("1h")
    with pytest.raises(openai.UnprocessableEntityError) as reused:
        create("2h")
    assert reused.value.code == "idempotency_key_reused"


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": "31d"}, "completion_window"),
        ({"endpoint": "/v1/chat/completions"}, "endpoint"),
        ({"endpoint": "/explanations/square"}, "endpoint"),
        ({"metadata": {"k" * 65: "v"}}, "metadata"),
        ({"metadata": {"penstock:window": "1h"}}, "metadata"),
    ],
)
def test_a_batch_that_cannot_be_made_names_the_parameter(client: openai.OpenAI, asked: dict[str, object], param: str) -> None:
    file = client.files.create(file=("in.jsonl", b"{}"), purpose="batch")
    body = {"input_file_id": file.id, "endpoint": "/v1/embeddings", "completion_window": "24h", **asked}
    with pytest.raises(openai.BadRequestError) as refused:
        client.post("/batches", body=body, cast_to=object)
    assert refused.value.param == param


def test_files_are_on_the_disk_for_their_owner_alone(gateway: GatewayClient, tmp_path: Path) -> None:
    answer = gateway.get("/v1/files/..%2f..%2fetc%2fpasswd/content")
    assert answer.status_code == 404

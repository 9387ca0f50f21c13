"""OpenAI batches from the upload to the error file: the unmodified `openai` package against a real `penstock up`."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types import Batch

from penstock.client.runs import RowFailed, RunOptions
from penstock.client.sync import Client
from tests.acceptance.test_cli import Up, stopped
from tests.acceptance.warm_up import started
from tests.eventually import eventually

MODEL = """
import time

from penstock import Failure, Handler


class Square(Handler):
    def inference(self, batch: list) -> list:
        return [self.one(item) for item in batch]

    def one(self, item: object) -> object:
        time.sleep(item.get("sleep", 0))
        return {"y": item["x"] ** 2} if isinstance(item.get("x"), int) else Failure("x is no number", code="not_a_number")


class Embedder(Handler):
    def inference(self, batch: list[str]) -> list[list[float]]:
        return [[float(len(text)), 0.5] for text in batch]
"""
SETTINGS = """
[models.square]
source = "models.py:Square"

[models.embedder]
source = "models.py:Embedder"
"""
JOBS = "/v1/models/square/jobs"
EMBEDDINGS = "/v1/embeddings"
ENDED = ("completed", "failed", "cancelled", "expired")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("batches")
    (folder / "models.py").write_text(MODEL)
    (folder / "penstock.toml").write_text(SETTINGS)
    running = started(folder)
    yield running
    assert stopped(running) == 0, (folder / "up.log").read_text()


@pytest.fixture(scope="module")
def client(up: Up) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{up.ready['url']}/v1", api_key="none") as client:
        yield client


def line(custom_id: str, body: Any, url: str = JOBS) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def started_batch(client: openai.OpenAI, lines: list[Any], *, endpoint: str = JOBS, window: str = "10m") -> Batch:
    text = "".join((item if isinstance(item, str) else json.dumps(item)) + "\n" for item in lines)
    file = client.files.create(file=("in.jsonl", text.encode()), purpose="batch")
    return client.batches.create(
        input_file_id=file.id,
        endpoint=endpoint,  # type: ignore[arg-type]
        completion_window=window,  # type: ignore[arg-type]
    )


def ended(client: openai.OpenAI, batch: Batch) -> Batch:
    def ended_batch() -> Batch | None:
        found = client.batches.retrieve(batch.id)
        return found if found.status in ENDED else None

    return eventually(ended_batch, timeout_s=30.0)


def lines_of(client: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    return [json.loads(text) for text in client.files.content(file_id).text.splitlines()] if file_id else []


def test_a_batch_over_any_model_is_answered_line_by_line(client: openai.OpenAI) -> None:
    bodies: list[Any] = [{"x": number} for number in range(200)]
    bodies[7] = {"x": "seven"}
    batch = ended(client, started_batch(client, [line(f"row-{n}", body) for n, body in enumerate(bodies)]))
    assert batch.status == "completed", batch
    assert batch.request_counts is not None
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (200, 199, 1)
    output = lines_of(client, batch.output_file_id)
    assert [line["custom_id"] for line in output] == [f"row-{n}" for n in range(200) if n != 7]
    assert all(line["response"]["body"] == {"y": int(line["custom_id"][4:]) ** 2} for line in output)
    [wrong] = lines_of(client, batch.error_file_id)
    assert (wrong["custom_id"], wrong["response"], wrong["error"]["code"]) == ("row-7", None, "not_a_number")
    assert batch.completed_at is not None
    assert client.files.retrieve(batch.output_file_id or "").purpose == "batch_output"


def test_embeddings_in_a_batch_look_like_the_endpoints_own(client: openai.OpenAI) -> None:
    lines = [
        line("one", {"model": "embedder", "input": "abc"}, EMBEDDINGS),
        line("two", {"model": "embedder", "input": ["a", "ab"], "encoding_format": "base64"}, EMBEDDINGS),
    ]
    batch = ended(client, started_batch(client, lines, endpoint=EMBEDDINGS))
    assert (batch.status, batch.model) == ("completed", "embedder")
    one, two = (line["response"]["body"] for line in lines_of(client, batch.output_file_id))
    direct = client.embeddings.create(model="embedder", input="abc")
    assert one["data"][0]["embedding"] == direct.data[0].embedding == [3.0, 0.5]
    packed = [base64.b64encode(struct.pack("<2f", length, 0.5)).decode() for length in (1.0, 2.0)]
    assert [item["embedding"] for item in two["data"]] == packed
    assert batch.request_counts is not None
    assert batch.request_counts.total == 2


def test_one_bad_line_fails_the_batch_and_is_named(client: openai.OpenAI) -> None:
    batch = ended(client, started_batch(client, [line("a", {"x": 1}), "no json", line("a", {"x": 2})]))
    assert (batch.status, batch.output_file_id) == ("failed", None)
    assert batch.errors is not None
    faults = [(fault.line, fault.code) for fault in batch.errors.data or []]
    assert faults == [(2, "invalid_json_line"), (3, "duplicate_custom_id")]


@pytest.mark.parametrize(
    ("lines", "endpoint", "code", "number"),
    [
        ([line(str(n), {"x": n}) for n in range(50_001)], JOBS, "too_many_lines", 50_001),
        (["no json"], EMBEDDINGS, "invalid_json_line", 1),
        ([line("a", {"model": "nobody", "input": "x"}, EMBEDDINGS)], EMBEDDINGS, "model_not_found", 1),
    ],
    ids=["many", "first", "model"],
)
def test_what_is_wrong_with_the_whole_file_is_reported_too(
    client: openai.OpenAI, lines: list[Any], endpoint: str, code: str, number: int
) -> None:
    batch = ended(client, started_batch(client, lines, endpoint=endpoint))
    assert batch.errors is not None
    assert [(fault.line, fault.code) for fault in batch.errors.data or []] == [(number, code)]


def test_a_cancelled_batch_keeps_the_lines_that_were_finished(client: openai.OpenAI) -> None:
    lines = [line(str(n), {"x": n, "sleep": 0.02}) for n in range(500)]
    batch = started_batch(client, lines)
    eventually(lambda: (client.batches.retrieve(batch.id).request_counts or batch).completed > 0, timeout_s=30.0)  # type: ignore[union-attr]
    assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    batch = ended(client, batch)
    output, errors = lines_of(client, batch.output_file_id), lines_of(client, batch.error_file_id)
    assert batch.status == "cancelled"
    assert 0 < len(output) < 500
    # Lines that ran behind lines that did not are in the output too; each file keeps the order of the input.
    ran, not_reached = ([int(line["custom_id"]) for line in lines] for lines in (output, errors))
    assert (ran, not_reached) == (sorted(ran), sorted(not_reached))
    assert sorted([*ran, *not_reached]) == list(range(500))
    assert {line["error"]["code"] for line in errors} == {"batch_cancelled"}


def test_lines_that_were_not_reached_in_time_are_reported_as_expired(client: openai.OpenAI) -> None:
    lines = [line(str(n), {"x": n, "sleep": 0.02}) for n in range(500)]
    batch = ended(client, started_batch(client, lines, window="2s"))
    output, errors = lines_of(client, batch.output_file_id), lines_of(client, batch.error_file_id)
    assert (batch.status, batch.expired_at is not None) == ("expired", True)
    assert {line["custom_id"] for line in [*output, *errors]} == {str(n) for n in range(500)}
    assert {line["error"]["code"] for line in errors} == {"batch_expired"}
    assert len(output) + len(errors) == 500


def test_a_run_of_our_own_client_ends_with_its_results_in_order(up: Up) -> None:
    with Client(up.ready["url"]) as client:
        run = client.run("square", ({"x": number if number != 3 else "three"} for number in range(50)))
        assert run.wait(30.0).status == "completed", run.view.body
        results = list(run)
    assert len(results) == len(run) == 50
    assert isinstance(results[3], RowFailed)
    assert [result for n, result in enumerate(results) if n != 3] == [{"y": n * n} for n in range(50) if n != 3]


def test_a_run_of_a_file_stops_after_too_many_failures(up: Up) -> None:
    with Client(up.ready["url"]) as client:
        run = client.run("square", [{"x": "no"}] * 20, options=RunOptions(max_failed=3))
        view = run.wait(30.0)
    assert (view.status, view.error and view.error["code"]) == ("failed", "too_many_failed")

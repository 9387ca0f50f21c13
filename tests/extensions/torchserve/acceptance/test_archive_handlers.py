"""Handlers of TorchServe's archives in a real worker, asked through penstock's own routes."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from penstock.client.handles.job_handle import JobHandle
from penstock.client.problems import JobFailed
from tests.eventually import eventually
from tests.stack import Stack

HANDLERS = {
    "doer": """
        import logging
        from ts.service import PredictionException

        log = logging.getLogger(__name__)

        class Doer:
            def initialize(self, context):
                with open("words.txt") as file:
                    self.word = file.read()

            def handle(self, data, context):
                out = []
                for idx, row in enumerate(data):
                    todo = row.get("body")
                    if todo == "raise":
                        raise ValueError("bad row")
                    if todo == "refuse":
                        raise PredictionException("no such cat", 404)
                    if todo == "status":
                        context.set_response_status(422, "Bad Thing", idx)
                        context.set_response_content_type(idx, "text/csv")
                        out.append("a,b")
                        continue
                    log.info("doing %r", todo)
                    out.append([len(data), self.word, {name: repr(value) for name, value in row.items()}])
                return out
    """,
    "first": """
        def handle(data, context):
            if data is None:
                return None
            return [[data[0]["body"], len(data)]] * len(data)
    """,
    "teller": """
        from ts.handler_utils.utils import send_intermediate_predict_response
        class Teller:
            def handle(self, data, context):
                for word in ("one ", b"two ", {"n": 3}, b"\\xff"):
                    send_intermediate_predict_response([word] * len(data), context.request_ids, "ok", 200, context)
                return ["end"] * len(data)
    """,
    "absent": """
        raise RuntimeError("Found no NVIDIA driver on your system")
    """,
}


def write_mar(folder: Path, name: str, source: str) -> Path:
    manifest = {"runtime": "python", "model": {"modelName": name, "modelVersion": "1.0", "handler": "handler.py"}}
    path = folder / f"{name}.mar"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
        archive.writestr("handler.py", dedent(source))
        archive.writestr("words.txt", "from the archive")
    return path


@pytest.fixture(scope="module")
def served(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("archives")
    with archives_served(redis_url, folder) as found:
        yield found


@contextmanager
def archives_served(redis_url: str, folder: Path) -> Iterator[Stack]:
    models = {name: {"source": str(write_mar(folder, name, source)), "max_batch_size": 8} for name, source in HANDLERS.items()}
    with Stack(folder, models, store=redis_url) as stack:
        stack.start_worker()
        gateway = stack.start_gateway()
        ready = [name for name in HANDLERS if name != "absent"]
        eventually(lambda: all(gateway.get(f"/v1/models/{name}").json()["ready"] for name in ready), timeout_s=60.0)
        yield stack


def submitted(served: Stack, model: str, **request: Any) -> Any:
    answer = served.http.post(f"/v1/models/{model}/jobs", **request)
    assert answer.status_code == 202, answer.text
    return served.client.job(answer.json()["id"]).result(timeout_s=30.0)


def version_of(served: Stack, model: str) -> Any:
    return served.http.get(f"/v1/models/{model}").json()["versions"]["1.0"]


def test_every_kind_of_body_is_torchserves_row(served: Stack) -> None:
    def row(**request: Any) -> dict[str, str]:
        found: dict[str, str] = submitted(served, "doer", **request)[2]
        return found

    assert row(json={"a": 1}) == {"body": "{'a': 1}"}
    assert row(content=b"hi", headers={"content-type": "text/plain"}) == {"body": "'hi'"}
    assert row(content=b"\x89PNG", headers={"content-type": "image/png"}) == {"body": "bytearray(b'\\x89PNG')"}
    assert row(data={"a": "1", "b": "x y"}) == {"a": "bytearray(b'1')", "b": "bytearray(b'x y')"}
    assert row(data={"a": "1"}, files={"image": ("c.png", b"\x89", "image/png"), "note": ("n.txt", b"hi", "text/plain")}) == {
        "a": "bytearray(b'1')",
        "image": "bytearray(b'\\x89')",
        "note": "'hi'",
    }


def test_only_the_rows_at_fault_of_a_batch_fail(served: Stack) -> None:
    handles = served.client.submit_many("doer", ["a", "raise", "b", "refuse", "c", "d", "e", "f"])
    assert [said(handle) for handle in handles] == [
        "from the archive",
        ("handler_error", "ValueError: bad row"),
        "from the archive",
        ("prediction_exception", "no such cat : 404"),
        *["from the archive"] * 4,
    ]


def said(handle: JobHandle) -> Any:
    try:
        return handle.result(timeout_s=30.0)[1]
    except JobFailed as error:
        return error.problem.code, error.problem.detail


def test_a_status_of_the_handler_is_no_failure_of_the_job(served: Stack) -> None:
    answer = served.http.post("/v1/models/doer/jobs", json="status")
    served.client.job(answer.json()["id"]).result(timeout_s=30.0)
    result = served.http.get(f"/v1/jobs/{answer.json()['id']}/result")
    assert (result.status_code, result.headers["content-type"], result.text) == (200, "text/csv", "a,b")


def test_a_handler_that_reads_the_first_row_answers_each_row_of_a_batch(served: Stack) -> None:
    handles = served.client.submit_many("first", list(range(32)))
    found = [handle.result(timeout_s=30.0) for handle in handles]
    assert [one[0] for one in found] == list(range(32))
    assert {one[1] for one in found} == {1}
    assert max(batch.size for handle in handles if (batch := handle.refresh().batch)) > 1
    assert "torchserve_runs_one_by_one: it reads one request of a batch only" in served.worker.log.read_text()


def test_what_a_handler_sends_before_its_answers_is_the_stream_of_its_job(served: Stack) -> None:
    chunks = list(served.client.stream("teller", {"a": 1}))
    assert chunks == ["one ", "two ", {"n": 3}, {"$bytes": "/w=="}, "end"]
    assert version_of(served, "teller")["streams"] is True
    assert served.client.predict("teller", {"a": 1}) == b'one two {\n  "n": 3\n}\xffend'


def test_what_a_handler_logs_stands_in_the_workers_log(served: Stack) -> None:
    submitted(served, "doer", json="said in the log")
    eventually(lambda: "doing 'said in the log'" in served.worker.log.read_text(), timeout_s=10.0)


def test_a_handler_that_needs_a_gpu_says_so(served: Stack) -> None:
    eventually(lambda: "uses CUDA, and its process has no GPU" in version_of(served, "absent")["why"], timeout_s=30.0)

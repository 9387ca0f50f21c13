"""One bad item in a batch of eight, as an HTTP caller sees it: seven answers, and one error that names the item's fault."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from tests.acceptance.test_cli import ROOT
from tests.integration.worker_process import FAULTY
from tests.stack import Stack

# Eight images that the model classifies as their labels say.
IMAGES = [path for path in sorted((ROOT / "examples" / "digits" / "images").glob("*.png")) if path.name != "0421_5.png"][:8]
MODELS = {
    "digits": {"source": f"{ROOT}/examples/digits/handler.py"},
    "faulty": {"source": f"{FAULTY}:Faulty", "max_batch_size": 8, "max_run_s": 2.0},
    "greedy": {"source": f"{FAULTY}:Faulty", "max_batch_size": 8, "memory_limit_bytes": 500_000_000},
}
BAD = 3


@pytest.fixture(scope="module")
def client(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("bad")
    with Stack(folder, MODELS, store=redis_url) as stack:
        client, worker = stack.start_gateway(), stack.start_worker()
        stack.await_ready()
        yield client
        worker.send(signal.SIGTERM)
        assert worker.exit_code(within_s=60.0) == 0, worker.log.read_text()


def result(client: httpx2.Client, job: dict[str, Any]) -> httpx2.Response:
    """The final response of a job, however long the job takes."""
    while (answer := client.get(job["links"]["result"], params={"wait": "30"})).status_code == 202:
        pass
    return answer


def eight_orders(client: httpx2.Client, deed: str, *, model: str = "faulty") -> list[dict[str, Any]]:
    """Eight jobs, the fourth of which does `deed`.

    The eight jobs meet in one batch, because the slot is busy with an earlier job while they arrive.
    """
    client.post(f"/v1/models/{model}/jobs", json={"do": "sleep", "seconds": 0.4})
    orders = [{"do": deed if n == BAD else "echo", "tag": n} for n in range(8)]
    return [client.post(f"/v1/models/{model}/jobs", json=order).json() for order in orders]


def results(client: httpx2.Client, jobs: list[dict[str, Any]]) -> list[httpx2.Response]:
    return [result(client, job) for job in jobs]


@pytest.fixture(scope="module")
def slow_orders(client: httpx2.Client) -> dict[str, list[dict[str, Any]]]:
    """The jobs by deed that take seconds; they run at the same time, in two processes."""
    return {"hang": eight_orders(client, "hang"), "exhaust": eight_orders(client, "exhaust", model="greedy")}


def check(answers: list[httpx2.Response], code: str) -> str:
    """The `detail` of the bad item's error, after checks that the error is as expected and that the other seven succeeded.

    409, not 5xx: the gateway did its work, and a proxy must not take it out for what a model did.
    """
    assert [answer.json() for n, answer in enumerate(answers) if n != BAD] == [n for n in range(8) if n != BAD]
    bad = answers[BAD]
    assert (bad.status_code, bad.json()["code"]) == (409, code), bad.text
    assert bad.headers["x-should-retry"] == "false"
    detail: str = bad.json()["detail"]
    assert "Traceback" not in detail
    return detail


def test_one_file_that_is_no_image_fails_alone_among_seven_images(client: httpx2.Client) -> None:
    bodies = [path.read_bytes() for path in IMAGES]
    bodies[BAD] = b"not a picture"
    with ThreadPoolExecutor(8) as threads:
        headers = {"content-type": "image/png"}
        answers = list(threads.map(lambda body: client.post("/v1/models/digits/jobs", content=body, headers=headers), bodies))
    ends = [result(client, answer.json()) for answer in answers]
    assert [end.status_code for end in ends] == [409 if n == BAD else 200 for n in range(8)]
    labels = {n: end.json()["label"] for n, end in enumerate(ends) if n != BAD}
    assert labels == {n: int(path.stem[-1]) for n, path in enumerate(IMAGES) if n != BAD}
    assert "image" in ends[BAD].json()["detail"]


def test_an_item_that_raises(client: httpx2.Client) -> None:
    assert check(results(client, eight_orders(client, "raise")), "handler_error") == f"ValueError: bad item {BAD}"


def test_an_item_that_the_handler_refuses_with_a_code_of_its_own(client: httpx2.Client) -> None:
    answers = results(client, eight_orders(client, "fail"))
    assert check(answers, "refused") == f"refused {BAD}"
    assert client.get(answers[BAD].json()["type"]).status_code == 200


def test_an_item_that_hangs(client: httpx2.Client, slow_orders: dict[str, list[dict[str, Any]]]) -> None:
    assert "max_run_s" in check(results(client, slow_orders["hang"]), "timeout")


def test_an_item_that_segfaults(client: httpx2.Client) -> None:
    assert "died" in check(results(client, eight_orders(client, "segfault")), "poison")


def test_an_item_that_exhausts_memory(client: httpx2.Client, slow_orders: dict[str, list[dict[str, Any]]]) -> None:
    """The model is `greedy`, which has no tight time limit.

    With `faulty`, the job once timed out while other tests occupied the cores: filling the memory took longer than `max_run_s`.
    """
    check(results(client, slow_orders["exhaust"]), "oom")

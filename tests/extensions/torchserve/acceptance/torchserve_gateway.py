"""A gateway that speaks TorchServe's protocol, asked while the test is the worker."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx2

from penstock.broker.records import ClaimedJob
from penstock.inputs.request import RequestInput, decode_request
from penstock.model_spec import VersionInfo
from tests.acceptance.gateway_process import Hand
from tests.eventually import eventually

TORCHSERVE = {"PENSTOCK_TORCHSERVE__ENABLED": "true", "PENSTOCK_TORCHSERVE__MAX_RESPONSE_BYTES": "100000"}
RAW = VersionInfo(accepts=("*/*", "multipart/form-data"))
MODELS = {
    "square": {"source": "square.py:Square"},
    "raw": {"source": "raw.py:Raw", "request_headers": ["*"]},
    "flow": {"source": "raw.py:Flow", "request_headers": ["*"]},
    "idle": {"source": "idle.py:Idle"},
    "small": {"source": "small.py:Small", "max_queue_depth": 1},
}


def announced(redis_url: str, client: httpx2.Client, model: str, info: VersionInfo | None = None) -> Hand:
    hand = Hand(redis_url, model)
    hand.announce(info)
    for job in hand.claim().jobs:
        hand.finish(job)
    eventually(lambda: client.get(f"/v1/models/{model}").json()["ready"])
    return hand


class Asked:
    """A request that waits for its answer while the test is the worker."""

    def __init__(self, client: httpx2.Client, hand: Hand, *args: Any, **kwargs: Any) -> None:
        with ThreadPoolExecutor(1) as pool:
            self._answer: Future[httpx2.Response] = pool.submit(client.request, *args, **kwargs)
            self.job: ClaimedJob = hand.take()
            self.finish(hand)

    def finish(self, hand: Hand) -> None:
        hand.finish(self.job)

    @property
    def answer(self) -> httpx2.Response:
        return self._answer.result(10.0)

    @property
    def input(self) -> RequestInput:
        return decode_request(self.job.input.data)


class AskedAndRefused(Asked):
    code, message = "", ""

    def finish(self, hand: Hand) -> None:
        hand.fail(self.job, self.code, self.message)


def error_of(answer: httpx2.Response) -> dict[str, Any]:
    """The error object, of which the headers and the form are checked."""
    assert answer.headers["content-type"] == "application/json"
    check_headers(answer)
    found: dict[str, Any] = answer.json()
    assert list(found) == ["code", "type", "message"]
    assert found["code"] == answer.status_code
    assert answer.text.startswith('{\n  "code": ')
    assert answer.text.endswith('"\n}\n')
    return found


def check_headers(answer: httpx2.Response) -> None:
    assert answer.headers["x-request-id"]
    assert answer.headers["pragma"] == "no-cache"
    assert answer.headers["cache-control"] == "no-cache; no-store, must-revalidate, private"
    assert answer.headers["expires"] == "Thu, 01 Jan 1970 00:00:00 UTC"

"""What TorchServe's inference routes answer to what cannot be done: its statuses, its error object, its words."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest

from penstock.model_spec import VersionInfo
from tests.acceptance.gateway_process import GatewayClient, Hand, gateway_process
from tests.extensions.torchserve.acceptance.torchserve_gateway import (
    MODELS,
    RAW,
    TORCHSERVE,
    Asked,
    AskedAndRefused,
    announced,
    error_of,
)

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def client(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayClient]:
    with gateway_process(redis_url, tmp_path_factory.mktemp("gateway"), models=MODELS, env=TORCHSERVE) as client:
        yield client


@pytest.fixture
def square(redis_url: str, client: httpx2.Client) -> Hand:
    return announced(redis_url, client, "square")


@pytest.fixture
def raw(redis_url: str, client: httpx2.Client) -> Hand:
    return announced(redis_url, client, "raw", RAW)


@pytest.fixture
def flow(redis_url: str, client: httpx2.Client) -> Hand:
    return announced(redis_url, client, "flow", VersionInfo(accepts=RAW.accepts, streams=True))


@pytest.mark.parametrize(
    ("code", "status", "message"),
    [
        ("handler_error", 503, "Prediction failed"),
        ("bad_output_type", 503, "Invalid model predict output"),
        ("bad_output_length", 503, "number of batch response mismatched"),
        ("bad_output_value", 503, "Unsupported model output data type."),
        ("oom", 507, "Out of resources"),
        ("timeout", 500, "Worker died."),
        ("poison", 500, "Worker died."),
    ],
)
def test_a_failed_job_is_answered_as_torchserve_answers_its_failure(
    client: httpx2.Client, raw: Hand, code: str, status: int, message: str
) -> None:
    class Failed(AskedAndRefused):
        pass

    Failed.code, Failed.message = code, "why"
    found = error_of(Failed(client, raw, "POST", "/predictions/raw", content=b"x").answer)
    assert found == {"code": status, "type": "InternalServerException", "message": message}


NOWHERE = "Requested resource is not found, please refer to API document."
NO_WORKER = (
    " has no worker to serve inference request. Please use scale workers API to add workers. If this is a sequence inference, "
    "please check if it is closed, or expired; or exceeds maxSequenceJobQueueSize"
)


@pytest.mark.parametrize(
    ("path", "status", "name", "message"),
    [
        ("/predictions", 404, "ResourceNotFoundException", NOWHERE),
        ("/predictions/", 404, "ResourceNotFoundException", NOWHERE),
        ("/predictions/nope", 404, "ModelNotFoundException", "Model not found: nope"),
        ("/explanations/nope", 404, "ModelNotFoundException", "Model not found: nope"),
        ("/v1/models/nope:predict", 404, "ModelNotFoundException", "Model not found: nope"),
        ("/models/nope/invoke", 404, "ModelNotFoundException", "Model not found: nope"),
        ("/invocations?model_name=nope", 404, "ModelNotFoundException", "Model not found: nope"),
        ("/nope/predict", 404, "ModelNotFoundException", "Model not found: nope"),
        (
            "/predictions/square/9.9",
            404,
            "ModelVersionNotFoundException",
            "Model version: 9.9 does not exist for model: square",
        ),
        ("/invocations", 400, "BadRequestException", "Parameter model_name is required."),
        ("/predictions/idle", 503, "ServiceUnavailableException", f'Model "idle"{NO_WORKER}'),
        ("/predictions/idle/1", 503, "ServiceUnavailableException", f'Model "idle" Version 1"{NO_WORKER}'),
    ],
)
def test_refusals_have_torchserves_words(client: httpx2.Client, path: str, status: int, name: str, message: str) -> None:
    answer = client.post(path, json={"x": 4})
    assert error_of(answer) == {"code": status, "type": name, "message": message}
    assert ("retry-after" in answer.headers) == (status == 503)


def test_a_full_queue_is_told_with_its_depth_and_a_time_to_come_back(redis_url: str, client: httpx2.Client) -> None:
    announced(redis_url, client, "small")
    assert client.post("/v1/models/small/jobs", json={"x": 4}).status_code == 202
    answer = client.post("/predictions/small", json={"x": 4})
    found = error_of(answer)
    assert (found["code"], found["type"]) == (429, "ServiceUnavailableException")
    assert "1 waiting, the limit is 1" in found["message"]
    assert int(answer.headers["retry-after"]) >= 1


def test_a_body_over_the_limit_is_refused_with_an_error_object(client: httpx2.Client, square: Hand) -> None:
    found = error_of(client.post("/predictions/square", content=b" " * (5 << 20), headers=JSON))
    assert (found["code"], found["type"]) == (413, "BadRequestException")
    assert "limit of this media type is 4194304" in found["message"]


def test_an_answer_over_the_limit_is_refused(client: httpx2.Client, raw: Hand) -> None:
    class Large(Asked):
        def finish(self, hand: Hand) -> None:
            hand.finish(self.job, b"x" * 100_001, media="text/plain")

    found = error_of(Large(client, raw, "POST", "/predictions/raw", content=b"x").answer)
    assert found["code"] == 507
    assert "has 100001 bytes; torchserve.max_response_bytes allows 100000" in found["message"]


def test_a_failure_before_the_first_chunk_is_an_error_object(client: httpx2.Client, flow: Hand) -> None:
    class Failed(AskedAndRefused):
        code = "handler_error"

    assert error_of(Failed(client, flow, "POST", "/predictions/flow", content=b"x").answer)["message"] == "Prediction failed"


def test_a_failure_behind_the_first_chunk_cuts_the_answer(client: httpx2.Client, flow: Hand) -> None:
    class Cut(Asked):
        def finish(self, hand: Hand) -> None:
            hand.say(self.job, "part")
            hand.fail(self.job, "handler_error", "boo")

    with pytest.raises(httpx2.RemoteProtocolError):
        _ = Cut(client, flow, "POST", "/predictions/flow", content=b"x").answer

"""What becomes of a request without an output, in TorchServe's words."""

from __future__ import annotations

import orjson
import pytest

from penstock.errors import InvalidInput, NoWorker, Overloaded, PenstockError, UnknownModel, UnknownVersion
from penstock.extensions.torchserve.gateway.answer import bytes_in, head_in
from penstock.extensions.torchserve.gateway.refusals import as_torchserve, prediction_error
from penstock.extensions.torchserve.gateway.routes import TorchServeTarget
from penstock.gateway.asgi.problems import EndedWithoutOutput, NoAnswerYet, render
from penstock.job import JobId, JobState
from penstock.outputs.response_head import PREDICTION_EXCEPTION, prediction_message

JOB = JobId("01k9xw3c5t8ze2m4v6b7n0q1rs", "m")
TARGET = TorchServeTarget("/predictions/{model}", "m", "")
FAILED = "InternalServerException"


def ended(code: str = "", message: str = "why", state: JobState = JobState.FAILED) -> EndedWithoutOutput:
    return EndedWithoutOutput(message, job=JOB, state=state, code=code)


@pytest.mark.parametrize(
    ("error", "status", "name", "message"),
    [
        (ended("handler_error"), 503, FAILED, "Prediction failed"),
        (ended("handler_contract"), 503, FAILED, "Invalid model predict output"),
        (ended("worker_lost"), 500, FAILED, "Worker died."),
        (ended(PREDICTION_EXCEPTION, prediction_message("no such cat", 404)), 404, FAILED, "no such cat"),
        (ended(PREDICTION_EXCEPTION, prediction_message("broken", 500)), 500, FAILED, "broken"),
        (ended("a_code_of_its_own"), 500, FAILED, "why"),
        (ended("invalid_input"), 400, "BadRequestException", "why"),
        (ended("bad_image"), 400, "BadRequestException", "why"),
        (ended("bad_output_value"), 503, FAILED, "Unsupported model output data type."),
        (ended("not_explainable"), 501, FAILED, "why"),
        (ended("load_failed"), 503, "ServiceUnavailableException", "why"),
        (ended(state=JobState.EXPIRED), 504, "RequestTimeoutException", "why"),
        (ended(state=JobState.CANCELLED), 409, "ConflictStatusException", "why"),
        (NoAnswerYet("late", job=JOB), 504, "RequestTimeoutException", "late"),
        (UnknownModel("no", model="x"), 404, "ModelNotFoundException", "Model not found: x"),
        (
            UnknownVersion("no", model="m", version="9.9"),
            404,
            "ModelVersionNotFoundException",
            "Model version: 9.9 does not exist for model: m",
        ),
        (InvalidInput("x is missing"), 400, "BadRequestException", "x is missing"),
        (Overloaded("100 wait", hint="Wait."), 429, "ServiceUnavailableException", "100 wait. Wait."),
        (ValueError("secret"), 500, FAILED, "The gateway failed on this request."),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_each_end_has_torchserves_status_name_and_message(error: Exception, status: int, name: str, message: str) -> None:
    assert prediction_error(error, TARGET).body == {"code": status, "type": name, "message": message}


@pytest.mark.parametrize(
    ("version", "begins"), [("", 'Model "m" has no worker to'), ("2", 'Model "m" Version 2" has no worker to')]
)
def test_a_missing_worker_is_told_with_the_version_that_was_asked_for(version: str, begins: str) -> None:
    found = prediction_error(NoWorker("none"), TARGET._replace(version=version))
    assert (found.status, found.name) == (503, "ServiceUnavailableException")
    assert found.message.startswith(begins)


def test_a_refusal_keeps_the_headers_that_programs_read() -> None:
    error: PenstockError = NoWorker("none", retry_after_s=5.0)
    problem = as_torchserve(TARGET, render(error, request_id="r1", instance="/x"), error)
    headers = dict(problem.headers)
    assert (headers[b"x-request-id"], headers[b"pragma"]) == (b"r1", b"no-cache")
    assert 1 <= int(headers[b"retry-after"]) <= 6
    assert headers[b"content-type"] == b"application/json"
    assert int(headers[b"content-length"]) == len(problem.body)
    assert orjson.loads(problem.body)["code"] == problem.status == 503


@pytest.mark.parametrize(
    ("value", "data"),
    [
        ("grün", "grün".encode()),
        ({"$bytes": "AAE="}, b"\x00\x01"),
        ({"a": [1]}, b'{\n  "a": [\n    1\n  ]\n}'),
        ({"$bytes": "AAE=", "a": 1}, b'{\n  "$bytes": "AAE=",\n  "a": 1\n}'),
        (None, b"null"),
    ],
)
def test_a_chunk_stands_for_bytes(value: object, data: bytes) -> None:
    assert bytes_in(value) == data
    assert head_in(value) == ""


def test_a_chunk_may_be_the_head_of_the_response() -> None:
    assert head_in({"$head": "text/plain"}) == "text/plain"

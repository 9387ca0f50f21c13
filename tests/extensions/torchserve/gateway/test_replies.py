"""TorchServe's error object and headers, as its clients read them."""

from __future__ import annotations

import uuid

import pytest

from penstock.errors import (
    BadRequest,
    Conflict,
    InvalidInput,
    NotFound,
    NoWorker,
    Overloaded,
    StorageFull,
    StoreUnavailable,
    TooLarge,
    Unauthorized,
)
from penstock.extensions.torchserve.gateway.errors import (
    TorchServeError,
    bad_request,
    model_not_found,
    no_path,
    torchserve_error,
    version_not_found,
)
from penstock.extensions.torchserve.gateway.replies import control_reply, error_reply, reply_headers
from penstock.gateway.asgi.problems import MethodNotAllowed


@pytest.mark.parametrize(
    ("error", "status", "name"),
    [
        (BadRequest("b"), 400, "BadRequestException"),
        (InvalidInput("i"), 400, "BadRequestException"),
        (Unauthorized("u"), 401, "InvalidKeyException"),
        (NotFound("n"), 404, "ModelNotFoundException"),
        (MethodNotAllowed("m", allow="GET"), 405, "MethodNotAllowedException"),
        (Conflict("c"), 409, "ConflictStatusException"),
        (TooLarge("t"), 413, "BadRequestException"),
        (Overloaded("o"), 429, "ServiceUnavailableException"),
        (NoWorker("w"), 503, "ServiceUnavailableException"),
        (StoreUnavailable("s"), 503, "ServiceUnavailableException"),
        (StorageFull("f"), 507, "InternalServerException"),
        (no_path(), 404, "ResourceNotFoundException"),
        (bad_request("p"), 400, "BadRequestException"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_each_error_of_ours_has_torchserves_status_and_name(error: Exception, status: int, name: str) -> None:
    found = torchserve_error(error)
    assert (found.status, found.name) == (status, name)


def test_a_message_keeps_its_hint_and_a_bug_tells_nothing_of_its_cause() -> None:
    assert torchserve_error(BadRequest("it is wrong.", hint="Mend it.")).message == "it is wrong. Mend it."
    assert "secret" not in torchserve_error(ValueError("secret")).message
    assert "10.0.0.7" not in torchserve_error(StoreUnavailable("10.0.0.7 refused")).message


def test_an_unknown_model_and_version_are_told_in_torchserves_words() -> None:
    assert model_not_found("x").body == {"code": 404, "type": "ModelNotFoundException", "message": "Model not found: x"}
    assert version_not_found("m", "9").message == "Model version: 9 does not exist for model: m"


def test_the_error_object_is_pretty_printed_and_ends_with_a_line_break() -> None:
    reply = error_reply(TorchServeError(404, "ModelNotFoundException", 'Model not found: "é"'))
    wanted = '{\n  "code": 404,\n  "type": "ModelNotFoundException",\n  "message": "Model not found: \\"é\\""\n}\n'
    assert bytes(reply.body).decode() == wanted
    assert reply.headers["content-length"] == str(len(wanted.encode()))
    assert reply.headers["content-type"] == "application/json"


def test_a_refusal_for_want_of_capacity_says_when_to_come_back() -> None:
    assert error_reply(NoWorker("none", retry_after_s=7.0)).headers["retry-after"] == "7"
    assert "retry-after" not in error_reply(BadRequest("no")).headers


def test_every_reply_has_torchserves_headers() -> None:
    reply = control_reply({"models": []})
    assert bytes(reply.body) == b'{\n  "models": []\n}\n'
    assert reply.headers["pragma"] == "no-cache"
    assert reply.headers["cache-control"] == "no-cache; no-store, must-revalidate, private"
    assert reply.headers["expires"] == "Thu, 01 Jan 1970 00:00:00 UTC"
    assert uuid.UUID(reply.headers["x-request-id"]).version == 4


def test_a_well_formed_id_of_the_caller_is_kept_and_another_is_not() -> None:
    assert reply_headers(b"mine-1")[0] == (b"x-request-id", b"mine-1")
    assert reply_headers(b"no\r\nx: 1")[0][1] != b"no\r\nx: 1"

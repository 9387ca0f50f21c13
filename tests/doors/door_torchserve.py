"""TorchServe's predictions over HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from tests.doors.door import Refusal, Reply
from tests.doors.door_predictions import CANCELS, PredictionsDoor

_FAILED, _UNAVAILABLE = "InternalServerException", "ServiceUnavailableException"
_BAD = "BadRequestException"
REFUSALS: Mapping[str, Refusal] = {
    "unauthorized": (401, "InvalidKeyException"),
    "wrong_role": (403, "InvalidKeyException"),
    "rate_limited": (429, _UNAVAILABLE),
    "quota_spent": (429, _UNAVAILABLE),
    "overloaded": (429, _UNAVAILABLE),
    "no_worker": (503, _UNAVAILABLE),
    "store_unavailable": (503, _UNAVAILABLE),
    "storage_full": (507, _FAILED),
    "unknown_model": (404, "ModelNotFoundException"),
    "unknown_version": (404, "ModelVersionNotFoundException"),
    "unreadable": (400, _BAD),
    "empty": (400, _BAD),
    "media": (415, _BAD),
    "misfit": (400, _BAD),
    "too_large": (413, _BAD),
    "key_reused": (422, _BAD),
    "expired": (504, "RequestTimeoutException"),
    "headers": (431, _BAD),
    "cross_site": (403, "InvalidKeyException"),
    "failed:handler_error": (503, _FAILED),
    "failed:my_own": (500, _FAILED),
    "failed:bad_image": (400, _BAD),
    "failed:invalid_input": (400, _BAD),
    "failed:too_large": (413, _BAD),
    "failed:input_url_failed": (400, _BAD),
    "failed:oom": (507, _FAILED),
    "failed:timeout": (500, _FAILED),
    "failed:load_failed": (503, _UNAVAILABLE),
}


class TorchServeDoor(PredictionsDoor):
    """The routes of predictions for callers who do not name penstock's form of a refusal."""

    name: ClassVar[str] = "torchserve"
    title: ClassVar[str] = "HTTP"
    page: ClassVar[str] = "torchserve.md"
    accept: ClassVar[str] = "*/*"
    refusals: ClassVar[Mapping[str, Refusal]] = REFUSALS
    lacks: ClassVar[Mapping[str, str]] = {
        "cancel": CANCELS,
        "method": "TorchServe takes a prediction by any method",
    }

    def code_in(self, body: Any) -> str:
        return str(body.get("type", "")) if isinstance(body, dict) else ""

    def check_refusal(self, reply: Reply) -> None:
        assert reply.headers["content-type"] == "application/json"
        found = json.loads(reply.text)
        assert list(found) == ["code", "type", "message"]
        assert found["code"] == reply.status
        assert reply.headers["pragma"] == "no-cache"

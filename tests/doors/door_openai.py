"""OpenAI's embeddings: a text in, a vector out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from tests.doors.door import Call, Refusal, Reply
from tests.doors.http_door import PROBLEMS, HttpDoor

_OPTION = "OpenAI's embeddings have no such option"


class EmbeddingsDoor(HttpDoor):
    name: ClassVar[str] = "embeddings"
    title: ClassVar[str] = "`/v1/embeddings`"
    page: ClassVar[str] = "openai.md"
    route: ClassVar[str] = "/v1/embeddings"
    model: ClassVar[str] = "vectors"
    # What is no text is taken for token ids, which this model does not take.
    refusals: ClassVar[Mapping[str, Refusal]] = {**PROBLEMS, "misfit": (400, "bad_request")}
    lacks: ClassVar[Mapping[str, str]] = {
        "versions": "OpenAI's `model` names a model, and the body has no other place for a version",
        "unknown_version": "OpenAI's `model` names a model, and the body has no other place for a version",
        "deadline": _OPTION,
        "expired": _OPTION,
        "priority": _OPTION,
        "webhook": _OPTION,
        "idempotency": "one request may be many jobs, which are answered together",
        "key_reused": "one request may be many jobs, which are answered together",
        "split_repeat": "there are no repeats without an idempotency key",
        "counted": "the body names the model, so one that is too large is counted as of the model `unknown`",
        "cancel": "who hangs up cancels",
    }

    def path_of(self, call: Call) -> str:
        return "/v1/embeddings"

    def body_of(self, call: Call) -> Any:
        return {"model": call.model, "input": [7] if call.misfit else call.text}

    def number_in(self, body: Any) -> float | None:
        vector: list[float] = body["data"][0]["embedding"]
        return vector[0]

    def check_refusal(self, reply: Reply) -> None:
        assert reply.headers["content-type"] == "application/json"
        found = json.loads(reply.text)
        assert found["error"].keys() == {"message", "type", "param", "code"}
        assert found["error"]["code"] == reply.code
        assert found["status"] == reply.status

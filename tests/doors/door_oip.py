"""The Open Inference Protocol over HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import httpx2

from tests.doors.door import Call, Refusal, Reply
from tests.doors.door_predictions import CANCELS
from tests.doors.http_door import PROBLEMS, HttpDoor

WEBHOOK = "the protocol's parameters have no webhook; a key or a model may have a default one"
PRIORITY = {"interactive": 0, "bulk": 5}


class OipDoor(HttpDoor):
    name: ClassVar[str] = "oip"
    title: ClassVar[str] = "REST"
    page: ClassVar[str] = "open-inference-protocol.md"
    route: ClassVar[str] = "/v2/models/{model}/infer"
    refusals: ClassVar[Mapping[str, Refusal]] = PROBLEMS
    lacks: ClassVar[Mapping[str, str]] = {"webhook": WEBHOOK, "cancel": CANCELS}

    def path_of(self, call: Call) -> str:
        return f"/v2/models/{call.model}" + (f"/versions/{call.version}" if call.version else "") + "/infer"

    def body_of(self, call: Call) -> Any:
        given = {"name": "order", "datatype": "INT64" if call.misfit else "BYTES", "shape": [1]}
        parameters: dict[str, int] = {}
        if call.priority:
            parameters["priority"] = PRIORITY[call.priority]
        if call.deadline_s is not None:
            parameters["timeout"] = int(call.deadline_s * 1e6)
        return {"inputs": [{**given, "data": [7 if call.misfit else call.text]}], "parameters": parameters}

    def read(self, answer: httpx2.Response) -> Reply:
        found = super().read(answer)
        if answer.status_code >= 400:
            return found
        outputs = {one["name"]: one["data"] for one in answer.json()["outputs"]}
        return replace(found, n=float(outputs["n"][0]))

    def check_refusal(self, reply: Reply) -> None:
        assert reply.headers["content-type"] == "application/json"
        found = json.loads(reply.text)
        assert isinstance(found["error"], str)
        assert found["status"] == reply.status

"""penstock's own routes that answer with the output: predictions, explanations, and both as a stream of events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import httpx2

from tests.doors.door import Call, Refusal, Reply
from tests.doors.http_door import PROBLEMS, HttpDoor
from tests.doors.stack import Site

CANCELS = "who hangs up cancels"


class PredictionsDoor(HttpDoor):
    name: ClassVar[str] = "predictions"
    title: ClassVar[str] = "`/predictions`"
    page: ClassVar[str] = "http.md"
    route: ClassVar[str] = "/predictions/{model}"
    family: ClassVar[str] = "predictions"
    lacks: ClassVar[Mapping[str, str]] = {"cancel": CANCELS}

    def path_of(self, call: Call) -> str:
        return f"/{self.family}/{call.model}" + (f"/{call.version}" if call.version else "")

    def body_of(self, call: Call) -> Any:
        return {"order": 7} if call.misfit else {"order": call.text}

    def params_of(self, call: Call) -> dict[str, str]:
        deadline = "" if call.deadline_s is None else f"{call.deadline_s:g}"
        named = {"deadline_s": deadline, "priority": call.priority, "webhook": call.webhook}
        return {name: value for name, value in named.items() if value}


class ExplanationsDoor(PredictionsDoor):
    name: ClassVar[str] = "explanations"
    title: ClassVar[str] = "`/explanations`"
    route: ClassVar[str] = "/explanations/{model}"
    family: ClassVar[str] = "explanations"


class StreamDoor(PredictionsDoor):
    """A prediction whose answer are the events of its job, a line each."""

    name: ClassVar[str] = "stream"
    title: ClassVar[str] = "`/predictions` as events"
    accept: ClassVar[str] = "application/x-ndjson, application/problem+json"
    refusals: ClassVar[Mapping[str, Refusal]] = {
        **PROBLEMS,
        "expired": ("expired", "expired"),
        **{kind: ("failed", code) for kind, (_, code) in PROBLEMS.items() if kind.startswith("failed:")},
    }

    def read(self, answer: httpx2.Response) -> Reply:
        if answer.status_code >= 400:
            return super().read(answer)
        events = [json.loads(line) for line in answer.text.splitlines() if line]
        end = events[-1]["data"]
        assert events[-1]["event"] == "end", events
        found = replace(super().read(answer), job=end["id"])
        if end["status"] != "succeeded":
            return replace(found, status=end["status"], code=end.get("error", {}).get("code", end["status"]))
        return replace(found, n=self.number_in(end.get("result")))

    def finish(self, site: Site, call: Call, reply: Reply) -> Reply:
        """The last event has the output only if it is small."""
        if reply.n is not None or reply.status != 200:
            return reply
        answer = site.get(f"/v1/jobs/{reply.job}/result")
        return replace(reply, n=self.number_in(answer.json()), size=len(answer.content))

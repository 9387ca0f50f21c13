"""Replicate's predictions, and Cog's container contract: the same object, two protocols."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, ClassVar

import httpx2

from tests.doors.door import Call, Refusal, Reply
from tests.doors.door_jobs import STORED, WAITS
from tests.doors.http_door import PROBLEMS, HttpDoor, HttpRequest
from tests.doors.stack import Site

# A prediction that ended without an output says so in its status; its text has no place for a code.
_FAILED: Mapping[str, Refusal] = {
    **PROBLEMS,
    "expired": ("canceled", ""),
    **{kind: ("failed", "") for kind in PROBLEMS if kind.startswith("failed:")},
}


class ReplicateDoor(HttpDoor):
    """`POST /replicate/v1/predictions`, read again until the end, as the package does."""

    name: ClassVar[str] = "replicate"
    title: ClassVar[str] = "Replicate's predictions"
    page: ClassVar[str] = "replicate.md"
    route: ClassVar[str] = "/replicate/v1/predictions"
    # GET lists the predictions.
    other_methods: ClassVar[Sequence[str]] = ("PATCH",)
    refusals: ClassVar[Mapping[str, Refusal]] = {
        **_FAILED,
        "unknown_model": (422, "invalid_input"),
        "unknown_version": (422, "invalid_input"),
    }
    lacks: ClassVar[Mapping[str, str]] = {
        "hang_up": STORED.replace("DELETE /v1/jobs/{id}", "`cancel`"),
        "worker": WAITS,
        "idempotency": "Replicate's protocol has no such header",
        "key_reused": "Replicate's protocol has no such header",
        "split_repeat": "there are no repeats without an idempotency key",
        "priority": "Replicate's protocol has no priorities",
        "counted": "the body names the version, so one that is too large is counted as of the model `unknown`",
        "split": "a prediction names its version; POST .../models/{owner}/{name}/predictions follows the split",
    }

    def path_of(self, call: Call) -> str:
        return "/replicate/v1/predictions"

    def body_of(self, call: Call) -> Any:
        given = {"order": 7} if call.misfit else {"order": call.text}
        hook = {"webhook": call.webhook, "webhook_events_filter": ["completed"]} if call.webhook else {}
        return {"version": f"{call.model}:{call.version or 1}", "input": given, **hook}

    def more_headers(self, call: Call) -> dict[str, str]:
        return {} if call.deadline_s is None else {"cancel-after": f"{call.deadline_s:g}s"}

    def read(self, answer: httpx2.Response) -> Reply:
        return self._prediction(super().read(answer), answer)

    def _prediction(self, found: Reply, answer: httpx2.Response) -> Reply:
        if answer.status_code >= 400 or not isinstance(answer.json(), dict):
            return found
        body = answer.json()
        output = body.get("output")
        done = replace(found, n=self.number_in(output), size=len(json.dumps(output)))
        return done if body["status"] in ("starting", "processing", "succeeded") else replace(done, status=body["status"])

    def finish(self, site: Site, call: Call, reply: Reply) -> Reply:
        site.ended(reply.job)
        answer = site.get(f"/replicate/v1/predictions/{reply.job}", call.key or "all")
        found = self.read(answer)
        return replace(found, job=reply.job, headers=reply.headers, status=200 if found.status == 201 else found.status)

    def cancel(self, site: Site, call: Call, job: str) -> None:
        answer = site.http.post(f"/replicate/v1/predictions/{job}/cancel", headers=site.bearer(call.key or "all"))
        assert answer.status_code == 200, answer.text


class ReplicateModelDoor(ReplicateDoor):
    """`POST /replicate/v1/models/{owner}/{name}/predictions`: the version is the gateway's choice."""

    name: ClassVar[str] = "replicate_model"
    title: ClassVar[str] = "Replicate's predictions of a model"
    route: ClassVar[str] = "/replicate/v1/models/{owner}/{name}/predictions"
    other_methods: ClassVar[Sequence[str]] = ("GET", "PATCH")
    refusals: ClassVar[Mapping[str, Refusal]] = _FAILED
    lacks: ClassVar[Mapping[str, str]] = {
        **{feature: reason for feature, reason in ReplicateDoor.lacks.items() if feature not in ("split", "counted")},
        "versions": "the path names the model; POST /replicate/v1/predictions names a version",
        "unknown_version": "the path names the model; POST /replicate/v1/predictions names a version",
    }

    def path_of(self, call: Call) -> str:
        return f"/replicate/v1/models/me/{call.model}/predictions"

    def body_of(self, call: Call) -> Any:
        return {name: value for name, value in super().body_of(call).items() if name != "version"}


class CogDoor(HttpDoor):
    """`POST /cog/{model}/predictions`, which is answered with the end."""

    name: ClassVar[str] = "cog"
    title: ClassVar[str] = "Cog's mount"
    page: ClassVar[str] = "replicate.md"
    route: ClassVar[str] = "/cog/{model}/predictions"
    refusals: ClassVar[Mapping[str, Refusal]] = _FAILED
    lacks: ClassVar[Mapping[str, str]] = {
        "versions": "a container is one version: that which serves callers who name none",
        "unknown_version": "a container is one version: that which serves callers who name none",
        "deadline": "Cog's protocol has no deadlines",
        "expired": "Cog's protocol has no deadlines",
        "priority": "Cog's protocol has no priorities",
    }

    def path_of(self, call: Call) -> str:
        return f"/cog/{call.model}/predictions"

    def body_of(self, call: Call) -> Any:
        given = {"order": 7} if call.misfit else {"order": call.text}
        hook = {"webhook": call.webhook, "webhook_events_filter": ["completed"]} if call.webhook else {}
        return {"input": given, **hook}

    def read(self, answer: httpx2.Response) -> Reply:
        found = super().read(answer)
        if answer.status_code >= 400:
            return found
        body = answer.json()
        done = replace(found, n=self.number_in(body.get("output")))
        return done if body["status"] == "succeeded" else replace(done, status=body["status"])

    def cancel(self, site: Site, call: Call, job: str) -> None:
        path = f"/cog/{call.model}/predictions/{job}/cancel"
        assert site.http.post(path, headers=site.bearer(call.key or "all")).status_code == 200


class CogPutDoor(CogDoor):
    """`PUT /cog/{model}/predictions/{id}`: the id is the key by which a repeat is known."""

    name: ClassVar[str] = "cog_put"
    title: ClassVar[str] = "Cog's mount, by id"
    route: ClassVar[str] = "/cog/{model}/predictions/{prediction_id}"
    lacks: ClassVar[Mapping[str, str]] = {
        **CogDoor.lacks,
        "key_reused": "the id is all that a repeat is known by, as in Cog",
    }
    _ids: ClassVar[Iterator[int]] = count()

    def prepared(self, site: Site, call: Call) -> Call:
        """A call without a key gets one that nobody has."""
        return call if call.idempotency else replace(call, idempotency=f"cog-put-{next(self._ids)}")

    def id_of(self, call: Call, job: str) -> str:
        return call.idempotency

    def request_of(self, site: Site, call: Call) -> HttpRequest:
        made = super().request_of(site, call)
        kept = {name: value for name, value in made.headers.items() if name != "idempotency-key"}
        return replace(made, method=call.method or "PUT", path=f"{made.path}/{call.idempotency}", headers=kept)

"""penstock's own routes that answer with a job: one input, many inputs, and the replay of a failed job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import httpx2

from tests.doors.door import Call, Refusal, Reply
from tests.doors.http_door import PROBLEMS, LaterDoor
from tests.doors.stack import Site

STORED = "the job is stored and goes on; DELETE /v1/jobs/{id} cancels it"
WAITS = "the job is stored and waits for a worker"
# A job that ended without an output is read as such.
LATER: Mapping[str, Refusal] = {
    **PROBLEMS,
    "expired": ("expired", "expired"),
    **{kind: ("failed", code) for kind, (_, code) in PROBLEMS.items() if kind.startswith("failed:")},
}


class OwnLaterDoor(LaterDoor):
    """The routes take their options as query parameters."""

    page: ClassVar[str] = "http.md"
    refusals: ClassVar[Mapping[str, Refusal]] = LATER

    def body_of(self, call: Call) -> Any:
        return {"order": 7} if call.misfit else {"order": call.text}

    def params_of(self, call: Call) -> dict[str, str]:
        deadline = "" if call.deadline_s is None else f"{call.deadline_s:g}"
        named = {"deadline_s": deadline, "priority": call.priority, "webhook": call.webhook}
        return {name: value for name, value in named.items() if value}

    def cancel(self, site: Site, call: Call, job: str) -> None:
        assert site.http.delete(f"/v1/jobs/{job}", headers=site.bearer(call.key or "all")).status_code in (200, 202)


class JobsDoor(OwnLaterDoor):
    name: ClassVar[str] = "jobs"
    title: ClassVar[str] = "`jobs`"
    route: ClassVar[str] = "/v1/models/{model}/jobs"
    lacks: ClassVar[Mapping[str, str]] = {"hang_up": STORED, "worker": WAITS}

    def path_of(self, call: Call) -> str:
        version = f"/versions/{call.version}" if call.version else ""
        return f"/v1/models/{call.model}{version}/jobs"

    def read(self, answer: httpx2.Response) -> Reply:
        found = super().read(answer)
        return replace(found, job=answer.json()["id"]) if answer.status_code == 202 else found


class JobsBatchDoor(OwnLaterDoor):
    """Of its many inputs the suite sends one."""

    name: ClassVar[str] = "jobs_batch"
    title: ClassVar[str] = "`jobs:batch`"
    route: ClassVar[str] = "/v1/models/{model}/jobs:batch"
    # One input that cannot be used refuses them all, by its place.
    refusals: ClassVar[Mapping[str, Refusal]] = {**LATER, "too_large": (400, "bad_request")}
    lacks: ClassVar[Mapping[str, str]] = {"hang_up": STORED, "worker": WAITS}

    def path_of(self, call: Call) -> str:
        version = f"/versions/{call.version}" if call.version else ""
        return f"/v1/models/{call.model}{version}/jobs:batch"

    def body_of(self, call: Call) -> Any:
        return [super().body_of(call)]

    def read(self, answer: httpx2.Response) -> Reply:
        found = super().read(answer)
        return replace(found, job=answer.json()["data"][0]["id"]) if answer.status_code == 202 else found


class ReplayDoor(OwnLaterDoor):
    """The input is that of a job which has failed once."""

    name: ClassVar[str] = "replay"
    title: ClassVar[str] = "replay"
    route: ClassVar[str] = "/v1/jobs/{job_id}/replay"
    _OLD: ClassVar[str] = "a replay has the input of its old job, and no body"
    lacks: ClassVar[Mapping[str, str]] = {
        "hang_up": STORED,
        "worker": WAITS,
        "deadline": "a replay has the deadline of its model",
        "expired": "a replay has the deadline of its model",
        "priority": "a replay has the priority of its old job",
        "webhook": "the events of a replay go where those of its old job went",
        "split": "a replay runs the version of its old job, or the one that it names",
        "unreadable": _OLD,
        "empty": _OLD,
        "media": _OLD,
        "misfit": _OLD,
        "too_large": _OLD,
        "unknown_model": "a replay names a job, and no model",
        "counted": _OLD,
    }

    def prepared(self, site: Site, call: Call) -> Call:
        """The job fails once, at the version that the call names or the default."""
        if call.retried or call.model.startswith("absent"):
            return call
        home = site.home or site
        once = str(site.log.parent / f"once-{home.kept.setdefault('once', 0)}")
        home.kept["once"] += 1
        order = {**call.order, "once": once}
        key = call.key if call.key in ("few", "plain", "all") else "all"
        job = home.submitted(call.model, json.dumps({"order": json.dumps(order)}), key)
        assert home.ended(job)["error"]["code"] == "first_run"
        return replace(call, retried=job, order=order)

    def path_of(self, call: Call) -> str:
        return f"/v1/jobs/{call.retried or '01k9xw3c5t8ze2m4v6b7n0q1rs-' + call.model}/replay"

    def body_of(self, call: Call) -> Any:
        return {}

    def params_of(self, call: Call) -> dict[str, str]:
        return {"version": call.version} if call.version else {}

    def read(self, answer: httpx2.Response) -> Reply:
        found = super().read(answer)
        return replace(found, job=answer.json()["id"]) if answer.status_code == 202 else found

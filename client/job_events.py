"""The events of a job as lines of JSON, and their meaning for a reader. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from penstock.client.problems import StreamRestarted, ended_error
from penstock.client.protocol import PROBLEM, HttpCall
from penstock.client.views import JobView, job_view

LINES = "application/x-ndjson"
# The gateway sends an event or a heartbeat at least this often.
SILENCE_S = 60.0
# The most consecutive connections without an event.
MOST_FAILURES = 8
OnRestart = Callable[[], None]


@dataclass(frozen=True, slots=True)
class JobEvent:
    """`status` (the job), `progress`, `chunk`, `restart` or `end` (the job). `id` names everything up to this event."""

    name: str
    id: str
    data: Any


def parse(line: str) -> JobEvent | None:
    """None for a heartbeat."""
    if not line.strip():
        return None
    event = json.loads(line)
    return JobEvent(event["event"], event["id"], event["data"])


def seen(event: JobEvent) -> JobView | None:
    """The job in the event."""
    return job_view(event.data) if event.name in ("status", "end") else None


def events_call(job_id: str, last_event_id: str) -> HttpCall:
    headers = {"accept": LINES} | ({"last-event-id": last_event_id} if last_event_id else {})
    return HttpCall("GET", f"/v1/jobs/{quote(job_id, safe='')}/events", headers=headers, wait_s=SILENCE_S)


def as_stream(call: HttpCall) -> HttpCall:
    """The same call, answered with the events of its job."""
    return replace(call, headers={**call.headers, "accept": f"{LINES}, {PROBLEM}"}, wait_s=SILENCE_S)


def on_end(event: JobEvent) -> JobView:
    """The job that succeeded. Raises `JobFailed`, `JobCancelled` or `JobExpired` for any other."""
    view = job_view(event.data)
    if view.status != "succeeded":
        raise ended_error(view)
    return view


def on_restarted(on_restart: OnRestart | None) -> None:
    if on_restart is None:
        raise StreamRestarted(
            "the job runs again from its start, and the chunks before are void",
            hint="pass on_restart, and forget there what came before; or read the result with client.submit(...).result()",
        )
    on_restart()

"""`penstock call --profile`: arms the slots before the call and shows the table of stages after it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from penstock.cli.display import print_faint
from penstock.client.sync import Client
from penstock.client.views import JobView
from penstock.errors import NoWorker
from penstock.words import duration

# A worker checks for profile requests once per beat (4 s by default).
_ARMED_WITHIN_S = 20.0
_DONE_WITHIN_S = 30.0
_LOOK_EVERY_S = 0.2
_STAGES = ("queue", "batch_wait", "decode", "preprocess", "device_wait", "inference", "postprocess", "settle")
_COPY = "copy"


def arm(client: Client, model: str, version: str | None) -> str:
    """Request a profile and wait until every ready slot of the version has seen it; returns the request's id.

    Raises `NoWorker` if no slot does in time.
    """
    request = client.ask_profile(model, version=version)
    ready = int(client.model(model)["versions"][request["version"]]["ready_slots"])
    print_faint("waiting until the workers are ready to record ...")
    slots = _await(client, model, lambda slots: len(slots) >= max(1, ready), within_s=_ARMED_WITHIN_S)
    if not slots:
        raise NoWorker(
            f"no worker of {model!r} accepted the request for a profile within {_ARMED_WITHIN_S:.0f} s",
            hint="`penstock workers` shows whether one is ready",
        )
    return str(request["id"])


def await_recording(client: Client, job: JobView) -> dict[str, Any] | None:
    """The recording of the job's batch by the slot that ran it; None if none is reported in time."""
    batch = str((job.body.get("batch") or {}).get("id") or "")

    def has_recording(slots: Sequence[dict[str, Any]]) -> bool:
        return any(slot["state"] != "armed" and slot["batch"] in (batch, None) for slot in slots)

    slots = _await(client, job.model, has_recording, within_s=_DONE_WITHIN_S)
    done = [slot for slot in slots if slot["state"] != "armed"]
    return next((slot for slot in done if slot["batch"] == batch), done[0] if done else None)


def show(recording: dict[str, Any] | None) -> None:
    """Print the stages and the trace's folder on stderr; stdout carries only the output."""
    if recording is None:
        print_faint("no recording was reported: the job's batch may have run on a worker that had not seen the request")
        return
    stages = recording["stages_s"]
    total_s = sum(stages.get(name, 0.0) for name in _STAGES) or 1.0
    for name in (name for name in _STAGES if name in stages):
        print_faint(f"{name:<12}{duration(stages[name]):>10}{stages[name] / total_s:>8.1%}")
    if _COPY in stages:
        print_faint(f"{_COPY:<12}{duration(stages[_COPY]):>10}          between host and device, not added")
    if recording["note"]:
        print_faint(f"note of the profiler: {recording['note']}")
    print_faint(
        f"{recording['kind'] or 'no'} trace of batch {recording['batch']} on {recording['host']}: {recording['folder']}"
    )


def _await(
    client: Client, model: str, enough: Callable[[Sequence[dict[str, Any]]], bool], *, within_s: float
) -> list[dict[str, Any]]:
    """The slots' answers once they are `enough`, or the answers at the end of the time."""
    give_up_at = time.monotonic() + within_s
    while True:
        slots: list[dict[str, Any]] = client.profile(model)["slots"]
        if enough(slots) or time.monotonic() > give_up_at:
            return slots
        time.sleep(_LOOK_EVERY_S)

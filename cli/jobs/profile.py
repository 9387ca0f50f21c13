"""The part of `penstock call --profile` around the call: slots armed before it, the table of stages after it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from penstock.cli.display import print_faint
from penstock.client.sync import Client
from penstock.client.views import JobView
from penstock.errors import NoWorker
from penstock.words import duration

# A worker looks for wishes once per beat (4 s by default).
_ARMED_WITHIN_S = 20.0
_DONE_WITHIN_S = 30.0
_LOOK_EVERY_S = 0.2
_STAGES = ("queue", "batch_wait", "decode", "preprocess", "device_wait", "inference", "postprocess", "settle")
_COPY = "copy"


def arm(client: Client, model: str, version: str | None) -> str:
    """The id of a wish that every ready slot of the version has seen; raises `NoWorker` if none has in time."""
    wish = client.ask_profile(model, version=version)
    ready = int(client.model(model)["versions"][wish["version"]]["ready_slots"])
    print_faint("waiting until the workers are ready to record ...")
    slots = _await(client, model, lambda slots: len(slots) >= max(1, ready), within_s=_ARMED_WITHIN_S)
    if not slots:
        raise NoWorker(
            f"no worker of {model!r} took up the wish within {_ARMED_WITHIN_S:.0f} s",
            hint="`penstock workers` shows whether one is ready; workers of earlier versions of penstock know no profiles.",
        )
    return str(wish["id"])


def recorded(client: Client, job: JobView) -> dict[str, Any] | None:
    """What the slot that ran the job recorded of its batch; None when nobody told in time."""
    batch = str((job.body.get("batch") or {}).get("id") or "")

    def mine(slots: Sequence[dict[str, Any]]) -> bool:
        return any(slot["state"] != "armed" and slot["batch"] in (batch, None) for slot in slots)

    slots = _await(client, job.model, mine, within_s=_DONE_WITHIN_S)
    told = [slot for slot in slots if slot["state"] != "armed"]
    return next((slot for slot in told if slot["batch"] == batch), told[0] if told else None)


def show(found: dict[str, Any] | None) -> None:
    """The stages and where the trace lies, on stderr: the output alone goes to stdout."""
    if found is None:
        print_faint("no recording was told of: the job's batch may have run on a worker that had not been asked")
        return
    stages = found["stages_s"]
    total_s = sum(stages.get(name, 0.0) for name in _STAGES) or 1.0
    for name in (name for name in _STAGES if name in stages):
        print_faint(f"{name:<12}{duration(stages[name]):>10}{stages[name] / total_s:>8.1%}")
    if _COPY in stages:
        print_faint(f"{_COPY:<12}{duration(stages[_COPY]):>10}          between host and device, not added")
    if found["note"]:
        print_faint(f"the profiler said: {found['note']}")
    print_faint(f"{found['kind'] or 'no'} trace of batch {found['batch']} on {found['host']}: {found['folder']}")


def _await(
    client: Client, model: str, enough: Callable[[Sequence[dict[str, Any]]], bool], *, within_s: float
) -> list[dict[str, Any]]:
    """The slots' answers once they are enough, or as they are when the time is over."""
    give_up_at = time.monotonic() + within_s
    while True:
        slots: list[dict[str, Any]] = client.profile(model)["slots"]
        if enough(slots) or time.monotonic() > give_up_at:
            return slots
        time.sleep(_LOOK_EVERY_S)

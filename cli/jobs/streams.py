"""A job's events on the command line: chunks on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from penstock.cli.display import print_faint
from penstock.client import job_events
from penstock.client.job_events import JobEvent
from penstock.client.sync import Client
from penstock.client.views import JobView, ProgressView, progress_view
from penstock.errors import PenstockError


def is_streaming(client: Client, model: str, version: str | None) -> bool:
    """Whether the model yields chunks; False if unknown: the call itself then reports the error."""
    with suppress(PenstockError):
        view = client.model(model)
        shown = (view.get("versions") or {}).get(version or view.get("default_version")) or {}
        return bool(shown.get("streams"))
    return False


def progress_text(progress: ProgressView) -> str:
    """`40 %, step 12 of 30`."""
    return f"{100 * progress.fraction:.0f} %" + (f", {progress.note}" if progress.note else "")


def show(events: Iterable[JobEvent], *, statuses: bool = False) -> JobView:
    """Print the events; returns the job at its end. Text continues on one line, other chunks are a line of JSON each."""
    is_in_line, last = False, ""
    for event in events:
        if event.name == "chunk":
            is_in_line = isinstance(event.data, str)
            _write(event.data if is_in_line else json.dumps(event.data, ensure_ascii=False) + "\n")
            continue
        if is_in_line and event.name != "status":
            _write("\n")
            is_in_line = False
        if (said := _said(event, statuses=statuses)) and said != last:
            print_faint(said)
            last = said
        if event.name == "end":
            job_events.on_end(event)
            job = job_events.seen(event)
            assert job is not None
            return job
    raise AssertionError("the events of a job end with its end; this is a bug")


def _said(event: JobEvent, *, statuses: bool) -> str:
    if event.name == "restart":
        return "the job runs again from its start"
    if event.name == "progress":
        progress = progress_view(event.data)
        return progress_text(progress) if progress else ""
    return str(event.data.get("status", "")) if statuses and event.name in ("status", "end") else ""


def _write(text: Any) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()

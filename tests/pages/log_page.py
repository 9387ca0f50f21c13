"""docs/reference/log-events.md: what an event means is written by hand, its level and fields come from the code."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.workers.devices.plan import COLUMNS
from tests.markdown import ROOT
from tests.pages import kept_tables
from tests.pages.log_calls import JOB_FIELDS, LogCall, log_calls, process_of

PAGE = ROOT / "docs" / "reference" / "log-events.md"
HEAD = ("Event", "Level", "Fields", "What it means, and what to do")
LEVELS = ("debug", "info", "warning", "error")


# Events that are no text where they are logged, by the file and the expression.
EVENTS = {
    ("gateway/asgi/server.py", "aside.event"): ("metrics_listening", "torchserve_management_listening"),
    ("workers/fetch/fetches.py", "event"): ("archive_opened", "archive_packages_installed"),
    ("workers/fetch/fetches.py", "warning"): ("archive_setting_differs", "archive_packages_missing"),
    ("workers/fleet/periodic_thread.py", "self._failure_event"): (
        *("beat_missed", "sweep_missed", "sources_not_seen", "autoscaling_missed"),
        *("celery_clients_not_served", "pod_deletion_cost_not_written", "needless_blobs_kept"),
    ),
    ("workers/slot/child/manager.py", "event"): ("torchserve_runs_one_by_one",),
    ("workers/telemetry/handler_series.py", "event"): ("metric_overflow", "metric_refused"),
    ("workers/telemetry/job_log.py", "event"): ("job_retried", "job_released", "job_lost"),
    ("workers/telemetry/job_log.py", "logs.JOB_FINISHED"): ("job_finished",),
}
# Fields that come from a dictionary: whatever the event, or by the event.
FIELDS: dict[tuple[str, str], tuple[str, ...] | dict[str, tuple[str, ...]]] = {
    ("gateway/asgi/server.py", "rule"): {"metrics_listening": (), "torchserve_management_listening": ("access",)},
    ("extensions/splits/gateway/shadows.py", "fields"): JOB_FIELDS,
    ("extensions/splits/gateway/shadows.py", "_words(of_split)"): (
        "dropped",
        "refused",
        "equal",
        "close",
        "different",
        "status",
        "lost",
    ),
    ("gateway/jobs/submitting/submitter.py", "fields"): JOB_FIELDS,
    ("gateway/key_routes.py", "_who(request, caller)"): ("by", "address"),
    ("workers/fetch/fetches.py", "fields"): {
        "archive_opened": ("archive", "folder", "sha256"),
        "archive_packages_installed": ("folder", "s"),
        "archive_setting_differs": ("setting", "what", "why", "ours"),
        "archive_packages_missing": ("why", "packages", "hint"),
    },
    ("extensions/autoscaling/worker/autoscaler.py", "facts"): ("before", "slots", "reason", "waiting"),
    ("workers/fleet/size.py", "{column.lower(): cell for column, cell in zip(COLUMNS, cells, strict=True)}"): tuple(
        column.lower() for column in COLUMNS
    ),
    ("workers/slot/child/manager.py", "placed"): ("device", "cores"),
    ("workers/slot/child/manager.py", "whose"): ("batch_id", "job_id"),
    ("workers/telemetry/job_log.py", "fields"): JOB_FIELDS,
    ("workers/telemetry/job_log.py", "line"): (
        *JOB_FIELDS,
        *("state", "code", "total_s", "preprocess_s", "inference_s", "postprocess_s"),
    ),
    ("workers/telemetry/job_log.py", "self._exception(spec.name, ending.traceback)"): ("exception",),
    ("workers/telemetry/job_log.py", "raised"): {"job_retried": ("exception",), "job_released": (), "job_lost": ()},
    ("workers/telemetry/job_log.py", "why"): {
        "job_retried": ("code", "delay_s"),
        "job_released": ("cause",),
        "job_lost": ("cause", "how"),
    },
    ("runs/runner.py", "facts"): ("run", "state", "code"),
}


@dataclass(slots=True)
class LogEvent:
    """What all calls together say of an event of one package."""

    levels: list[str]
    fields: list[str]


def log_events() -> dict[tuple[str, str], LogEvent]:
    """By package and event. Raises `KeyError` for a call whose event or fields this module cannot tell."""
    found: dict[tuple[str, str], LogEvent] = {}
    for call in log_calls():
        for name in (call.event,) if call.is_text else EVENTS[call.file, call.event]:
            event = found.setdefault((process_of(call.file), name), LogEvent([], []))
            event.levels += [call.level] if call.level not in event.levels else []
            event.fields += [field for field in _fields(call, name) if field not in event.fields]
    return found


def _fields(call: LogCall, event: str) -> list[str]:
    named: list[str] = []
    for field in call.fields:
        known = FIELDS[call.file, field.removeprefix("**")] if field.startswith("**") else (field,)
        named += known[event] if isinstance(known, dict) else known
    return named


def rewritten(page: str) -> str:
    """Return the page with its tables brought up to date."""
    cells = {place: _cells(place[1], event) for place, event in sorted(log_events().items())}
    return kept_tables.rewritten(page, word="log events", head=HEAD, cells=cells)


def _cells(name: str, event: LogEvent) -> tuple[str, ...]:
    fields, own = list(event.fields), []
    if set(JOB_FIELDS) <= set(fields):
        own, fields = ["the job's"], [field for field in fields if field not in JOB_FIELDS]
    levels = sorted(event.levels, key=LEVELS.index)
    return f"`{name}`", ", ".join(levels), ", ".join([*own, *(f"`{field}`" for field in fields)]) or "–"

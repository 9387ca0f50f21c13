"""Runs as callers see them: our own form, and that of an OpenAI batch. Pure."""

from __future__ import annotations

from typing import Any

from penstock.gateway.asgi.wire import rfc3339
from penstock.gateway.runs.request import OURS
from penstock.gateway.runs.service import WINDOW, RunOutputFiles
from penstock.run import Run, RunState

# A driver renews its hold in time; one that is this late by the gateway's clock is gone.
_LATE_S = 5.0
_BATCH_STATUS = {
    RunState.QUEUED: "validating",
    RunState.VALIDATING: "validating",
    RunState.RUNNING: "in_progress",
    RunState.PUBLISHING: "finalizing",
}
_ENDED_AT = {
    RunState.COMPLETED: "completed_at",
    RunState.FAILED: "failed_at",
    RunState.EXPIRED: "expired_at",
    RunState.CANCELLED: "cancelled_at",
}
BATCH_PREFIX = "batch_"
EMBEDDINGS = "/v1/embeddings"


def run_status(run: Run, now: float) -> str:
    """The state in the caller's words: `interrupted` is a begun run that nobody works on at the moment."""
    begun = not run.state.final and run.state is not RunState.QUEUED
    return "interrupted" if begun and run.driver_until + _LATE_S < now else run.state.value


def eta_s(run: Run) -> float | None:
    """Seconds until the last row at the present rate; None where that is not known."""
    if run.state.final or run.counts.total is None or run.rows_per_s <= 0.0:
        return None
    return max(0, run.counts.total - run.counts.done - run.counts.failed) / run.rows_per_s


def metadata_of(run: Run) -> dict[str, str]:
    return {name: value for name, value in run.spec.metadata.items() if not name.startswith(OURS)}


def run_view(run: Run, outcome: RunOutputFiles, *, input_name: str, now: float) -> dict[str, Any]:
    """`input_name`: the file's id, or the path as it was given."""
    spec, base = run.spec, f"/v1/runs/{run.id}"
    output, errors = outcome.output, outcome.errors
    view: dict[str, Any] = {
        "id": run.id,
        "kind": spec.kind,
        "model": spec.model,
        "version": run.version or spec.version or None,
        "status": run_status(run, now),
        "input": input_name,
        "columns": spec.columns or None,
        "carry": list(spec.carry) or None,
        "output_file_id": output and output.id,
        "errors_file_id": errors and errors.id,
        "created_at": rfc3339(run.created_at),
        "started_at": run.started_at and rfc3339(run.started_at),
        "finished_at": run.finished_at and rfc3339(run.finished_at),
        "deadline_at": rfc3339(run.created_at + spec.deadline_s) if spec.deadline_s else None,
        "progress": progress_view(run),
        "cancel_requested": run.request == "cancel",
        "error": {"code": run.error_code, "message": run.error_message} if run.error_code else None,
        "metadata": metadata_of(run) or None,
        "links": {
            "self": base,
            "cancel": f"{base}/cancel",
            **({"output": f"/v1/files/{output.id}/content"} if output else {}),
            **({"errors": f"/v1/files/{errors.id}/content"} if errors else {}),
        },
    }
    return {name: value for name, value in view.items() if value is not None}


def progress_view(run: Run) -> dict[str, Any]:
    eta = eta_s(run)
    return {
        "rows": run.counts.total,
        "done": run.counts.done,
        "failed": run.counts.failed,
        "rows_per_s": round(run.rows_per_s, 3),
        "eta_s": None if eta is None else round(eta, 3),
        "busy": run.busy,
    }


def batch_status(run: Run) -> str:
    if run.request == "cancel" and not run.state.final:
        return "cancelling"
    return _BATCH_STATUS.get(run.state, run.state.value)


def batch_view(run: Run, outcome: RunOutputFiles, *, input_file: str) -> dict[str, Any]:
    """OpenAI's form; what begins with `x_` is ours. Counts are of lines."""
    spec, eta = run.spec, eta_s(run)
    ended = {_ENDED_AT[run.state]: int(run.finished_at)} if run.state.final and run.finished_at else {}
    view: dict[str, Any] = {
        "id": BATCH_PREFIX + run.id,
        "object": "batch",
        "endpoint": spec.endpoint,
        "model": spec.model or None,
        "input_file_id": input_file,
        "completion_window": spec.metadata.get(WINDOW, f"{spec.deadline_s:g}s"),
        "status": batch_status(run),
        "created_at": int(run.created_at),
        "in_progress_at": run.started_at and int(run.started_at),
        "expires_at": int(run.created_at + spec.deadline_s) if spec.deadline_s else None,
        **ended,
        "errors": _errors(run),
        "output_file_id": outcome.output and outcome.output.id,
        "error_file_id": outcome.errors and outcome.errors.id,
        "request_counts": _line_counts(run),
        "metadata": metadata_of(run) or None,
        "x_run": run.id,
        "x_rows_per_s": round(run.rows_per_s, 3),
        "x_eta_seconds": None if eta is None else round(eta, 3),
    }
    return {name: value for name, value in view.items() if value is not None}


def _line_counts(run: Run) -> dict[str, int]:
    told = run.details.get("lines")
    if isinstance(told, dict):
        return {name: int(told.get(name, 0)) for name in ("total", "completed", "failed")}
    done, failed = run.counts.done, run.counts.failed
    return {"total": done + failed if run.counts.total is None else run.counts.total, "completed": done, "failed": failed}


def _errors(run: Run) -> dict[str, Any] | None:
    if run.state is not RunState.FAILED:
        return None
    told = run.details.get("errors")
    data = told if isinstance(told, list) and told else [_fault(run)]
    return {"object": "list", "data": [{"line": None, "param": None, **fault} for fault in data]}


def _fault(run: Run) -> dict[str, Any]:
    fault = {"code": run.error_code or "failed", "message": run.error_message}
    # Only the lines of the embeddings endpoint name a model, all of them the same one.
    missing = run.error_code == "not_found" and run.spec.endpoint == EMBEDDINGS
    return {**fault, "code": "model_not_found", "line": 1, "param": "body.model"} if missing else fault

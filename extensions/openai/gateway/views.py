"""What OpenAI's clients read: batches, pages of a list, and refusals with an `error` object. Pure."""

# D41: the gateway translates between OpenAI's protocol and runs, jobs and files, and decides nothing here.
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson

from penstock.extensions.openai.gateway.batch_request import WINDOW
from penstock.gateway.asgi.problems import ProblemResponse
from penstock.gateway.runs.service import RunOutputFiles
from penstock.gateway.runs.views import eta_s, metadata_of, public_message
from penstock.run import Run, RunState

BATCH_PREFIX = "batch_"
EMBEDDINGS = "/v1/embeddings"
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
_FAMILIES = ("/v1/files", "/v1/batches", "/v1/embeddings")
# What else OpenAI's clients ask for. Requests there are refused in their form, and told what there is.
_ABSENT = tuple(f"/v1/{name}" for name in ("chat", "completions", "responses", "moderations", "images", "audio", "uploads"))
_THERE_IS = f"Of OpenAI's API there are {', '.join(_FAMILIES)}; any other model is called at POST /v1/models/MODEL/jobs."
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_PERMANENT = frozenset({409, 500, 501, 507})
_NO_RETRY = (b"x-should-retry", b"false")


def batch_status(run: Run) -> str:
    if run.request == "cancel" and not run.state.final:
        return "cancelling"
    return _BATCH_STATUS.get(run.state, run.state.value)


def batch_view(run: Run, files: RunOutputFiles, *, input_file: str) -> dict[str, Any]:
    """A run as OpenAI's batch object, plus our own members, which begin with `x_`. It counts lines, not rows."""
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
        "errors": _errors(run, input_file),
        "output_file_id": files.output and files.output.id,
        "error_file_id": files.errors and files.errors.id,
        "request_counts": _line_counts(run),
        "metadata": metadata_of(run) or None,
        "x_run": run.id,
        "x_rows_per_s": round(run.rows_per_s, 3),
        "x_eta_seconds": None if eta is None else round(eta, 3),
    }
    return {name: value for name, value in view.items() if value is not None}


def _line_counts(run: Run) -> dict[str, int]:
    counts = run.details.get("lines")
    if isinstance(counts, dict):
        total, completed, failed = (int(counts.get(name, 0)) for name in ("total", "completed", "failed"))
        not_reached = total - completed - failed
        ours = {f"x_{run.state.value}": not_reached} if not_reached else {}
        return {"total": total, "completed": completed, "failed": failed, **ours}
    done, failed = run.counts.done, run.counts.failed
    return {"total": done + failed if run.counts.total is None else run.counts.total, "completed": done, "failed": failed}


def _errors(run: Run, input_file: str) -> dict[str, Any] | None:
    if run.state is not RunState.FAILED:
        return None
    noted = run.details.get("errors")
    data = noted if isinstance(noted, list) and noted else [_fault(run, input_file)]
    return {"object": "list", "data": [{"line": None, "param": None, **fault} for fault in data]}


def _fault(run: Run, input_file: str) -> dict[str, Any]:
    fault = {"code": run.error_code or "failed", "message": public_message(run, input_file)}
    # Only lines for the embeddings endpoint name a model, and all lines name the same one.
    missing = run.error_code == "not_found" and run.spec.endpoint == EMBEDDINGS
    return {**fault, "code": "model_not_found", "line": 1, "param": "body.model"} if missing else fault


def page_of(views: Sequence[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    ends = {"first_id": views[0]["id"] if views else None, "last_id": views[-1]["id"] if views else None}
    return {"object": "list", "data": views, **ends, "has_more": has_more}


def speaks_openai(path: str) -> bool:
    return _is_in(path, (*_FAMILIES, *_ABSENT))


def _is_in(path: str, families: Sequence[str]) -> bool:
    return any(path == family or path.startswith(family + "/") for family in families)


def as_openai(problem: ProblemResponse, error: Exception) -> ProblemResponse:
    """The same refusal with the `error` object that OpenAI's clients read, in the media type that they expect.

    OpenAI's clients repeat every 409 and 5xx unless a header forbids it, so errors that will not pass carry that header.
    """
    body: dict[str, Any] = orjson.loads(problem.body)
    if problem.status == 404 and _is_in(body["instance"], _ABSENT):
        body["hint"] = _THERE_IS
    hint = body.get("hint")
    error_member = {
        "message": body["detail"] if hint is None else f"{body['detail'].rstrip('.')}. {hint}",
        "type": _type(problem.status),
        "param": getattr(error, "param", None) or None,
        "code": body["code"],
    }
    content = orjson.dumps({"error": error_member, **body})
    changed = {b"content-type": b"application/json", b"content-length": b"%d" % len(content)}
    headers = [(name, changed.get(name, value)) for name, value in problem.headers]
    if problem.status in _PERMANENT and _NO_RETRY not in headers:
        headers.append(_NO_RETRY)
    return replace(problem, body=content, headers=headers)


def _type(status: int) -> str:
    return "server_error" if status >= 500 else _TYPES.get(status, "invalid_request_error")

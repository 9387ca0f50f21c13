"""Runs as callers of /v1/runs see them. Pure."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from penstock.gateway.asgi.wire import rfc3339
from penstock.gateway.runs.request import RESERVED
from penstock.gateway.runs.service import RunOutputFiles
from penstock.run import Run, RunState

# A driver renews its lease in time. One that is this late is gone.
_LEASE_GRACE_S = 5.0


def run_status(run: Run, now: float) -> str:
    """The state that callers see. `interrupted`: a run that has begun and currently has no driver."""
    has_begun = not run.state.final and run.state is not RunState.QUEUED
    return "interrupted" if has_begun and run.driver_until + _LEASE_GRACE_S < now else run.state.value


def eta_s(run: Run) -> float | None:
    """Seconds until the last row at the current rate; None if unknown."""
    if run.state.final or run.counts.total is None or run.rows_per_s <= 0.0:
        return None
    return max(0, run.counts.total - run.counts.done - run.counts.failed) / run.rows_per_s


def metadata_of(run: Run) -> dict[str, str]:
    return {name: value for name, value in run.spec.metadata.items() if not name.startswith(RESERVED)}


def public_message(run: Run, input_name: str) -> str:
    """The run's error without the paths of this server: the input gets the name that its owner knows, other files none."""
    spec, text = run.spec, run.error_message
    named = {spec.input: input_name, spec.output: "the output", spec.errors: "the errors file"}
    folders = {f"{PurePosixPath(path).parent}/": "" for path in named if path.startswith("/") and path != input_name}
    # The longest first, because a file's path begins with its folder's.
    for path, name in sorted((named | folders).items(), key=lambda pair: -len(pair[0])):
        text = text.replace(path, name) if path else text
    return text


def run_view(run: Run, files: RunOutputFiles, *, input_name: str, now: float) -> dict[str, Any]:
    """`input_name` is the file's id, or the path that the caller gave."""
    spec, base = run.spec, f"/v1/runs/{run.id}"
    output, errors = files.output, files.errors
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
        "error": {"code": run.error_code, "message": public_message(run, input_name)} if run.error_code else None,
        "metadata": metadata_of(run) or None,
        "tags": list(spec.tags) or None,
        "links": {
            "self": base,
            "cancel": f"{base}/cancel",
            **({"output": f"/v1/files/{output.id}/content"} if output else {}),
            **({"errors": f"/v1/files/{errors.id}/content"} if errors else {}),
        },
    }
    return {name: value for name, value in view.items() if value is not None}


def progress_view(run: Run) -> dict[str, Any]:
    eta, not_reached = eta_s(run), run.not_reached
    return {
        "rows": run.counts.total,
        "done": run.counts.done,
        "failed": run.counts.failed,
        # As `cancelled` or `expired`: the rows that did not run.
        **({} if not_reached is None else {run.state.value: not_reached}),
        "rows_per_s": round(run.rows_per_s, 3),
        "eta_s": None if eta is None else round(eta, 3),
        "busy": run.busy,
    }


def part_view(part: Run) -> dict[str, Any]:
    """One part of a run, without its host, which only operators may know."""
    return {
        "number": part.part.number if part.part else 0,
        "status": part.state.value,
        "rows": part.part.rows if part.part else None,
        "done": part.counts.done,
        "failed": part.counts.failed,
        "rows_per_s": 0.0 if part.state.final else round(part.rows_per_s, 3),
    }

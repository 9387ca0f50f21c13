"""What a caller of Replicate's protocol reads: predictions, models, versions and files. Pure."""

# D85: docs/design/gateway.md
from __future__ import annotations

import mimetypes
from typing import Any

from penstock.broker.blobs.uploads import FileRecord
from penstock.extensions.replicate.gateway.document import COG_VERSION, cog_document
from penstock.gateway.asgi.wire import rfc3339
from penstock.gateway.models.registry import ModelEntry, VersionEntry
from penstock.job import Job, JobId, JobState

PREFIX = "/replicate/v1"
_STATUS = {"queued": "starting", "running": "processing", "cancelled": "canceled", "expired": "canceled"}
# The prefix of the job's tag with the id that a caller of Cog's protocol gave its prediction.
COG_TAG = "cog:"
_EXPIRED = "The deadline of the prediction passed before it finished."
_BAR = 20
# The time at which a version was added is not recorded, and the client requires one.
_NO_MOMENT = "1970-01-01T00:00:00Z"


def status_of(job: Job) -> str:
    """One of the five words that the client knows; any other makes it raise."""
    return _STATUS.get(job.state.public, job.state.public)


def prediction_view(job: Job, base: str, *, streams: bool, given: Any = None, output: Any = None) -> dict[str, Any]:
    """A job as a prediction; `base` is the address of the gateway."""
    own = f"{base}{PREFIX}/predictions/{job.id}"
    return {
        "id": str(job.id),
        "model": job.model,
        "version": version_id(job.model, job.version),
        "input": given,
        **state_view(job, output),
        "urls": {"get": own, "cancel": f"{own}/cancel"} | ({"stream": f"{own}/stream"} if streams else {}),
    }


def state_view(job: Job, output: Any) -> dict[str, Any]:
    """How far a prediction is: what Replicate's and Cog's object have in common."""
    ran = job.started_at is not None and job.finished_at is not None
    return {
        "status": status_of(job),
        "output": output,
        "logs": logs_line(job.progress.fraction, job.progress.note) if job.progress is not None else "",
        "error": _error(job),
        "metrics": {"predict_time": round(job.finished_at - job.started_at, 6)} if ran else {},  # type: ignore[operator]
        "created_at": rfc3339(job.created_at),
        "started_at": job.started_at and rfc3339(job.started_at),
        "completed_at": job.finished_at and rfc3339(job.finished_at),
    }


def cog_view(job: Job, output: Any) -> dict[str, Any]:
    """A prediction as Cog has it, by the id that its caller gave it, else that of its job."""
    named = next((tag.removeprefix(COG_TAG) for tag in job.tags if tag.startswith(COG_TAG)), str(job.id))
    return {"id": named, **state_view(job, output)}


def version_id(model: str, version: str) -> str:
    """Replicate's clients send a version without its model, so its id names both."""
    return f"{model}:{version}"


def model_view(owner: str, entry: ModelEntry, base: str) -> dict[str, Any]:
    return {
        "url": f"{base}{PREFIX}/models/{owner}/{entry.name}",
        "owner": owner,
        "name": entry.name,
        "description": _description(entry.default),
        "visibility": "private",
        "run_count": 0,
        "latest_version": version_view(entry, entry.default),
    }


def version_view(entry: ModelEntry, version: VersionEntry) -> dict[str, Any]:
    return {
        "id": version_id(entry.name, version.name),
        "created_at": _NO_MOMENT,
        "cog_version": COG_VERSION,
        "openapi_schema": cog_document(version),
    }


def file_view(record: FileRecord, base: str) -> dict[str, Any]:
    return {
        "id": record.id,
        "name": record.filename,
        "content_type": mimetypes.guess_type(record.filename)[0] or "application/octet-stream",
        "size": record.size_bytes,
        "etag": record.sha256,
        "checksums": {"sha256": record.sha256},
        "metadata": record.metadata,
        "created_at": rfc3339(record.created_at),
        "expires_at": record.expires_at and rfc3339(record.expires_at),
        "urls": {"get": f"{base}{PREFIX}/files/{record.id}"},
    }


def _description(version: VersionEntry) -> str:
    return version.info.description if version.info is not None else ""


def logs_line(fraction: float, note: str) -> str:
    """A progress as the line that the client reads it from."""
    done = round(fraction * 100)
    bar = ("#" * (done * _BAR // 100)).ljust(_BAR)
    return f"{done:3d}%|{bar}| {done}/100 {note}".rstrip()


def _error(job: Job) -> str | None:
    if job.state is JobState.EXPIRED:
        return _EXPIRED
    return job.error.message if job.error is not None else None


def result_url(job: JobId, base: str) -> str:
    return f"{base}/v1/jobs/{job}/result"

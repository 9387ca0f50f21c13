"""What a caller of Replicate's protocol reads: predictions, models, versions and files. Pure."""

# D85: docs/design/gateway.md
from __future__ import annotations

import mimetypes
from typing import Any

from penstock.broker.blobs.uploads import FileRecord
from penstock.gateway.asgi.wire import rfc3339
from penstock.gateway.models.registry import ModelEntry, VersionEntry
from penstock.gateway.models.views import rebased
from penstock.job import Job, JobId, JobProgress, JobState

PREFIX = "/replicate/v1"
_STATUS = {"queued": "starting", "running": "processing", "cancelled": "canceled", "expired": "canceled"}
_EXPIRED = "The deadline of the prediction passed before it finished."
_BAR = 20
# Nobody keeps when a version came, and the client wants a moment.
_NO_MOMENT = "1970-01-01T00:00:00Z"
# Clients read the schemas by the rules of this version of Cog.
_COG_VERSION = "0.16.0"


def status_of(job: Job) -> str:
    """One of the five words that the client knows; any other makes it raise."""
    return _STATUS.get(job.state.public, job.state.public)


def prediction_view(job: Job, base: str, *, streams: bool, given: Any = None, output: Any = None) -> dict[str, Any]:
    """A job as a prediction; `base` is the address of the gateway."""
    own = f"{base}{PREFIX}/predictions/{job.id}"
    ran = job.started_at is not None and job.finished_at is not None
    return {
        "id": str(job.id),
        "model": job.model,
        "version": version_id(job.model, job.version),
        "status": status_of(job),
        "input": given,
        "output": output,
        "logs": _logs(job.progress),
        "error": _error(job),
        "metrics": {"predict_time": round(job.finished_at - job.started_at, 6)} if ran else {},  # type: ignore[operator]
        "created_at": rfc3339(job.created_at),
        "started_at": job.started_at and rfc3339(job.started_at),
        "completed_at": job.finished_at and rfc3339(job.finished_at),
        "urls": {"get": own, "cancel": f"{own}/cancel"} | ({"stream": f"{own}/stream"} if streams else {}),
    }


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
        "cog_version": _COG_VERSION,
        "openapi_schema": cog_document(version),
    }


def cog_document(version: VersionEntry) -> dict[str, Any]:
    """The schemas of input and output where Cog's document has them."""
    info = version.info
    given = info.input_schema if info is not None else None
    made = info.output_schema if info is not None else None
    return {
        "openapi": "3.0.2",
        "info": {"title": "Cog", "version": "0.1.0"},
        "paths": {},
        "components": {"schemas": {"Input": _component("Input", given), "Output": _component("Output", made)}},
    }


def file_view(record: FileRecord, base: str) -> dict[str, Any]:
    return {
        "id": record.id,
        "name": record.filename,
        "content_type": mimetypes.guess_type(record.filename)[0] or "application/octet-stream",
        "size": record.size_bytes,
        "etag": record.sha256,
        "checksums": {"sha256": record.sha256},
        "metadata": {},
        "created_at": rfc3339(record.created_at),
        "expires_at": record.expires_at and rfc3339(record.expires_at),
        "urls": {"get": f"{base}{PREFIX}/files/{record.id}"},
    }


def _component(name: str, schema: dict[str, Any] | None) -> dict[str, Any]:
    moved: dict[str, Any] = rebased(schema or {}, f"#/components/schemas/{name}")
    ref = str((schema or {}).get("$ref", ""))
    if ref.startswith("#/$defs/"):
        # Readers look for `properties` at the top.
        moved = {**moved["$defs"][ref.rpartition("/")[2]], "$defs": moved["$defs"]}
    return {"title": name, **moved}


def _description(version: VersionEntry) -> str:
    return version.info.description if version.info is not None else ""


def _logs(progress: JobProgress | None) -> str:
    """The progress as the line that the client reads it from."""
    if progress is None:
        return ""
    done = round(progress.fraction * 100)
    bar = ("#" * (done * _BAR // 100)).ljust(_BAR)
    return f"{done:3d}%|{bar}| {done}/100 {progress.note}".rstrip()


def _error(job: Job) -> str | None:
    if job.state is JobState.EXPIRED:
        return _EXPIRED
    return job.error.message if job.error is not None else None


def result_url(job: JobId, base: str) -> str:
    return f"{base}/v1/jobs/{job}/result"

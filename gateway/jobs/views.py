"""The JSON views of jobs and timelines. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from penstock.gateway.asgi.wire import rfc3339
from penstock.gateway.jobs.timeline import Timeline, TimelineStage
from penstock.job import Attempt, BatchRecord, Job, JobId, JobProgress, JobState, Priority
from penstock.trace_context import trace_id_of

# The states after a claim, in order: an attempt that does not end the job leaves it delayed or queued.
_RANK = {JobState.LEASED: 0, JobState.DELAYED: 1, JobState.QUEUED: 2}
_FINAL_RANK = 9


_BESIDE = ("result", "events", "cancel", "timeline")


def links(job: Job) -> dict[str, str]:
    base = f"/v1/jobs/{job.id}"
    urls = {"self": base, **{name: f"{base}/{name}" for name in _BESIDE}}
    if job.state.final and job.state is not JobState.SUCCEEDED:
        urls["replay"] = f"{base}/replay"
    others = {"replay_of": job.replay_of, "replayed_as": job.replayed_as}
    return urls | {name: f"/v1/jobs/{other}" for name, other in others.items() if other is not None}


def accepted_body(
    job: JobId,
    *,
    version: str,
    priority: Priority,
    position: int | None,
    eta_s: float | None,
    trace_id: str = "",
    tags: Sequence[str] = (),
) -> bytes:
    """The view of a job just stored. It has no times: only the store knows them, and the first read shows them."""
    place = "" if position is None else f'"position":{position},'
    eta = "" if eta_s is None else f'"eta_s":{eta_s:.3f},'
    trace = f'"trace_id":"{trace_id}",' if trace_id else ""
    # Tags contain no characters that JSON escapes.
    words = '"tags":["' + '","'.join(tags) + '"],' if tags else ""
    base = f"/v1/jobs/{job}"
    return (
        f'{{"id":"{job}","model":"{job.model}","version":"{version}","status":"queued","priority":"{priority.value}",'
        f'{place}{eta}{trace}{words}"attempts":0,"cancel_requested":false,"links":{{"self":"{base}",'
        f'"result":"{base}/result","events":"{base}/events","cancel":"{base}/cancel","timeline":"{base}/timeline"}}}}'
    ).encode("ascii")


def job_view(job: Job, *, eta_s: float | None = None) -> dict[str, Any]:
    view: dict[str, Any] = {
        "id": str(job.id),
        "model": job.model,
        "version": job.version,
        "status": job.state.public,
        "priority": job.priority.value,
        "position": job.position,
        "eta_s": None if eta_s is None else round(eta_s, 3),
        "created_at": rfc3339(job.created_at),
        "started_at": job.started_at and rfc3339(job.started_at),
        "finished_at": job.finished_at and rfc3339(job.finished_at),
        "not_before": job.not_before and rfc3339(job.not_before),
        "deadline_at": rfc3339(job.deadline_at),
        "attempts": job.attempts,
        "progress": job.progress and progress_view(job.progress),
        "cancel_requested": job.cancel_requested,
        "tags": list(job.tags) or None,
        "error": _error_view(job),
        "batch": job.batch and batch_view(job.batch),
        "trace_id": trace_id_of(job.trace) or None,
        "replay_of": job.replay_of and str(job.replay_of),
        "replayed_as": job.replayed_as and str(job.replayed_as),
        "links": links(job),
    }
    return {name: value for name, value in view.items() if value is not None}


def progress_view(progress: JobProgress) -> dict[str, Any]:
    return {"fraction": progress.fraction, "note": progress.note, "at": rfc3339(progress.at)}


def timeline_view(timeline: Timeline) -> dict[str, Any]:
    """The view documented in docs/production/observability.md: fields may be added and never change their meaning."""
    job = timeline.job
    view: dict[str, Any] = {
        "id": str(job.id),
        "model": job.model,
        "version": job.version,
        "status": job.state.public,
        "created_at": rfc3339(job.created_at),
        "finished_at": job.finished_at and rfc3339(job.finished_at),
        "total_s": round(timeline.total_s, 6),
        "queued_behind": job.queued_behind,
        "stages": [_stage_view(stage) for stage in timeline.stages],
        "attempts": [_attempt_view(tried, timeline.workers) for tried in job.tries],
        "attempts_left_out": job.left_out.count,
        "batch": _ended_batch_view(timeline),
        "slowest": timeline.slowest,
        "summary": timeline.summary,
        "trace_id": trace_id_of(job.trace) or None,
    }
    return view


def _stage_view(stage: TimelineStage) -> dict[str, Any]:
    return {"name": stage.name, "seconds": round(stage.seconds, 6), "share": round(stage.share, 4), "note": stage.note or None}


def _attempt_view(tried: Attempt, workers: Mapping[str, str]) -> dict[str, Any]:
    return {
        "attempt": tried.number,
        "worker": workers.get(tried.worker, tried.worker),
        "claimed_at": rfc3339(tried.claimed_at),
        "ended_at": None if tried.ended_at is None else rfc3339(tried.ended_at),
        "end": tried.end or None,
        "batch": tried.batch,
    }


def _ended_batch_view(timeline: Timeline) -> dict[str, Any] | None:
    batch, location = timeline.job.batch, timeline.location
    if batch is None:
        return None
    return {
        "id": batch.id,
        "size": batch.size,
        "place": batch.place,
        "reason": batch.reason,
        "device": (location.device or None) if location else None,
        "provider": (location.provider or None) if location else None,
    }


def job_body(job: Job, *, eta_s: float | None = None) -> bytes:
    return orjson.dumps(job_view(job, eta_s=eta_s))


def batch_view(batch: BatchRecord) -> dict[str, Any]:
    return {
        "id": batch.id,
        "size": batch.size,
        "reason": batch.reason,
        "place": batch.place,
        "batch_wait_s": batch.batch_wait_s,
        "decode_s": batch.decode_s,
        "preprocess_s": batch.preprocess_s,
        "device_wait_s": batch.device_wait_s,
        "inference_s": batch.inference_s,
        "postprocess_s": batch.postprocess_s,
    }


def change_id(job: Job) -> str:
    """Identifies a state of a job: ids ascend as the job proceeds, and equal ids mean an equal status.

    The first number is how often the job was claimed. Attempts would not work: a claim that is given back is not counted.
    """
    rank = _FINAL_RANK if job.state.final else _RANK[job.state]
    claims = job.tries[-1].number if job.tries else job.attempts
    return f"{claims}.{job.crashes}.{rank}{'c' if job.cancel_requested and not job.state.final else ''}"


def etag(job: Job) -> str:
    """A weak tag: position and estimate may differ between responses with equal tags."""
    replayed = f".{job.replayed_as.serial}" if job.replayed_as is not None else ""
    progress = f".p{job.progress.at * 1000:.0f}" if job.progress is not None else ""
    return f'W/"{change_id(job)}{replayed}{progress}"'


def _error_view(job: Job) -> dict[str, Any] | None:
    if job.error is None:
        return None
    return {"code": job.error.code, "message": job.error.message, "retryable": job.error.retryable}

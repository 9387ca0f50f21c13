"""A job's timeline as plain frozen values. Fields that a newer gateway adds stay in `body`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from penstock.client.problems import UnexpectedAnswer


@dataclass(frozen=True, slots=True)
class StageView:
    """One stage of a job. `share` is its part of the job's total time, 0 to 1."""

    name: str
    seconds: float
    share: float = 0.0
    note: str = ""


@dataclass(frozen=True, slots=True)
class AttemptView:
    """One claim of the job, counted from 1. `end` is empty while the attempt runs."""

    attempt: int
    worker: str = ""
    claimed_at: datetime | None = None
    ended_at: datetime | None = None
    end: str = ""
    batch: str = ""


@dataclass(frozen=True, slots=True)
class RanIn:
    """The batch in which the job ended, and the job's place there, from 1. `device` and `provider` are empty if unknown."""

    id: str
    size: int = 0
    place: int = 0
    reason: str = ""
    device: str = ""
    provider: str = ""


@dataclass(frozen=True, slots=True)
class StageJobView:
    """A stage of a pipeline, and the job that runs it. `id`: empty before its submit; `took_s`: None until its end."""

    stage: str
    model: str = ""
    status: str = ""
    id: str = ""
    took_s: float | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class TimelineView:
    """The stages add up to `total_s`. `slowest` names one of them, `summary` explains it in a sentence.

    `stage_jobs`: the jobs of a pipeline's stages; empty for other models.
    """

    id: str
    status: str
    total_s: float
    stages: tuple[StageView, ...]
    attempts: tuple[AttemptView, ...] = ()
    attempts_left_out: int = 0
    batch: RanIn | None = None
    queued_behind: int = 0
    slowest: str = ""
    summary: str = ""
    trace_id: str = ""
    stage_jobs: tuple[StageJobView, ...] = ()
    body: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def seconds(self, stage: str) -> float:
        """The duration of one stage; 0 for a stage that the job skipped."""
        return sum(known.seconds for known in self.stages if known.name == stage)


def timeline_view(body: Mapping[str, Any]) -> TimelineView:
    if not isinstance(body.get("id"), str) or not isinstance(body.get("stages"), list):
        raise UnexpectedAnswer("the answer is not a timeline: it has no 'id' and 'stages'")
    return TimelineView(
        id=body["id"],
        status=str(body.get("status", "")),
        total_s=float(body.get("total_s") or 0.0),
        stages=tuple(_stage(stage) for stage in body["stages"]),
        attempts=tuple(_attempt(attempt) for attempt in body.get("attempts") or ()),
        attempts_left_out=int(body.get("attempts_left_out") or 0),
        batch=_batch(body.get("batch")),
        queued_behind=int(body.get("queued_behind") or 0),
        slowest=str(body.get("slowest") or ""),
        summary=str(body.get("summary") or ""),
        trace_id=str(body.get("trace_id") or ""),
        stage_jobs=tuple(_stage_job(one) for one in body.get("stage_jobs") or ()),
        body=body,
    )


def _stage(value: Mapping[str, Any]) -> StageView:
    share = float(value.get("share") or 0.0)
    return StageView(str(value.get("name", "")), float(value.get("seconds") or 0.0), share, str(value.get("note") or ""))


def _stage_job(value: Mapping[str, Any]) -> StageJobView:
    words = {name: str(value.get(name) or "") for name in ("stage", "model", "status", "id")}
    error = value.get("error") or {}
    return StageJobView(took_s=value.get("took_s"), error=str(error.get("message") or ""), **words)


def _attempt(value: Mapping[str, Any]) -> AttemptView:
    return AttemptView(
        attempt=int(value.get("attempt") or 0),
        worker=str(value.get("worker") or ""),
        claimed_at=_moment(value.get("claimed_at")),
        ended_at=_moment(value.get("ended_at")),
        end=str(value.get("end") or ""),
        batch=str(value.get("batch") or ""),
    )


def _batch(value: Any) -> RanIn | None:
    if not isinstance(value, dict):
        return None
    words = {name: str(value.get(name) or "") for name in ("id", "reason", "device", "provider")}
    return RanIn(size=int(value.get("size") or 0), place=int(value.get("place") or 0), **words)


def _moment(text: Any) -> datetime | None:
    return datetime.fromisoformat(text) if isinstance(text, str) and text else None

"""A job as plain frozen values. Fields that a newer gateway adds stay in `body`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from penstock.client.problems import Problem, UnexpectedAnswer, problem_of

FINAL_STATUSES = frozenset({"succeeded", "failed", "cancelled", "expired"})


@dataclass(frozen=True, slots=True)
class BatchView:
    """The batch in which a job ran, the seconds per stage, and the job's place in it."""

    size: int = 0
    reason: str = ""
    preprocess_s: float = 0.0
    inference_s: float = 0.0
    postprocess_s: float = 0.0
    decode_s: float = 0.0
    place: int = 0

    @property
    def run_s(self) -> float:
        return self.decode_s + self.preprocess_s + self.inference_s + self.postprocess_s


@dataclass(frozen=True, slots=True)
class ProgressView:
    """The last progress that the job's handler reported: a `fraction` from 0 to 1, and a `note`."""

    fraction: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class JobView:
    """A job at one moment. `status` is queued, running, succeeded, failed, cancelled or expired; `body` is the whole answer.

    `replay_of` is the id of the job whose input this job repeats, `replayed_as` the id of the job that repeats this one;
    `not_before` the moment before which the job does not run, if its submit named one.
    """

    id: str
    status: str
    model: str = ""
    version: str = ""
    priority: str = ""
    position: int | None = None
    attempts: int = 0
    progress: ProgressView | None = None
    created_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    deadline_at: datetime | None = None
    error: Problem | None = None
    batch: BatchView | None = None
    replay_of: str = ""
    replayed_as: str = ""
    not_before: datetime | None = None
    tags: tuple[str, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def final(self) -> bool:
        return self.status in FINAL_STATUSES


@dataclass(frozen=True, slots=True)
class CancelledJobs:
    """The result of cancelling many jobs: waiting jobs that have ended, and running jobs that will end with their batch."""

    cancelled: int
    requested: int


def job_view(body: Mapping[str, Any]) -> JobView:
    if not isinstance(body.get("id"), str) or not isinstance(body.get("status"), str):
        raise UnexpectedAnswer("the answer is not a job: it has no 'id' and 'status'")
    return JobView(
        id=body["id"],
        status=body["status"],
        model=str(body.get("model", "")),
        version=str(body.get("version", "")),
        priority=str(body.get("priority", "")),
        position=body.get("position"),
        attempts=int(body.get("attempts") or 0),
        progress=progress_view(body.get("progress")),
        created_at=_moment(body.get("created_at")),
        started_at=_moment(body.get("started_at")),
        finished_at=_moment(body.get("finished_at")),
        deadline_at=_moment(body.get("deadline_at")),
        error=_error(body.get("error")),
        batch=_batch(body.get("batch")),
        replay_of=str(body.get("replay_of") or ""),
        replayed_as=str(body.get("replayed_as") or ""),
        not_before=_moment(body.get("not_before")),
        tags=tuple(map(str, body.get("tags") or ())),
        links=_links(body.get("links")),
        body=body,
    )


def progress_view(value: Any) -> ProgressView | None:
    if not isinstance(value, dict):
        return None
    return ProgressView(float(value.get("fraction") or 0.0), str(value.get("note") or ""))


def _moment(text: Any) -> datetime | None:
    return datetime.fromisoformat(text) if isinstance(text, str) and text else None


def _error(value: Any) -> Problem | None:
    return problem_of(value) if isinstance(value, dict) else None


def _batch(value: Any) -> BatchView | None:
    if not isinstance(value, dict):
        return None
    stages = {name: float(value.get(name) or 0.0) for name in ("decode_s", "preprocess_s", "inference_s", "postprocess_s")}
    place, reason = int(value.get("place") or 0), str(value.get("reason") or "")
    return BatchView(size=int(value.get("size") or 0), reason=reason, place=place, **stages)


def _links(value: Any) -> dict[str, str]:
    return {name: link for name, link in value.items() if isinstance(link, str)} if isinstance(value, dict) else {}

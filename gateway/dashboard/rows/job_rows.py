"""Jobs as the pages show them: a row of the list, the timeline (D27) as bars, and the allowed actions. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock import words
from penstock.access import Role
from penstock.gateway.auth.keys import Caller
from penstock.gateway.jobs.replay import REPLAYABLE
from penstock.gateway.jobs.timeline import Timeline, TimelineStage
from penstock.job import Job, JobState

# The minimum width of a bar, so that very short stages can be seen and hovered.
_LEAST_PERCENT = 0.5
TONES = {"queued": "idle", "running": "run", "succeeded": "good", "failed": "bad", "cancelled": "idle", "expired": "warn"}
_TITLES = {
    "queue": "waited in the queue",
    "delay": "waited for its start, or between attempts",
    "lost": "attempts without a result",
    "batch_wait": "waited for its batch to begin",
    "decode": "read the inputs",
    "preprocess": "preprocess",
    "device_wait": "waited for the device",
    "inference": "inference",
    "postprocess": "postprocess",
    "store": "stored the result",
    "run": "running",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """A stage or an attempt as a bar. `start` and `width` are percent of the job's total time."""

    name: str
    title: str
    start: float
    width: float
    seconds: float
    share: float = 0.0
    note: str = ""


def stage_bars(stages: Iterable[TimelineStage]) -> list[Bar]:
    """One bar per stage, side by side. Very short stages are widened and the others narrowed."""
    shown = [stage for stage in stages if stage.seconds > 0.0]
    widths = [max(_LEAST_PERCENT, 100.0 * stage.share) for stage in shown]
    scale, at, bars = 100.0 / sum(widths) if widths else 1.0, 0.0, []
    for stage, width in zip(shown, widths, strict=True):
        bars.append(
            Bar(
                stage.name,
                _TITLES.get(stage.name, stage.name),
                round(at, 3),
                round(width * scale, 3),
                stage.seconds,
                stage.share,
                stage.note,
            )
        )
        at += width * scale
    return bars


def attempt_bars(timeline: Timeline) -> list[Bar]:
    """One bar per attempt, at its place in the job's time."""
    job, total_s = timeline.job, timeline.total_s or 1e-9
    bars = []
    for attempt in job.tries:
        ended_at = attempt.ended_at if attempt.ended_at is not None else job.created_at + timeline.total_s
        start = min(100.0 - _LEAST_PERCENT, max(0.0, 100.0 * (attempt.claimed_at - job.created_at) / total_s))
        spent_s = max(0.0, ended_at - attempt.claimed_at)
        width = min(100.0 - start, max(_LEAST_PERCENT, 100.0 * spent_s / total_s))
        end = attempt.end or "running"
        bars.append(Bar(end, f"attempt {attempt.number}: {end}", round(start, 3), round(width, 3), spent_s))
    return bars


@dataclass(frozen=True, slots=True)
class Actions:
    """The actions that this caller may take on the job in its current state."""

    cancel: bool
    replay: bool


def actions(job: Job, caller: Caller) -> Actions:
    may_act = not caller.roles.isdisjoint({Role.SUBMIT, Role.MANAGE})
    return Actions(
        cancel=may_act and not job.state.final and not job.cancel_requested, replay=may_act and job.state in REPLAYABLE
    )


@dataclass(frozen=True, slots=True)
class JobRow:
    """One row of the list."""

    id: str
    model: str
    version: str
    status: str
    tone: str
    priority: str
    age: str
    took: str
    error: str
    replayed: bool
    starts: str


def is_put_aside(job: Job) -> bool:
    """Whether the job is delayed by its submit, and not for a retry."""
    return job.state is JobState.DELAYED and job.not_before is not None and not job.tries


def job_row(job: Job, now: float) -> JobRow:
    status = job.state.public
    took = None if job.finished_at is None else job.finished_at - job.created_at
    return JobRow(
        id=str(job.id),
        model=job.model,
        version=job.version,
        status=status,
        tone=TONES[status],
        priority=job.priority.value,
        age=words.ago(job.created_at, now),
        took=words.duration(took),
        error=job.error.code if job.error and job.state is not JobState.CANCELLED else "",
        replayed=job.replayed_as is not None,
        starts=words.duration(job.not_before - now) if is_put_aside(job) and job.not_before else "",
    )

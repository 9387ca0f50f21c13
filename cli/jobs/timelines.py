"""Prints a job's timeline: the slowest stage, a bar per stage, a line per attempt."""

from __future__ import annotations

import sys

import typer

from penstock.cli.display import is_colored, print_table
from penstock.client.timelines import AttemptView, RanIn, StageJobView, TimelineView
from penstock.words import duration

_BAR = 24
_LEAST_SHARE = 0.0005


def print_timeline(timeline: TimelineView) -> None:
    """Columns are always aligned; bars are drawn only on a terminal."""
    _line("")
    _line(_sentence(timeline))
    bars = sys.stdout.isatty()
    rows = [
        (stage.name, duration(stage.seconds), f"{stage.share:.0%}", *([_bar(stage.share)] if bars else []), stage.note)
        for stage in timeline.stages
        if stage.share >= _LEAST_SHARE or stage.name == timeline.slowest
    ]
    print_table(("STAGE", "TOOK", "SHARE", *([""] if bars else []), "NOTE"), rows)
    if timeline.batch is not None:
        _line(f"batch {_batch(timeline.batch)}")
    if timeline.stage_jobs:
        _line("")
        print_table(("STAGE", "MODEL", "STATUS", "TOOK", "JOB"), [_stage_job(one) for one in timeline.stage_jobs])
    if len(timeline.attempts) > 1 or any(attempt.end != timeline.status for attempt in timeline.attempts):
        _line("")
        print_table(
            ("ATTEMPT", "WORKER", "CLAIMED", "TOOK", "END", "BATCH"), [_attempt(attempt) for attempt in timeline.attempts]
        )
        if timeline.attempts_left_out:
            _line(f"{timeline.attempts_left_out} attempts between them are not kept")


def _sentence(timeline: TimelineView) -> str:
    text = (
        f"{timeline.summary} (of {duration(timeline.total_s)})" if timeline.summary else f"total {duration(timeline.total_s)}"
    )
    return typer.style(text, bold=True) if is_colored(sys.stdout) else text


def _bar(share: float) -> str:
    return "█" * max(1, round(share * _BAR))


def _batch(batch: RanIn) -> str:
    where = [batch.device, batch.provider]
    parts = [batch.id, f"item {batch.place} of {batch.size}", f"released: {batch.reason}", " ".join(filter(None, where))]
    return " | ".join(part for part in parts if part)


def _attempt(attempt: AttemptView) -> tuple[str, ...]:
    claimed = attempt.claimed_at.strftime("%H:%M:%S.%f")[:-3] if attempt.claimed_at else "-"
    took = "-"
    if attempt.claimed_at and attempt.ended_at:
        took = duration((attempt.ended_at - attempt.claimed_at).total_seconds())
    return (str(attempt.attempt), attempt.worker, claimed, took, attempt.end or "running", attempt.batch)


def _stage_job(one: StageJobView) -> tuple[str, ...]:
    return (one.stage, one.model, one.status, duration(one.took_s) if one.took_s is not None else "-", one.id or "-")


def _line(text: str) -> None:
    sys.stdout.write(text + "\n")

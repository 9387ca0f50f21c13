"""A job's timeline on a terminal: a bar per stage, a line per attempt, and the sentence that says what took longest."""

from __future__ import annotations

import sys

import typer

from penstock.cli.display import is_colored, print_table
from penstock.client.timelines import AttemptView, RanIn, TimelineView
from penstock.words import duration

_BAR = 24
_LEAST_SHARE = 0.0005


def print_timeline(told: TimelineView) -> None:
    """Columns line up without a terminal too; bars are for those who have one."""
    _line("")
    _line(_sentence(told))
    bars = sys.stdout.isatty()
    rows = [
        (stage.name, duration(stage.seconds), f"{stage.share:.0%}", *([_bar(stage.share)] if bars else []), stage.note)
        for stage in told.stages
        if stage.share >= _LEAST_SHARE or stage.name == told.slowest
    ]
    print_table(("STAGE", "TOOK", "SHARE", *([""] if bars else []), "NOTE"), rows)
    if told.batch is not None:
        _line(f"batch {_batch(told.batch)}")
    if len(told.attempts) > 1 or any(tried.end != told.status for tried in told.attempts):
        _line("")
        print_table(("ATTEMPT", "WORKER", "CLAIMED", "TOOK", "END", "BATCH"), [_attempt(tried) for tried in told.attempts])
        if told.attempts_left_out:
            _line(f"{told.attempts_left_out} attempts between them are not kept")


def _sentence(told: TimelineView) -> str:
    text = f"{told.summary} (of {duration(told.total_s)})" if told.summary else f"total {duration(told.total_s)}"
    return typer.style(text, bold=True) if is_colored(sys.stdout) else text


def _bar(share: float) -> str:
    return "█" * max(1, round(share * _BAR))


def _batch(batch: RanIn) -> str:
    where = [batch.device, batch.provider]
    parts = [batch.id, f"item {batch.place} of {batch.size}", f"released: {batch.reason}", " ".join(filter(None, where))]
    return " | ".join(part for part in parts if part)


def _attempt(tried: AttemptView) -> tuple[str, ...]:
    claimed = tried.claimed_at.strftime("%H:%M:%S.%f")[:-3] if tried.claimed_at else "-"
    took = "-"
    if tried.claimed_at and tried.ended_at:
        took = duration((tried.ended_at - tried.claimed_at).total_seconds())
    return (str(tried.attempt), tried.worker, claimed, took, tried.end or "running", tried.batch)


def _line(text: str) -> None:
    sys.stdout.write(text + "\n")

"""Runs as the pages show them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock import words
from penstock.access import Role
from penstock.gateway.auth.keys import Caller
from penstock.gateway.runs.views import eta_s, run_status
from penstock.run import Run

TONES = {
    "queued": "idle",
    "validating": "run",
    "running": "run",
    "publishing": "run",
    "interrupted": "warn",
    "completed": "good",
    "failed": "bad",
    "cancelled": "idle",
    "expired": "warn",
}


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run as text. `percent` is None while the number of rows is unknown."""

    id: str
    status: str
    tone: str
    model: str
    kind: str
    owner: str
    rows: str
    failed: int
    percent: int | None
    rate: str
    eta: str
    busy: str
    age: str
    took: str
    live: bool
    cancelling: bool


def run_row(run: Run, now: float, words_of_kinds: Mapping[str, str]) -> RunRow:
    status, counts = run_status(run, now), run.counts
    finished = counts.done + counts.failed
    live = not run.state.final
    ended = run.finished_at if run.finished_at is not None else now
    return RunRow(
        id=run.id,
        status=status,
        tone=TONES[status],
        model=run.spec.model or words.UNKNOWN,
        kind=words_of_kinds.get(run.spec.kind, run.spec.kind),
        owner=run.owner,
        rows=words.count(finished) if counts.total is None else f"{words.count(finished)} of {words.count(counts.total)}",
        failed=counts.failed,
        percent=None if not counts.total else min(100, 100 * finished // counts.total),
        rate=words.number(run.rows_per_s) if live or run.rows_per_s else words.UNKNOWN,
        eta=words.duration(eta_s(run)),
        busy=words.UNKNOWN if run.busy is None else f"{100 * run.busy:.0f} %",
        age=words.ago(run.created_at, now),
        took=words.duration(ended - run.started_at) if run.started_at is not None else words.UNKNOWN,
        live=live,
        cancelling=live and run.request == "cancel",
    )


def may_cancel(run: Run, caller: Caller) -> bool:
    return not run.state.final and not run.request and not caller.roles.isdisjoint({Role.SUBMIT, Role.MANAGE})

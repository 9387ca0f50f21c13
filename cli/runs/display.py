"""How a run looks while it goes: a bar on a terminal, a line every few seconds elsewhere, or JSON events; and as a record."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from penstock.cli.display import colored, print_faint, print_json
from penstock.run import Run
from penstock.runs.ownership import orphaned
from penstock.runs.progress import RunProgress
from penstock.words import duration

Shown = Callable[[RunProgress], None]

_LINE_EVERY_S = 5.0
_EVENT_EVERY_S = 1.0
INTERRUPTED = "interrupted"


@contextmanager
def shown_run(*, as_json: bool) -> Iterator[Shown]:
    """What is to be called with each look at the run, often; it shows as many as its reader wants."""
    if as_json:
        yield _Paced(_EVENT_EVERY_S, lambda look: print_json(event_of(look)))
    elif colored(sys.stderr):
        with _bar() as shown:
            yield shown
    else:
        yield _Paced(_LINE_EVERY_S, lambda look: print_faint(words(look)))


class _Paced:
    """Passes on what has changed, at most every so many seconds; a new stage or note at once."""

    def __init__(self, every_s: float, show: Shown) -> None:
        self._every_s, self._show = every_s, show
        self._at, self._said = float("-inf"), ("", "")

    def __call__(self, look: RunProgress) -> None:
        now, said = time.monotonic(), (look.stage, look.note)
        if said != self._said or now - self._at >= self._every_s:
            self._at, self._said = now, said
            self._show(look)


def words(look: RunProgress) -> str:
    """One line: how much of how much, how fast, how long still, what keeps it."""
    counts = look.counts
    total = "" if counts.total is None else f" of {counts.total:,}"
    parts = [f"{look.stage}: {counts.done + counts.failed:,}{total} rows", f"{look.rows_per_s:,.0f} rows/s"]
    parts += [f"{counts.failed:,} failed"] if counts.failed else []
    parts += [f"device busy {look.busy:.0%}"] if look.busy is not None else []
    parts += [f"{duration(look.eta_s)} left"] if look.eta_s else []
    return ", ".join(parts) + (f"; {look.note}" if look.note else "")


def event_of(look: RunProgress) -> dict[str, Any]:
    counts = look.counts
    return {
        "event": "progress",
        "stage": look.stage,
        "done": counts.done,
        "failed": counts.failed,
        "total": counts.total,
        "rows_per_s": round(look.rows_per_s, 1),
        "eta_s": None if look.eta_s is None else round(look.eta_s, 1),
        "busy": None if look.busy is None else round(look.busy, 3),
        "note": look.note,
    }


@contextmanager
def _bar() -> Iterator[Shown]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def shown(look: RunProgress) -> None:
            counts = look.counts
            bar.update(task, total=counts.total, completed=counts.done + counts.failed, description=words(look))

        yield shown


def state_word(run: Run) -> str:
    return INTERRUPTED if orphaned(run, now=time.time()) else run.state.value


def record_of(run: Run) -> dict[str, Any]:
    """The run as programs read it."""
    return {**msgspec.to_builtins(run), "state": state_word(run)}


def fields_of(run: Run) -> dict[str, Any]:
    counts = run.counts
    took_s = (run.finished_at or time.time()) - run.started_at if run.started_at else None
    return {
        "run": run.id,
        "state": state_word(run),
        "model": f"{run.spec.model} {run.version}".strip(),
        "input": run.spec.input,
        "output": run.spec.output,
        "rows": f"{counts.done:,} done, {counts.failed:,} failed" + (f", {counts.total:,} in all" if counts.total else ""),
        "rate": f"{run.rows_per_s:,.0f} rows/s" if run.rows_per_s else "",
        "busy": "" if run.busy is None else f"{run.busy:.0%} of the device time",
        "took": "" if took_s is None else duration(took_s),
        "driver": run.driver.rpartition(":")[0] if not run.state.final else "",
        "error": f"{run.error_code}: {run.error_message}" if run.error_code else "",
        "errors": (run.details.get("errors") or {}).get("path", "") if isinstance(run.details.get("errors"), dict) else "",
        "manifest": run.details.get("manifest", ""),
    }

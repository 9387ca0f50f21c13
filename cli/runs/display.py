"""The display of runs: progress as a bar, as lines or as JSON events, and the records of `list` and `show`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from rich.console import Console

from penstock.cli.display import is_colored, print_faint, print_json
from penstock.run import Run
from penstock.runs.progress import RunProgress
from penstock.words import duration

OnRunProgress = Callable[[RunProgress], None]

_LINE_EVERY_S = 5.0
_EVENT_EVERY_S = 1.0
INTERRUPTED = "interrupted"


@contextmanager
def show_run_progress(*, as_json: bool) -> Iterator[OnRunProgress]:
    """The call-back for progress. It may be called at any rate and limits its output."""
    if as_json:
        yield _Throttled(_EVENT_EVERY_S, lambda progress: print_json(event_of(progress)))
    elif is_colored(sys.stderr):
        with _bar() as on_progress:
            yield on_progress
    else:
        yield _Throttled(_LINE_EVERY_S, lambda progress: print_faint(line_of(progress)))


class _Throttled:
    """Passes progress on at most every `every_s` seconds; a new stage or note at once."""

    def __init__(self, every_s: float, show: OnRunProgress) -> None:
        self._every_s, self._show = every_s, show
        self._at, self._shown = float("-inf"), ("", "")

    def __call__(self, progress: RunProgress) -> None:
        now, state = time.monotonic(), (progress.stage, progress.note)
        if state != self._shown or now - self._at >= self._every_s:
            self._at, self._shown = now, state
            self._show(progress)


def line_of(progress: RunProgress) -> str:
    """One line: rows done of all rows, rate, time left, what the run waits for."""
    counts = progress.counts
    total = "" if counts.total is None else f" of {counts.total:,}"
    share = "" if progress.share is None else f" ({progress.share:.0%})"
    parts = [f"{progress.stage}: {counts.done + counts.failed:,}{total} rows{share}", f"{progress.rows_per_s:,.0f} rows/s"]
    parts += [f"{counts.failed:,} failed"] if counts.failed else []
    parts += [f"device busy {progress.busy:.0%}"] if progress.busy is not None else []
    parts += [f"{duration(progress.eta_s)} left"] if progress.eta_s else []
    return ", ".join(parts) + (f"; {progress.note}" if progress.note else "")


def event_of(progress: RunProgress) -> dict[str, Any]:
    counts = progress.counts
    return {
        "event": "progress",
        "stage": progress.stage,
        "done": counts.done,
        "failed": counts.failed,
        "total": counts.total,
        "share": None if progress.share is None else round(progress.share, 4),
        "rows_per_s": round(progress.rows_per_s, 1),
        "eta_s": None if progress.eta_s is None else round(progress.eta_s, 1),
        "busy": None if progress.busy is None else round(progress.busy, 3),
        "note": progress.note,
    }


@contextmanager
def _bar() -> Iterator[OnRunProgress]:
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}", markup=False))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def on_progress(progress: RunProgress) -> None:
            known = progress.share is not None
            bar.update(task, total=1.0 if known else None, completed=progress.share or 0.0, description=line_of(progress))

        yield on_progress


def state_word(run: Run, now: float) -> str:
    """`now` is by the store's clock, here and below."""
    # Imported here, because it loads the store, which a gateway's runs do not need.
    from penstock.runs.ownership import is_orphaned

    return INTERRUPTED if is_orphaned(run, now=now) else run.state.value


def record_of(run: Run, now: float) -> dict[str, Any]:
    """The record of a run, for programs."""
    return {**msgspec.to_builtins(run), "state": state_word(run, now)}


def fields_of(run: Run, now: float) -> dict[str, Any]:
    """The record of a run, for people."""
    from penstock.runs.ownership import process_of

    counts = run.counts
    took_s = (run.finished_at or now) - run.started_at if run.started_at else None
    return {
        "run": run.id,
        "state": state_word(run, now),
        "model": f"{run.spec.model} {run.version}".strip(),
        "input": run.spec.input,
        "output": run.spec.output,
        "rows": f"{counts.done:,} done, {counts.failed:,} failed" + (f", {counts.total:,} in all" if counts.total else ""),
        "rate": f"{run.rows_per_s:,.0f} rows/s" if run.rows_per_s else "",
        "tags": ", ".join(run.spec.tags),
        "busy": "" if run.busy is None else f"{run.busy:.0%} of the device time",
        "took": "" if took_s is None else duration(took_s),
        "driver": process_of(run.driver) if not run.state.final else "",
        "error": f"{run.error_code}: {run.error_message}" if run.error_code else "",
        "errors": (run.details.get("errors") or {}).get("path", "") if isinstance(run.details.get("errors"), dict) else "",
        "manifest": run.details.get("manifest", ""),
    }


def part_record(part: Run, now: float) -> dict[str, Any]:
    """The record of a part, for programs, without the settings, which are the run's."""
    shown = record_of(part, now)
    return {name: shown[name] for name in ("part", "state", "counts", "rows_per_s", "driver", "error_code", "error_message")}


def part_row(part: Run, now: float) -> tuple[str, ...]:
    """One line of the table of a run's parts."""
    from penstock.runs.ownership import process_of

    counts, where = part.counts, part.part
    driver = process_of(part.driver) if part.driver and not part.state.final else ""
    number, stretch = (f"{where.number}", f"files {where.first} to {where.stop - 1}") if where else ("", "")
    if where and (where.begin or where.end):
        begin = next(iter(where.begin.values())) if where.begin else 0
        stretch += f", {begin:,} to {'the end' if where.end is None else f'{where.end:,}'}"
    rows = f"{counts.done + counts.failed:,}"
    return number, state_word(part, now), rows, f"{counts.failed:,}", driver, stretch, part.error_message

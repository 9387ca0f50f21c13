"""Shows jobs and runs: a progress bar at a terminal or in a notebook, and a table in a notebook."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from html import escape
from importlib import import_module
from typing import Any

from penstock.client.runs import OnProgress, RunView
from penstock.client.views import JobView
from penstock.distribution import require_extra

# The interval at which the bar of one job reads it.
LOOK_EVERY_S = 0.5
# Called with the completed amount, the total (None: unknown), and a short note.
OnStep = Callable[[float, float | None, str], None]


# The interval at which a bar in a notebook is redrawn.
_DRAW_EVERY_S = 0.1


def in_notebook() -> bool:
    return "ipykernel" in sys.modules


def is_watched() -> bool:
    """Whether a bar is visible: at a terminal or in a notebook, but not in a log."""
    return sys.stderr.isatty() or in_notebook()


@contextmanager
def progress_bar(title: str, *, shown: bool) -> Iterator[OnStep]:
    """A bar on standard error or in the notebook's cell while the block runs; none if it is not visible or not wanted."""
    if not (shown and is_watched()):
        yield lambda done, total, note: None
        return
    if in_notebook():
        bar_of_cell = NotebookBar(title)
        yield bar_of_cell.step
        return bar_of_cell.draw()
    require_extra("cli", who="progress=True")
    # Imported here, because programs without a bar do not need it.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    title_column, note_column = (TextColumn(f"{{task.{name}}}", markup=False) for name in ("description", "fields[note]"))
    columns = (title_column, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, note_column, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=None, note="")
        yield lambda done, total, note: bar.update(task, completed=done, total=total, note=note)


class NotebookBar:
    """A bar in the output of a notebook's cell, as HTML that is replaced. Rich would need a package of widgets for one."""

    def __init__(self, title: str) -> None:
        self._title, self._note, self._done = title, "", 0.0
        self._total: float | None = None
        self._drawn_at = time.monotonic()
        self._shown = import_module("IPython.display").display(self, display_id=True)

    def step(self, done: float, total: float | None, note: str) -> None:
        self._done, self._total, self._note = done, total, note
        if time.monotonic() - self._drawn_at >= _DRAW_EVERY_S:
            self.draw()

    def draw(self) -> None:
        self._drawn_at = time.monotonic()
        self._shown.update(self)

    def __repr__(self) -> str:
        total = "?" if self._total is None else f"{self._total:,.0f}"
        return f"{self._title} {self._done:,.0f}/{total} {self._note}".rstrip()

    def _repr_html_(self) -> str:
        filled = "" if self._total is None else f' value="{self._done:g}" max="{self._total or 1:g}"'
        return f"<progress{filled}></progress> {escape(repr(self))}"


def total_of(inputs: object) -> int | None:
    """The number of inputs, if it is known before they are read."""
    return len(inputs) if isinstance(inputs, Sized) else None


def run_steps(on_step: OnStep, on_progress: OnProgress | None) -> OnProgress:
    """A run's call-back that moves its bar, then calls the caller's own."""

    def both(view: RunView) -> None:
        ended = view.done + view.failed
        # The rows of an upload are counted while it is read, so at the end the total may still be unknown.
        on_step(ended, ended if view.final else view.rows, f"{view.failed} failed" if view.failed else view.status)
        if on_progress is not None:
            on_progress(view)

    return both


def job_step(view: JobView, on_step: OnStep) -> None:
    """Moves the bar of a job to the progress that its handler reports."""
    said = view.progress
    on_step(100 if view.final else 100 * (said.fraction if said else 0.0), 100, (said.note if said else "") or view.status)


def job_table(view: JobView) -> str:
    """The job as an HTML table, for notebooks."""
    said = view.progress
    known: dict[str, Any] = {
        "job": view.id,
        "status": view.status,
        "place in the queue": view.position,
        "progress": f"{said.fraction:.0%} {said.note}" if said else None,
        "attempts": view.attempts or None,
        "error": view.error,
    }
    return _table(known)


def run_table(view: RunView) -> str:
    """The run as an HTML table, for notebooks."""
    ended = view.done + view.failed
    rows = ended if view.rows is None and view.final else view.rows
    known: dict[str, Any] = {
        "run": view.id,
        "status": view.status,
        "rows": f"{ended:,} of {'?' if rows is None else f'{rows:,}'}",
        "failed": view.failed or None,
        "rows/s": f"{view.rows_per_s:,.0f}" if view.rows_per_s else None,
        "seconds left": None if view.eta_s is None else f"{view.eta_s:,.0f}",
    }
    return _table(known)


def _table(known: Mapping[str, Any]) -> str:
    lines: Iterable[str] = (
        f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in known.items() if value is not None
    )
    return f"<table>{''.join(lines)}</table>"

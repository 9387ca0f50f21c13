"""Progress of `bench` and `tune` on stderr: a bar on a terminal, lines elsewhere. stdout belongs to the report."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from penstock.cli.display import is_colored, print_faint
from penstock.loadtest.assignment import LoadProgress

# Called with the seconds since the start and the generators' latest progress.
OnLoadProgress = Callable[[float, LoadProgress], None]
# Called with a step's name, its completed share, and its current action.
OnTuneProgress = Callable[[str, float, str], None]

# The shares of a whole search at which each step begins and ends.
_STEPS = {"measure": (0.0, 0.4), "overheads": (0.4, 0.45), "simulate": (0.45, 0.6), "confirm": (0.6, 1.0)}
_LINE_EVERY_S = 1.0


@contextmanager
def show_load_progress(whole_s: float) -> Iterator[OnLoadProgress]:
    """The call-back of a load test of `whole_s` seconds."""
    if is_colored(sys.stderr):
        with _load_bar(whole_s) as on_progress:
            yield on_progress
    else:
        yield lambda seconds, progress: print_faint(f"{seconds:5.1f} of {whole_s:g} s: {load_line(progress)}")


def load_line(progress: LoadProgress) -> str:
    bad = f", {progress.bad:,} errors" if progress.bad else ""
    late = f", left up to {progress.lag_s * 1e3:.0f} ms late" if progress.lag_s > 0.005 else ""
    return f"{progress.offered:,} sent, {progress.good:,} answered{bad}{late}"


@contextmanager
def show_tune_progress(budget_s: float) -> Iterator[OnTuneProgress]:
    """The call-back of a search that may take `budget_s` seconds."""
    # structlog would log to stdout, which belongs to the report.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    if is_colored(sys.stderr):
        with _tune_bar() as on_progress:
            yield on_progress
    else:
        yield _TuneLines(budget_s)


class _TuneLines:
    """Prints a line per step; for the many steps of the simulation, one per second."""

    def __init__(self, budget_s: float) -> None:
        self._budget_s, self._began, self._last = budget_s, time.monotonic(), float("-inf")

    def __call__(self, step: str, done: float, text: str) -> None:
        now = time.monotonic()
        if step == "simulate" and now < self._last + _LINE_EVERY_S:
            return
        self._last = now
        print_faint(f"{now - self._began:5.1f} of {self._budget_s:g} s: {step} {text}")


@contextmanager
def _load_bar(whole_s: float) -> Iterator[OnLoadProgress]:
    with _bar() as bar:
        task = bar.add_task("starting", total=whole_s)

        def on_progress(seconds: float, progress: LoadProgress) -> None:
            bar.update(task, completed=min(seconds, whole_s), description=load_line(progress))

        yield on_progress


@contextmanager
def _tune_bar() -> Iterator[OnTuneProgress]:
    with _bar() as bar:
        task = bar.add_task("starting", total=1.0)

        def on_progress(step: str, done: float, text: str) -> None:
            begins, ends = _STEPS[step]
            bar.update(task, completed=begins + done * (ends - begins), description=f"{step}: {text}")

        yield on_progress


def _bar() -> Progress:
    columns = (BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}", markup=False))
    return Progress(*columns, console=Console(stderr=True), transient=True)

"""How far a benchmark is, on stderr: a bar on a terminal, a line per second elsewhere. stdout is the report's alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from penstock.cli.display import colored, print_faint
from penstock.loadtest.assignment import LoadProgress as Said

Told = Callable[[float, Said], None]


@contextmanager
def shown_progress(whole_s: float) -> Iterator[Told]:
    """What is to be called with the seconds since the start and what the generators said."""
    if colored(sys.stderr):
        with _bar(whole_s) as told:
            yield told
        return

    def line(seconds: float, said: Said) -> None:
        print_faint(f"{seconds:5.1f} of {whole_s:g} s: {words(said)}")

    yield line


def words(said: Said) -> str:
    bad = f", {said.bad:,} errors" if said.bad else ""
    late = f", left up to {said.lag_s * 1e3:.0f} ms late" if said.lag_s > 0.005 else ""
    return f"{said.offered:,} sent, {said.good:,} answered{bad}{late}"


@contextmanager
def _bar(whole_s: float) -> Iterator[Told]:
    columns = (BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=whole_s)

        def told(seconds: float, said: Said) -> None:
            progress.update(task, completed=min(seconds, whole_s), description=words(said))

        yield told

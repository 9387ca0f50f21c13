"""How far a search is, on stderr: a bar with what is left on a terminal, a line per step elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from penstock.cli.display import colored, print_faint

Told = Callable[[str, float, str], None]
# Where in a whole search each step begins; the last ends at 1.
_STEPS = {"measure": (0.0, 0.4), "overheads": (0.4, 0.45), "simulate": (0.45, 0.6), "confirm": (0.6, 1.0)}
_LINE_EVERY_S = 1.0


@contextmanager
def shown_steps(budget_s: float) -> Iterator[Told]:
    """What is to be called with a step's name, how far it is, and what it does now."""
    if colored(sys.stderr):
        with _bar() as told:
            yield told
        return
    began, last = time.monotonic(), float("-inf")

    def line(step: str, done: float, text: str) -> None:
        nonlocal last
        now = time.monotonic()
        if step == "simulate" and now < last + _LINE_EVERY_S:
            return
        last = now
        print_faint(f"{now - began:5.1f} of {budget_s:g} s: {step} {text}")

    yield line


@contextmanager
def _bar() -> Iterator[Told]:
    columns = (BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=1.0)

        def told(step: str, done: float, text: str) -> None:
            begins, ends = _STEPS[step]
            progress.update(task, completed=begins + done * (ends - begins), description=f"{step}: {text}")

        yield told

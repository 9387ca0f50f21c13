"""A page in a process of its own, in a network of its own; and what came out of it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.blocks.network import its_turn, own_network, raise_loopback
from tests.blocks.page import PageError
from tests.blocks.session import BlockError, PageRun
from tests.markdown import ROOT, name_of

PAGE_WITHIN_S = 300.0
_SLOW_S = 3.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a page. `failure` is empty if every block did what the page says."""

    page: str
    seconds: float
    failure: str
    done: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    slow: tuple[str, ...] = ()
    transcript: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        done = ", ".join(f"{count} {kind}" for kind, count in sorted(self.done.items()))
        left = ", ".join(f"{count} {reason}" for reason, count in sorted(self.left_out.items()))
        head = f"{'FAILED' if self.failure else 'ok    '} {self.page}: {self.seconds:.1f} s; {done or 'nothing to run'}"
        return f"{head}; {self.compared} compared{f'; left out: {left}' if left else ''}\n{self.failure}".rstrip()


def run_page(page: Path) -> Outcome:
    """Run the blocks of a page as a reader would, from a fresh folder."""
    started = time.monotonic()
    command = [*own_network(), sys.executable, "-m", "tests.blocks", "--inside", str(page)]
    with its_turn():
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PAGE_WITHIN_S, check=False)
    try:
        told = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return Outcome(name_of(page), time.monotonic() - started, f"the run itself broke:\n{done.stdout}{done.stderr}")
    return Outcome(
        name_of(page),
        time.monotonic() - started,
        told["failure"],
        Counter(told["done"]),
        told["compared"],
        Counter(told["left_out"]),
        tuple(f"{seconds:.1f} s, {command}" for command, seconds in told["seconds"].items() if seconds > _SLOW_S),
        tuple((typed, printed) for typed, printed in told["transcript"]),
    )


def run_inside(page: Path) -> None:
    """Run the blocks of a page in this process, and print what came out as a line of JSON."""
    if own_network():
        raise_loopback()
    failure = ""
    with tempfile.TemporaryDirectory(prefix="penstock-page-") as folder:
        run = PageRun(page, Path(folder))
        try:
            run.run()
        except (BlockError, PageError) as failed:
            failure = f"{name_of(page)}, {failed}"
    counts = run.counts
    print(
        json.dumps(
            {
                "failure": failure,
                "done": counts.done,
                "compared": counts.compared,
                "left_out": counts.left_out,
                "seconds": counts.seconds,
                "transcript": run.transcript,
            }
        )
    )

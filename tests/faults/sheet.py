"""The score sheet: one line per fault and system, on the terminal and as a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from tests.faults.catalogue import ABSENT, FAULTS
from tests.faults.checker import Verdict
from tests.faults.meter import DISTURBED

_NUMBERS = ("accepted", "terminal", "lost", "views", "extra", "recover_s", "unexpected", "asked", "right", "grown_mib")
_LEAST_WIDTH = 160
_TABLE_BEGINS = "<!-- score sheet: python -m tests.faults --docs -->"
_TABLE_ENDS = "<!-- end -->"
_PASSED = "[green]passed[/]"
_FAILED = "[red]fell short[/]"


def show(verdicts: Sequence[Verdict], *, missing: bool) -> None:
    """Print the sheet. With `missing`, the sheet also names the faults that have no scenario, and says why."""
    narrow = [Column(name, no_wrap=True) for name in ("fault", "system", *_NUMBERS, "verdict")]
    table = Table(*narrow, Column("what happened", min_width=40), title="What was lost, per fault")
    for verdict in verdicts:
        table.add_row(*_cells(verdict))
    console = Console()
    # In a log file or a narrow window, long lines are better than words cut to pieces.
    console.width = max(console.width, _LEAST_WIDTH)
    console.print(table)
    for verdict in verdicts:
        for complaint in verdict.complaints:
            console.print(f"[red]{verdict.fault} ({verdict.system})[/]: {complaint}", markup=True)
    for name, reason in ABSENT.items() if missing else ():
        console.print(f"[dim]{name}: {reason}[/]")


def save(verdicts: Sequence[Verdict], path: Path) -> None:
    """Write the lines as JSON, and keep the saved lines of faults that did not run this time."""
    fresh = {(verdict.fault, verdict.system): verdict.row() for verdict in verdicts}
    kept = {(row["fault"], row["system"]): row for row in json.loads(path.read_text())} if path.exists() else {}
    rows = {**kept, **fresh}
    ordered = sorted(rows, key=lambda line: (int(line[0].partition("-")[0][1:]), line))
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps([rows[line] for line in ordered], indent=1) + "\n")
    part.replace(path)


def took_s(path: Path | None) -> dict[tuple[str, str], float]:
    """Return how long each fault and system took when it was last saved."""
    rows = json.loads(path.read_text()) if path is not None and path.exists() else []
    return {(row["fault"], row["system"]): row["took_s"] for row in rows if row.get("took_s")}


def told(row: dict[str, Any]) -> str:
    """Return the title, what else was measured, and whether other programs used the machine at the same time."""
    title = FAULTS[row["fault"], row["system"]].title
    notes = f"{title}; {row['notes']}" if row["notes"] else title
    others = row.get("others", 0.0)
    return f"{notes}; **disturbed**: others took {others:.0%} of the machine" if others > DISTURBED else notes


def markdown(path: Path) -> str:
    """Return the saved lines as the table of docs/why/guarantees.md."""
    head = ["fault", "system", *_NUMBERS, "what happened"]
    lines = [head, ["---"] * len(head)]
    for row in json.loads(path.read_text()):
        numbers = _numbers(row)
        short = "" if row["passed"] else f". **Fell short**: {len(row['complaints'])} limits missed"
        lines.append([row["fault"], row["system"], *numbers, told(row) + short])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def put_into(docs: Path, path: Path) -> None:
    """Replace the table in the page of guarantees by the saved lines."""
    head, mark, rest = docs.read_text().partition(f"{_TABLE_BEGINS}\n")
    _, end, tail = rest.partition(f"\n{_TABLE_ENDS}")
    docs.write_text(f"{head}{mark}\n{markdown(path)}\n{end}{tail}")


def _numbers(row: dict[str, Any]) -> list[str]:
    """Return the numbers as text; a line that was saved before a number existed lacks it."""
    return ["" if row.get(name) is None else str(row[name]) for name in _NUMBERS]


def _cells(verdict: Verdict) -> list[str]:
    row = verdict.row()
    numbers = _numbers(row)
    return [verdict.fault, verdict.system, *numbers, _PASSED if verdict.passed else _FAILED, told(row)]

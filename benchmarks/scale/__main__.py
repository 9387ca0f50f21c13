"""`python -m benchmarks.scale [--quick] [--only cluster,autoscale]`: the figures of more than one machine, into scale.json."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.measured_figure import missed
from benchmarks.scale.drill import DRILLS, FIGURES, DrillResult, DrillSetting, load_drill
from benchmarks.stack import on_memory
from penstock.errors import PenstockError
from penstock.loadtest.observed.machine import describe_machine, now
from penstock.words import number

_OUT = Path("benchmarks/results/scale.json")


def main(arguments: Sequence[str] | None = None) -> int:
    """0: every measured figure met its target; 1: a figure missed it; 2: a drill failed."""
    options = _parser().parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 200)
    results: dict[str, DrillResult] = {}
    for name in options.only or DRILLS:
        try:
            results[name] = _run(name, options, console)
        except (PenstockError, OSError) as error:
            console.print(f"{name}: not measured: {error}", markup=False)
    figures = {figure: value for result in results.values() for figure, value in result.figures.items()}
    console.print(_table(figures))
    if not options.quick:
        write_results(results, options.out)
        console.print(f"written: {options.out}")
    if len(results) < len(options.only or DRILLS):
        return 2
    return 1 if missed(FIGURES, figures) else 0


def _run(name: str, options: argparse.Namespace, console: Console) -> DrillResult:
    def say(line: str) -> None:
        console.print(f"{name}: {line}", markup=False, highlight=False)

    # On a disk, because fsync costs nothing in a memory file system.
    with tempfile.TemporaryDirectory(prefix=f"penstock-{name}-", dir=options.state_dir) as folder:
        if on_memory(Path(folder)):
            raise PenstockError(f"{folder} lies in memory, where fsync is free: name a disk with --state-dir")
        return load_drill(name)(DrillSetting(Path(folder), options.quick, say))


def _table(figures: Mapping[str, float]) -> Table:
    table = Table("figure", "what", "value", "target", "", title="penstock beyond one machine")
    for figure in FIGURES:
        if figure.name in figures:
            value = figures[figure.name]
            table.add_row(figure.name, figure.text, number(value), figure.target_text(), figure.verdict(value))
    return table


def write_results(results: Mapping[str, DrillResult], out: Path) -> None:
    """What drills that did not run measured before stays."""
    kept: dict[str, Any] = msgspec.json.decode(out.read_bytes()) if out.exists() else {}
    machine = describe_machine()
    for name, result in results.items():
        figures = {figure: round(value, 4) for figure, value in result.figures.items()}
        kept[name] = {"figures": figures, "measured_at": now(), "machine": machine, "detail": result.detail}
    out.write_bytes(msgspec.json.format(msgspec.json.encode(dict(sorted(kept.items()))), indent=2) + b"\n")


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = sorted(set(names) - set(DRILLS))
    if unknown:
        raise argparse.ArgumentTypeError(f"no such drill: {', '.join(unknown)}; there are {', '.join(DRILLS)}")
    return names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rounds; writes no file")
    parser.add_argument("--only", type=_names, help=f"some of {','.join(DRILLS)}")
    parser.add_argument("--out", type=Path, default=_OUT)
    parser.add_argument("--state-dir", type=Path, help="a folder on a real disk (default: the temporary folder)")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""Every figure of the main path in one run: `python -m benchmarks.main_path [--quick] [--only noop,accel]`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.main_path.deep_queue import measure_deep_queue
from benchmarks.main_path.engine_figures import measure_engine
from benchmarks.main_path.gateway_calls import measure_gateway_calls
from benchmarks.main_path.http_figures import measure_accel, measure_everysec, measure_noop, measure_submit
from benchmarks.main_path.lone import measure_lone
from benchmarks.measured_figure import missed
from benchmarks.report import FIGURES, Findings, print_report, write_report
from benchmarks.session import MeasuringSession
from benchmarks.stack import on_memory
from penstock.errors import PenstockError

RUNS: dict[str, Callable[[MeasuringSession], None]] = {
    "noop": measure_noop,
    "everysec": measure_everysec,
    "lone": measure_lone,
    "gateway_calls": measure_gateway_calls,
    "accel": measure_accel,
    "submit": measure_submit,
    "engine": measure_engine,
    "deep_queue": measure_deep_queue,
}
_DEFAULT_OUT = Path("benchmarks/results/bench.json")


def main(arguments: Sequence[str] | None = None) -> int:
    """0: every measured figure met its target; 1: a figure missed it; 2: a run failed."""
    options = _parser().parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 200)
    failed = 0
    # On a disk, because fsync costs nothing in a memory file system.
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=options.state_dir) as folder:
        session = _session(options, Path(folder), console)
        if on_memory(Path(folder)):
            session.findings.doubts.append(f"{folder} lies in memory, where fsync is free: name a disk with --state-dir")
        for name in options.only or RUNS:
            failed += _run(name, session, console)
    print_report(session.findings, console)
    write_report(session.findings, options.out, keep_others=bool(options.only))
    console.print(f"written: {options.out}")
    return 2 if failed else exit_code(session.findings)


def _session(options: argparse.Namespace, folder: Path, console: Console) -> MeasuringSession:
    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False)

    if options.quick:
        return MeasuringSession(folder, seconds=3.0, deep_jobs=100_000, say=say)
    return MeasuringSession(folder, seconds=10.0, deep_jobs=1_000_000, say=say)


def _run(name: str, session: MeasuringSession, console: Console) -> int:
    """1: the run failed, which does not stop the other runs."""
    try:
        RUNS[name](session)
    except (PenstockError, OSError) as error:
        console.print(f"{name}: not measured: {error}", markup=False)
        return 1
    return 0


def exit_code(findings: Findings) -> int:
    return 1 if missed(FIGURES, findings.figures) else 0


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = sorted(set(names) - set(RUNS))
    if unknown:
        raise argparse.ArgumentTypeError(f"no such run: {', '.join(unknown)}; there are {', '.join(RUNS)}")
    return names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.main_path", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="3 s per load, a deep queue of 10^5 (else 10 s, 10^6)")
    parser.add_argument("--only", type=_names, default=[], help=f"some of {','.join(RUNS)}; other figures in the file stay")
    parser.add_argument("--out", type=Path, default=_DEFAULT_OUT)
    parser.add_argument("--state-dir", default=None, help="where the stores keep their files (default: the temp folder)")
    return parser


if __name__ == "__main__":
    sys.exit(main())

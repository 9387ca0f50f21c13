"""Compares other model servers with penstock: `python -m benchmarks.peers setup all`, `run`, `table --docs`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from benchmarks.measured_figure import missed
from benchmarks.peers.catalogue import chosen, peers_named
from benchmarks.peers.comparison import Comparison
from benchmarks.peers.environments import set_up, write_model
from benchmarks.peers.key_figures import KEY_FIGURES
from benchmarks.peers.table import FAULTS, RESULTS, behind, load_faults, load_result, page_text, put_into, short_text, show
from benchmarks.peers.turn import LoadLengths
from benchmarks.peers.workloads import ACCELERATOR, EMBEDDINGS
from penstock.errors import PenstockError

_FOLDER = Path("build/peers")
_PAGE = Path("docs/why/peers.md")
_README = Path("README.md")
# On these workloads penstock must be ahead; the rates of the no-op are only reported.
_JUDGED = (ACCELERATOR, EMBEDDINGS)


def main(arguments: Sequence[str] | None = None) -> int:
    """0: success; 1: penstock is behind a peer, a key figure missed its target, or a peer could not be set up; 2: the command
    failed."""
    options = _parser().parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 200)
    try:
        return int(options.command(options, console))
    except PenstockError as error:
        console.print(str(error), markup=False)
        return 2


def _setup(options: argparse.Namespace, console: Console) -> int:
    ready = [set_up(options.folder, peer, console.print) for peer in peers_named(options.peers)]
    write_model(options.folder)
    return 0 if all(ready) else 1


def _run(options: argparse.Namespace, console: Console) -> int:
    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False)

    peers, workloads = chosen(options.only)
    if any(workload.name == EMBEDDINGS for workload in workloads):
        write_model(options.folder)
    rounds = 1 if options.quick else options.rounds
    lengths = LoadLengths(1.0, 6.0, 2.0, 0.5, 1.0) if options.quick else LoadLengths(busy_s=options.seconds)
    comparison = Comparison(options.folder, peers, workloads, lengths, say)
    comparison.run(rounds)
    result = comparison.result(rounds)
    # What is partial or quick never replaces the record of a whole run.
    out = options.out or (options.folder / "partial.json" if options.only or options.quick else RESULTS)
    _write(out, result)
    show(result, console)
    console.print(f"written: {out}")
    return _judged(result, console)


def _write(out: Path, result: dict[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")


def _judged(result: dict[str, Any], console: Console) -> int:
    late, short = behind(result, _JUDGED), missed(KEY_FIGURES, result)
    if late:
        console.print(f"penstock is behind: {'; '.join(late)}")
    if short:
        console.print(f"below the target: {', '.join(short)}")
    return 1 if late or short else 0


def _table(options: argparse.Namespace, console: Console) -> int:
    result = load_result(options.out)
    if not result:
        raise PenstockError(f"there is no {options.out}: run the comparison first")
    show(result, console)
    if options.docs:
        put_into(_PAGE, page_text(result))
        put_into(_README, short_text(result, load_faults(FAULTS)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    commands = parser.add_subparsers(required=True)
    setup = commands.add_parser("setup", help="make the environments that are missing")
    setup.add_argument("peers", nargs="?", default="all", help="names, separated by commas, or all")
    setup.set_defaults(command=_setup)
    run = commands.add_parser("run", help="measure; all servers with two rounds take about 15 minutes on 2 cores")
    run.add_argument("--only", default="", help="names of servers, of workloads, or of both, separated by commas")
    run.add_argument("--quick", action="store_true", help="one round with 2 s under load")
    run.add_argument("--rounds", type=int, default=2)
    run.add_argument("--seconds", type=float, default=4.0, help="length of each load with 64 requests at once")
    run.set_defaults(command=_run)
    table = commands.add_parser("table", help="print the saved result")
    table.add_argument("--docs", action="store_true", help=f"and write it into {_PAGE} and {_README}")
    table.set_defaults(command=_table)
    for command in (setup, run):
        command.add_argument("--folder", type=Path, default=_FOLDER, help="the folder of the environments")
    beside = "partial.json in the folder of the environments with --only or --quick"
    run.add_argument("--out", type=Path, default=None, help=f"default: {RESULTS}, or {beside}")
    table.add_argument("--out", type=Path, default=RESULTS)
    return parser


if __name__ == "__main__":
    sys.exit(main())

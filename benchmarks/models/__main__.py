"""Real models over HTTP through the whole of penstock, compared with the same models in a loop without penstock.

`python -m benchmarks.models [--quick] [--only TEXT]` takes about 8 minutes; `--markdown` prints the table of the last run.

Each row has a worker of its own, and for each of its slots a process that loads the same model from the same settings on the
same cores (benchmarks.models.loop). They take turns, four times: the loop of all stages, inference alone, then requests over
HTTP with four batches under way. `ratio` is the rate over HTTP divided by the rate of the loop, which runs preprocess,
inference and postprocess in one thread. `parallel_ratio` compares with the same loop with parallel calls, for rows that have
them (several threads of ONNX Runtime). `inference_ratio` compares with inference alone, which no overlap of stages can beat.
Over HTTP the machine also runs the load generator, gateway, store and supervisor; if a row uses every core, they compete with
the model.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.models.figures import JUDGED_MS, TARGET, RowTurn, ramp_s, record, steady
from benchmarks.models.rows import ROWS, Row, chosen, export_commands
from benchmarks.models.stack import ModelLoops, ModelStack, model_stack
from benchmarks.stack import on_memory
from penstock.errors import PenstockError
from penstock.loadtest.observed.machine import describe_machine

_DEFAULT_OUT = Path("benchmarks/results/models.json")
_COLUMNS = {
    "model": "model",
    "runtime": "runtime",
    "batch": "batch",
    "precision": "precision",
    "threads": "threads",
    "slots": "slots",
    "items_per_s": "items/s",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "in_process_items_per_s": "in-process items/s",
    "ratio": "ratio",
    "parallel_ratio": "to a loop of parallel calls",
    "inference_ratio": "to inference alone",
    "model_ms_per_batch": "model ms/batch",
}


@dataclass(frozen=True, slots=True)
class TurnLengths:
    """Seconds per turn, the least number of batches in a turn over HTTP, and the number of turns."""

    loop_s: float = 1.0
    http_s: float = 2.0
    http_batches: int = 5
    turns: int = 4


# A watcher gets the uuids of the row's GPUs.
Watch = Callable[[Sequence[str]], AbstractContextManager[dict[str, float | None]]]


@contextmanager
def _nothing(_devices: Sequence[str]) -> Iterator[dict[str, float | None]]:
    yield {}


QUICK = TurnLengths(loop_s=0.6, http_s=1.2, http_batches=4, turns=1)


@dataclass(slots=True)
class RowResults:
    """Measured rows; and by name, why a row was `skipped` (something is not installed) or `failed`."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def forget(self, name: str) -> None:
        """Removes a row that is measured again."""
        self.rows = [row for row in self.rows if row["name"] != name]
        self.skipped.pop(name, None)
        self.failed.pop(name, None)

    def exit_code(self) -> int:
        return 2 if self.failed else 0 if all(row["met"] for row in self.rows) else 1


class ModelsBench:
    """Measures row by row into `results`. If a row cannot run, its reason is recorded and the next row follows.

    `watch` is entered during a row's load over HTTP, and the figures that it yields become part of the row.
    """

    def __init__(
        self, lengths: TurnLengths, say: Callable[[str], None], *, watch: Watch = _nothing, results: RowResults | None = None
    ) -> None:
        self._lengths = lengths
        self._say = say
        self._watch = watch
        self.results = RowResults() if results is None else results

    def run(self, stack: ModelStack, rows: Sequence[Row], *, may_begin: Callable[[Row], bool] = lambda _row: True) -> None:
        """Ends at the first row for which `may_begin` is false."""
        began = time.monotonic()
        for number, row in enumerate(rows):
            if not may_begin(row):
                return
            spent = time.monotonic() - began
            left = f", about {spent / number * (len(rows) - number):.0f} s left" if number else ""
            self._say(f"{number + 1}/{len(rows)} {row.name} ({spent:.0f} s{left})")
            self.results.forget(row.name)
            self._row(stack, row)

    def _row(self, stack: ModelStack, row: Row) -> None:
        if row.lacking:
            self.results.skipped[row.name] = f"{row.lacking} is not installed"
            self._say(f"    skipped: {row.lacking} is not installed")
            return
        try:
            found = self._measured(stack, row)
        except (PenstockError, OSError) as error:
            self._note_failure(row, str(error))
        except Exception as error:  # noqa: BLE001 - no other row may be lost because of this one
            self._say(traceback.format_exc())
            self._note_failure(row, f"this is a bug: {type(error).__name__}: {error}")
        else:
            self._note(found)

    def _note_failure(self, row: Row, reason: str) -> None:
        self.results.failed[row.name] = reason
        self._say(f"    not measured: {reason}")

    def _measured(self, stack: ModelStack, row: Row) -> dict[str, Any]:
        with stack.row(row) as loops:
            # Warm-up: the gateway has never served this model.
            stack.load(row, ramp_s(0.0))
            return record(row, [self._block(stack, row, loops) for _ in range(self._lengths.turns)])

    def _note(self, found: dict[str, Any]) -> None:
        self.results.rows.append(found)
        doubt = ", doubtful: other processes used the machine" if found["doubtful"] else ""
        self._say(f"    {found['items_per_s']:,.1f} of {found['in_process_items_per_s']:,.1f}/s: {found['ratio']:.2f}{doubt}")

    def _block(self, stack: ModelStack, row: Row, loops: ModelLoops) -> RowTurn:
        before = stack.usage()
        stages = loops.ask("stages", self._lengths.loop_s)
        parallel = loops.ask("parallel", self._lengths.loop_s) if row.in_parallel else None
        inference = loops.ask("inference", self._lengths.loop_s / 2)
        batch_s = row.batch * row.slots / stages.items_per_s
        ramp = ramp_s(batch_s)
        with self._watch(loops.devices) as beside:
            load = stack.load(row, ramp + max(self._lengths.http_s, self._lengths.http_batches * batch_s))
        rate, latencies = steady(load.samples, begin=load.began_at + ramp, end=load.until)
        return RowTurn(
            rate,
            stages.items_per_s,
            inference.items_per_s,
            cpu_s=load.cpu_s,
            loop_cpu_s=stages.cpu_s,
            latencies_s=latencies,
            foreign_share=stack.usage().foreign_share(before),
            beside=beside,
            parallel_per_s=parallel.items_per_s if parallel else None,
        )


def make_models(rows: Sequence[Row]) -> None:
    """Writes the examples' model files that rows need and that are missing, which takes less than a minute, once.

    Raises `PenstockError` if a file cannot be written; standard error says why.
    """
    for command in export_commands(row for row in rows if not row.lacking):
        done = subprocess.run([sys.executable, *command], check=False, stdout=subprocess.DEVNULL)
        if done.returncode:
            raise PenstockError(f"{command[0]} ended with code {done.returncode}: its rows have no model files")


def rich_table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(*_COLUMNS.values(), "", title="models over HTTP and in a loop without penstock")
    for row in rows:
        table.add_row(*(_cell(row[name]) for name in _COLUMNS), _verdict(row))
    return table


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    titles = [*_COLUMNS.values(), ""]
    lines = [titles, ["---"] * len(titles), *([*(_cell(row[name]) for name in _COLUMNS), _verdict(row)] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return str(value)


def _verdict(row: dict[str, Any]) -> str:
    verdict = ("met" if row["met"] else "MISSED") if row["judged"] else ""
    return f"{verdict} doubtful".strip() if row["doubtful"] else verdict


def main(arguments: Sequence[str] | None = None) -> int:
    """0: every judged row met its target; 1: a row missed it; 2: a row could not be measured."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.markdown:
        print(markdown(msgspec.json.decode(options.out.read_bytes())["rows"]), end="")
        return 0
    console = Console(width=None if sys.stdout.isatty() else 200)
    rows = chosen_or_exit(parser, ROWS, options)
    make_models(rows)
    bench = ModelsBench(
        QUICK if options.quick else TurnLengths(), lambda line: console.print(line, markup=False, highlight=False)
    )
    with tempfile.TemporaryDirectory(prefix="penstock-models-", dir=options.state_dir) as folder:
        if on_memory(Path(folder)):
            console.print(f"{folder} lies in memory, where fsync is free: name a disk with --state-dir")
        with model_stack(Path(folder), rows) as stack:
            bench.run(stack, rows)
    return _finish(bench.results, options, console)


def chosen_or_exit(parser: argparse.ArgumentParser, rows: Sequence[Row], options: argparse.Namespace) -> list[Row]:
    """The rows of `--quick` and `--only`; if there are none, the parser's error and exit status."""
    try:
        return chosen(rows, quick=options.quick, only=options.only)
    except PenstockError as mistyped:
        parser.error(str(mistyped))


def _finish(results: RowResults, options: argparse.Namespace, console: Console) -> int:
    console.print(rich_table(results.rows))
    console.print(f"judged: rows whose model takes over {JUDGED_MS:g} ms per batch; target: a ratio of {TARGET:g}")
    content = {**asdict(results), "machine": describe_machine()}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
    console.print(f"written: {options.out}")
    return results.exit_code()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.models", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few rows, one short turn each: about a minute")
    parser.add_argument("--only", default="", help="rows whose name holds this text, such as vision-onnx-b8")
    parser.add_argument("--markdown", action="store_true", help="measure nothing; print the table in --out")
    parser.add_argument("--out", type=Path, default=_DEFAULT_OUT)
    parser.add_argument("--state-dir", default=None, help="where the store keeps its files (default: the temp folder)")
    return parser


if __name__ == "__main__":
    sys.exit(main())

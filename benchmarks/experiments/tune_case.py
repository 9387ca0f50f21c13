"""The case study: the best settings for a detector and a pose network, one after the other, within a goal for both together.

`make tune-case`, or `python -m benchmarks.experiments.tune_case [--quick]`, takes about 11 minutes on 2 cores, and equally long
on a GPU if there is one. The pipeline is that of examples/animated_drawings, whose files are written first. The results go
into benchmarks/results/tune_case.json by device, the reports into docs/reports/; `--docs` searches nothing and writes the table
of the saved results into docs/reference/tune.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.stack import EXAMPLES
from penstock.distribution import install_hint
from penstock.errors import BadRequest
from penstock.extensions.pipelines.tune.report import pipeline_answer, pipeline_rows, write_pipeline_report
from penstock.extensions.pipelines.tune.result import PipelineResult, read_pipeline_result
from penstock.loadtest.report.parts import machine_line
from penstock.tune.report.findings import CASE_COLUMNS, goal_in_words
from penstock.workers.devices.machine import discover

DRAWINGS = EXAMPLES / "animated_drawings"
PIPELINE = "animated-drawings"
RESULTS = EXAMPLES.parent / "benchmarks" / "results" / "tune_case.json"
DOCS = EXAMPLES.parent / "docs" / "reference" / "tune.md"
BEGINS = "<!-- case study: python -m benchmarks.experiments.tune_case --docs -->\n"
ENDS = "<!-- end -->\n"
_REPORTS = EXAMPLES.parent / "docs" / "reports"
_TRIED = EXAMPLES.parent / "build" / "tune_case"
_MOST_CONFIGURATIONS = 5
_PAGE_WIDTH = 120
# Exit codes of `penstock tune` with a winner and without one.
_DONE = (0, 1)


@dataclass(frozen=True, slots=True)
class CaseStudy:
    """The search on one kind of device. `config` is the settings file, `space` the dimensions."""

    slo: str
    config: str
    space: tuple[str, ...]
    report: str


# The third stage draws the picture: a function of Python, for which precision means nothing.
_DRAWN_BY_CODE = ("skeleton.precision=fp32", "skeleton.batch_size=1,4")
CASES = {
    # About four times the time of one item alone on one core, as in the original case study on a GPU.
    "cpu": CaseStudy(
        "p99=1s",
        "penstock.toml",
        (
            "device=cpu",
            "batch_size=1,2,4",
            "slots=1,2",
            "threads=1,2",
            "precision=bf16,fp32",
            "max_wait_s=0,0.01",
            *_DRAWN_BY_CODE,
            "skeleton.threads=1",
        ),
        "tune-case.html",
    ),
    "cuda": CaseStudy(
        "p99=100ms",
        "gpu.toml",
        (
            "device=cuda",
            "precision=fp32,bf16,fp16",
            "batch_size=1,2,4,8,16",
            "slots=1,2",
            "threads=2",
            *_DRAWN_BY_CODE,
            "skeleton.device=cpu",
            "skeleton.threads=1,2",
        ),
        "tune-case-gpu.html",
    ),
}
_QUICK = (
    "batch_size=1,4",
    "slots=1",
    "threads=1",
    "precision=fp32",
    "compile=off",
    "skeleton.batch_size=4",
    "skeleton.device=cpu",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """0: each device has a winner; otherwise 1."""
    options = _parser().parse_args(arguments)
    # A quick try must not replace the result of the case study.
    options.out = options.out or (_TRIED / RESULTS.name if options.quick else RESULTS)
    options.reports = options.reports or (_TRIED if options.quick else _REPORTS)
    if options.docs:
        print(put_into(DOCS, options.out), end="")
        return 0
    console = Console(width=None if sys.stdout.isatty() else 160)
    write_files()
    found = {device: _searched(device, options) for device in options.device or devices_here()}
    for device, result in found.items():
        console.print(rich_table(result))
        console.print(pipeline_answer(result), markup=False, highlight=False)
        write_pipeline_report(result, options.reports / CASES[device].report)
        console.print(f"written: {options.reports / CASES[device].report}")
    save(found, options.out)
    console.print(f"written: {options.out}")
    return 0 if all(result.winner for result in found.values()) else 1


def write_files() -> None:
    """Writes the missing files of both networks, which takes about twenty seconds, once. Raises `BadRequest`."""
    done = subprocess.run([sys.executable, str(DRAWINGS / "export.py")], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BadRequest(f"the model files were not written: {done.stderr[-2_000:]}", hint=install_hint("torch", "test"))


def devices_here() -> list[str]:
    return ["cpu", "cuda"] if discover().gpus.found else ["cpu"]


def command(device: str, *, budget: str, quick: bool, report: Path) -> list[str]:
    """The command line of `penstock tune`."""
    case = CASES[device]
    space = [word for pair in ((f"device={device}", *_QUICK) if quick else case.space) for word in ("--space", pair)]
    files = ["--config", str(DRAWINGS / case.config)]
    asked = ["--input", str(DRAWINGS / "build" / "drawings"), "--slo", case.slo, "--budget", budget, "--report", str(report)]
    return [sys.executable, "-m", "penstock", "tune", PIPELINE, *files, *space, *asked]


def save(found: Mapping[str, PipelineResult], path: Path) -> None:
    """Writes results by device; those of other devices stay in the file."""
    whole = {**(saved(path) if path.exists() else {}), **found}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n")


def saved(path: Path) -> dict[str, PipelineResult]:
    """Raises `BadRequest` for a file that this command did not write."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, PipelineResult])
    except msgspec.DecodeError as fault:
        raise BadRequest(f"{path} holds no results: {fault}", hint="remove it and run make tune-case") from fault


def rich_table(result: PipelineResult) -> Table:
    table = Table(*CASE_COLUMNS, title=f"{result.pipeline}, {goal_in_words(result.goal)}")
    for row in pipeline_rows(result, most=_MOST_CONFIGURATIONS):
        table.add_row(*row)
    return table


def markdown(path: Path) -> str:
    """The saved results as paragraphs and tables for docs/reference/tune.md."""
    if not path.exists():
        return "No results are kept yet: `make tune-case` writes them.\n"
    return "\n".join(_device_section(device, result) for device, result in saved(path).items())


def put_into(docs: Path, path: Path) -> str:
    """Replaces the text between the marks of the page, and returns it."""
    head, mark, rest = docs.read_text("utf-8").partition(BEGINS)
    _, end, tail = rest.partition(ENDS)
    if not mark or not end:
        raise BadRequest(f"{docs} has no place for the results", hint=f"it stands between {BEGINS.strip()} and {ENDS.strip()}")
    text = markdown(path)
    docs.write_text(f"{head}{mark}{text}{end}{tail}", "utf-8")
    return text


def _device_section(device: str, result: PipelineResult) -> str:
    lines = [CASE_COLUMNS, ["---"] * len(CASE_COLUMNS), *pipeline_rows(result, most=_MOST_CONFIGURATIONS)]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    spent = result.spent
    search = (
        f"{spent.configurations} configurations in {spent.total_s / 60:.1f} minutes, {spent.confirmed} of them under real load"
    )
    report = f"[report](../reports/{CASES[device].report})"
    circumstances = f"**{device}**, {machine_line(result.machine)}; {search}; {report}."
    notes = [f"Note: {note}." for note in result.notes]
    return "\n\n".join([*(fill(text, _PAGE_WIDTH) for text in (circumstances, pipeline_answer(result), *notes)), table])


def _searched(device: str, options: argparse.Namespace) -> PipelineResult:
    with tempfile.TemporaryDirectory(prefix="penstock-tune-case-") as folder:
        report = Path(folder) / "result.json"
        done = subprocess.run(command(device, budget=options.budget, quick=options.quick, report=report), check=False)
        if done.returncode not in _DONE or not report.exists():
            raise BadRequest(f"penstock tune ended with {done.returncode} on {device}", hint="its output is above")
        return read_pipeline_result(report.read_bytes())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.experiments.tune_case",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--quick", action="store_true", help="four configurations only, to see that it runs; kept in build/tune_case"
    )
    parser.add_argument("--budget", default="7m", help="the time for each search (default: 7m)")
    parser.add_argument("--device", action="append", choices=tuple(CASES), help="only this device (default: all)")
    parser.add_argument("--out", type=Path, help=f"default: {RESULTS.name} of the benchmarks' results")
    parser.add_argument("--reports", type=Path, help="the folder of the HTML reports; default: docs/reports")
    parser.add_argument(
        "--docs", action="store_true", help="search nothing; write the saved results into docs/reference/tune.md"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())

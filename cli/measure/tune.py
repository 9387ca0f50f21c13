"""`penstock tune`: find a model's settings for the most throughput within a latency goal, or how many slots a rate needs."""

from __future__ import annotations

import difflib
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from penstock.cli import exits
from penstock.cli.display import print_faint
from penstock.cli.measure.progress import show_tune_progress
from penstock.cli.options import ConfigOption, JsonOption
from penstock.cli.serve.fetching import located, opened
from penstock.cli.serve.setup import declared_model
from penstock.errors import BadRequest
from penstock.extension import installed, load_part
from penstock.loadtest.bodies import read_bodies
from penstock.loadtest.options import check_writable
from penstock.settings.tables import Settings
from penstock.tune.options import default_of, goal_of, named_dimensions, seconds_of, subject_of
from penstock.tune.question import TuneQuestion
from penstock.tune.report.page import write_report
from penstock.tune.report.table import print_result
from penstock.tune.result import Choice, Goal, to_json
from penstock.tune.search import search
from penstock.tune.toml_edit import with_settings
from penstock.tune.trial_stack import settings_of
from penstock.workers.devices.machine import discover

app = typer.Typer(add_completion=False)

_GOAL, _SPACE, _OUT = "Goal", "Search", "Output"
_DEFAULT_SLO = "p99=100ms"

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="A name of penstock.toml, or a model's file.")]
SloOption = Annotated[str, typer.Option("--slo", help="The latency to keep: p99=100ms, p95=0.5s.", rich_help_panel=_GOAL)]
MinRateOption = Annotated[
    float | None,
    typer.Option(
        "--min-rate", min=0.01, help="Requests per second that are enough: finds the cheapest settings.", rich_help_panel=_GOAL
    ),
]
RateOption = Annotated[
    float | None,
    typer.Option("--rate", min=0.01, help="Requests per second: finds how many slots they need.", rich_help_panel=_GOAL),
]
ToleranceOption = Annotated[
    float,
    typer.Option(min=0.0, help="How far answers may drift, as a share of their largest value.", rich_help_panel=_GOAL),
]
PriceOption = Annotated[
    float | None, typer.Option("--price-per-hour", min=0.0, help="This machine's price, for the cost.", rich_help_panel=_GOAL)
]
SpaceOption = Annotated[
    list[str] | None,
    typer.Option("--space", help="A dimension and its values: batch_size=1,2,4. Repeatable.", rich_help_panel=_SPACE),
]
SweepOption = Annotated[
    Path | None, typer.Option("--sweep", help="A YAML or TOML file of dimensions and values.", rich_help_panel=_SPACE)
]
BudgetOption = Annotated[str, typer.Option("--budget", help="Time the search may take: 90s, 10m, 1h.", rich_help_panel=_SPACE)]
InputOption = Annotated[
    str | None,
    typer.Option("--input", help="The inputs to send: JSON, @FILE, a folder, FILE.jsonl.", rich_help_panel=_SPACE),
]
ResumeOption = Annotated[
    Path | None,
    typer.Option("--resume", help="Keep measurements in this file, and reuse those in it.", rich_help_panel=_SPACE),
]
TaskOption = Annotated[str | None, typer.Option("--task", help="The built-in task of a model file.", rich_help_panel=_SPACE)]
WriteOption = Annotated[
    Path | None, typer.Option("--write", help="Write the winner into this penstock.toml.", rich_help_panel=_OUT)
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="With --write: show the change and write nothing.", rich_help_panel=_OUT)
]
ReportOption = Annotated[
    Path | None, typer.Option("--report", help="Write a page with plots (.html), or all figures (.json).", rich_help_panel=_OUT)
]


@dataclass(frozen=True, slots=True)
class TuneWords:
    """The command line's options for the search."""

    goal: Goal
    space: Sequence[str]
    sweep: Path | None
    inputs: str | None
    budget_s: float
    resume: Path | None


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a search found. `winners`: each model's declared table and its choice; empty if nothing met the goal.

    `json`: all figures. `show` prints to a console, with `width` columns if it is not a terminal; `write_page` writes a report.
    """

    winners: Mapping[str, tuple[Mapping[str, Any], Choice]]
    json: bytes
    show: Callable[[Console], None]
    write_page: Callable[[Path], None]
    width: int = 140


@app.command()
def tune(
    model: ModelArgument,
    slo: SloOption = _DEFAULT_SLO,
    min_rate: MinRateOption = None,
    rate: RateOption = None,
    space: SpaceOption = None,
    sweep: SweepOption = None,
    budget: BudgetOption = "10m",
    price_per_hour: PriceOption = None,
    tolerance: ToleranceOption = 0.01,
    inputs: InputOption = None,
    resume: ResumeOption = None,
    task: TaskOption = None,
    config: ConfigOption = None,
    write: WriteOption = None,
    dry_run: DryRunOption = False,
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the settings that serve a model, or the models of its stages, best on this machine.

    penstock tune digits --slo p99=50ms --write penstock.toml     penstock tune detector.py --rate 500 --input photos/

    Exits with 1 when no configuration met the goal under real load.
    """
    goal = goal_of(slo, min_rate=min_rate, rate=rate, tolerance=tolerance, price_per_hour=price_per_hour)
    for path in (write, report, resume):
        check_writable(path)
    words = TuneWords(goal, space or [], sweep, inputs, seconds_of(budget), resume)
    settings, name = declared_model(model, config, task)
    tuned = _tuned_model(settings, name, words) if name in settings.models else _tuned_by_extension(settings, name, words)
    _report(tuned, report=report, as_json=as_json)
    if write and tuned.winners:
        _write(write, tuned.winners, dry_run=dry_run)
    raise typer.Exit(exits.OK if tuned.winners else exits.FAILED)


def _tuned_by_extension(settings: Settings, name: str, words: TuneWords) -> Tuned:
    for part in (extension.tune for extension in installed() if extension.tune):
        tuned: Tuned | None = load_part(part)(settings, name, words)
        if tuned is not None:
            return tuned
    raise BadRequest(f"{name} is not a model that can be tuned")


def _tuned_model(settings: Settings, name: str, words: TuneWords) -> Tuned:
    question = replace(model_question(settings, name, words), inputs=tuple(read_bodies(words.inputs)) if words.inputs else ())
    with show_tune_progress(question.budget_s) as on_progress:
        result = search(question, on_progress)
    winners = {name: (subject_of(settings, name).table, result.winner.choice)} if result.winner else {}
    return Tuned(winners, to_json(result), partial(print_result, result), partial(write_report, result))


def model_question(settings: Settings, name: str, words: TuneWords) -> TuneQuestion:
    """The question about one model, without inputs."""
    subject = subject_of(settings, name)
    here = located(subject.spec, settings)
    return TuneQuestion(
        spec=opened(here, settings),
        # The measured processes load the local file; the written settings keep the address.
        table=subject.table if here is subject.spec else {**subject.table, "source": here.source},
        goal=words.goal,
        machine=discover(),
        named=named_dimensions(words.space, words.sweep),
        budget_s=words.budget_s,
        resume=words.resume,
    )


def _report(tuned: Tuned, *, report: Path | None, as_json: bool) -> None:
    if report:
        if report.suffix == ".json":
            report.write_bytes(tuned.json + b"\n")
        else:
            tuned.write_page(report)
        print_faint(f"written: {report}")
    if as_json:
        sys.stdout.write(tuned.json.decode() + "\n")
    else:
        # A file gets a wide terminal's layout.
        tuned.show(Console(width=None if sys.stdout.isatty() else tuned.width))


def _write(path: Path, winners: Mapping[str, tuple[Mapping[str, Any], Choice]], *, dry_run: bool) -> None:
    """Write the winning settings of each model into the file, which may be new, and show the change."""
    before = after = path.read_text(encoding="utf-8") if path.exists() else ""
    for model, (table, choice) in winners.items():
        declared = tomllib.loads(before).get("models", {}).get(model, {})
        chosen = settings_of(choice, table)
        values = {key: value for key, value in chosen.items() if key in declared or value != default_of(key)}
        if not declared:
            values = {"source": table["source"], **values}
        after = with_settings(after, "models", values, name=model)
        if choice.engine.pinning != "cores":
            after = with_settings(after, "worker", {"pinning": choice.engine.pinning})
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), str(path), str(path), lineterm="", n=1)
    for line in lines:
        print_faint(line)
    if dry_run:
        return print_faint(f"dry run, not written: {path}")
    path.write_text(after, encoding="utf-8")
    return print_faint(f"written: {path}")

"""`penstock tune` where the name is a pipeline's: the settings of all its models, within a bound on the whole."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from rich.console import Console
from rich.table import Table

from penstock.cli.measure.progress import show_tune_progress
from penstock.cli.serve.fetching import located, opened
from penstock.errors import BadRequest
from penstock.loadtest.bodies import read_bodies
from penstock.settings.tables import Settings
from penstock.tune.options import named_dimensions, subject_of
from penstock.tune.pipelines.report import pipeline_rows, text_lines, write_pipeline_report
from penstock.tune.pipelines.result import PipelineQuestion, PipelineResult, declared_pipeline, pipeline_json
from penstock.tune.pipelines.search import search_pipeline
from penstock.tune.question import TuneQuestion
from penstock.tune.report.findings import CASE_COLUMNS, goal_in_words
from penstock.tune.result import Goal
from penstock.workers.devices.machine import discover


@dataclass(frozen=True, slots=True)
class PipelineWords:
    """What the command line says of the search. `space` may name a dimension of one model: `pose.batch_size=1,2`."""

    goal: Goal
    space: Sequence[str]
    sweep: Path | None
    inputs: str | None
    budget_s: float
    resume: Path | None


def tuned_pipeline(settings: Settings, name: str, words: PipelineWords) -> PipelineResult:
    """Raises `BadRequest` for what cannot be asked of a pipeline."""
    question = pipeline_question(settings, name, words)
    # structlog would log to stdout, which belongs to the report.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    with show_tune_progress(question.budget_s) as on_progress:
        return search_pipeline(question, on_progress)


def pipeline_question(settings: Settings, name: str, words: PipelineWords) -> PipelineQuestion:
    if words.goal.rate is not None:
        raise BadRequest("--rate is for one model", hint="a pipeline is tuned for the most requests per second, or --min-rate")
    if not words.inputs:
        raise BadRequest(
            f"{name} is a pipeline: what its stages take is made from real inputs", hint="name some: --input FOLDER"
        )
    spec, table = declared_pipeline(settings, name)
    names = list(dict.fromkeys(stage.model for stage in spec.stages))
    for model in names:
        if model not in settings.models:
            raise BadRequest(
                f"{name}: the stage of {model!r} is no model of these settings", hint="only models that are declared are tuned"
            )
    machine = discover()
    return PipelineQuestion(
        name,
        spec,
        table,
        {model: _model_question(settings, model, names, words, machine) for model in names},
        words.goal,
        tuple(read_bodies(words.inputs)),
        words.budget_s,
    )


def _model_question(settings: Settings, model: str, names: Sequence[str], words: PipelineWords, machine: Any) -> TuneQuestion:
    subject = subject_of(settings, model)
    here = located(subject.spec, settings)
    return TuneQuestion(
        spec=opened(here, settings),
        table=subject.table if here is subject.spec else {**subject.table, "source": here.source},
        goal=words.goal,
        machine=machine,
        named=named_dimensions(space_of(model, names, words.space), words.sweep),
        budget_s=words.budget_s,
        resume=words.resume,
    )


def space_of(model: str, names: Sequence[str], pairs: Sequence[str]) -> list[str]:
    """The dimensions of one model: those that name no model, and then its own, which take their place."""
    own: dict[str, str] = {}
    for pair in sorted(pairs, key=lambda pair: _model_of(pair, names) != ""):
        owner = _model_of(pair, names)
        if owner in ("", model):
            dimension = pair.removeprefix(f"{owner}.") if owner else pair
            own[dimension.partition("=")[0]] = dimension
    return list(own.values())


def _model_of(pair: str, names: Sequence[str]) -> str:
    return next((name for name in names if pair.startswith(f"{name}.")), "")


def print_pipeline(result: PipelineResult, console: Console) -> None:
    table = Table(*CASE_COLUMNS, title=f"{result.pipeline}, {goal_in_words(result.goal)}", title_justify="left")
    for row in pipeline_rows(result):
        table.add_row(*row)
    console.print(table)
    for line in text_lines(result):
        console.print(line, markup=False, highlight=False)


def write_pipeline_file(result: PipelineResult, path: Path) -> None:
    """The report: all figures as .json, or a page."""
    if path.suffix == ".json":
        path.write_bytes(pipeline_json(result) + b"\n")
    else:
        write_pipeline_report(result, path)


def tables_of(settings: Settings, result: PipelineResult) -> Mapping[str, Mapping[str, Any]]:
    """The declared settings of each model of the winner."""
    return {model: subject_of(settings, model).table for model in (result.winner.choice.choices if result.winner else ())}

"""`penstock tune` where the name is a pipeline's: the settings of all its models, within a bound on the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from rich.console import Console
from rich.table import Table

from penstock.cli.measure.progress import show_tune_progress
from penstock.cli.measure.tune import Tuned, TuneWords, model_question
from penstock.errors import BadRequest
from penstock.extensions.pipelines.settings import PipelineTables
from penstock.extensions.pipelines.tune.report import pipeline_rows, text_lines, write_pipeline_report
from penstock.extensions.pipelines.tune.result import PipelineQuestion, PipelineResult, declared_pipeline, pipeline_json
from penstock.extensions.pipelines.tune.search import search_pipeline
from penstock.loadtest.bodies import read_bodies
from penstock.settings.tables import Settings
from penstock.tune.options import subject_of
from penstock.tune.question import TuneQuestion
from penstock.tune.report.findings import CASE_COLUMNS, goal_in_words


def tuned_pipeline(settings: Settings, name: str, words: TuneWords) -> Tuned | None:
    """None for a name that is not a pipeline's. Raises `BadRequest` for options that a pipeline does not have."""
    if name not in settings.extension(PipelineTables).root:
        return None
    question = pipeline_question(settings, name, words)
    with show_tune_progress(question.budget_s) as on_progress:
        result = search_pipeline(question, on_progress)
    choices = result.winner.choice.choices if result.winner else {}
    winners = {model: (subject_of(settings, model).table, choice) for model, choice in choices.items()}
    page = partial(write_pipeline_report, result)
    return Tuned(winners, pipeline_json(result), partial(print_pipeline, result), page, width=160)


def pipeline_question(settings: Settings, name: str, words: TuneWords) -> PipelineQuestion:
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
    return PipelineQuestion(
        name,
        spec,
        table,
        {model: _asked(settings, model, words, names) for model in names},
        words.goal,
        tuple(read_bodies(words.inputs)),
        words.budget_s,
    )


def _asked(settings: Settings, model: str, words: TuneWords, names: Sequence[str]) -> TuneQuestion:
    return model_question(settings, model, replace(words, space=space_of(model, names, words.space)))


def space_of(model: str, names: Sequence[str], pairs: Sequence[str]) -> list[str]:
    """The dimensions of one model: those that name no model, and then its own, which take their place.

    `pose.batch_size=1,2` is one of the model `pose`.
    """
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

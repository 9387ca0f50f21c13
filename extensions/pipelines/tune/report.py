"""The findings of a search for a pipeline: the table, the answer in words, and the page. Pure but for the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from penstock.errors import BadRequest
from penstock.extensions.pipelines.tune.result import PipelineConfiguration, PipelineResult
from penstock.loadtest.report.parts import ReportPage, TextTable, machine_line, render_page
from penstock.tune.report.findings import CASE_COLUMNS, difference, goal_in_words, keeps, served, space_in_words
from penstock.tune.report.page import engine_row
from penstock.tune.result import Choice, ConfigurationVerdict, Figures
from penstock.words import milliseconds, number, per_second, percent

_METHOD = (
    "The models of the stages run one after the other as they are declared, on the given inputs; what one answers is the input "
    "of the next. Every engine of each model runs batches back to back in processes of its own. Whole configurations are then "
    "simulated: Poisson arrivals at the first stage, and at each later stage what the stages before it have answered; models "
    "that share cores slow each other down. The best get real open-loop load on a whole stack, and the winner is run again."
)
_MOST = 6
_MOST_ENGINES = 40


def pipeline_rows(result: PipelineResult, *, most: int = _MOST) -> list[tuple[str, ...]]:
    """Rows of `CASE_COLUMNS`, one per model; the figures are the whole pipeline's and stand in the first row of each
    configuration: winner, as declared, then the best of the others.
    """
    return [row for one in _shown(result, most) for row in _rows(result, one)]


def pipeline_answer(result: PipelineResult) -> str:
    """What to serve, what it gives, and what the settings of today give; or that no configuration keeps the goal."""
    winner = result.winner
    figures = winner.confirmed if winner else None
    if winner is None or figures is None:
        return f"No configuration was shown to keep {goal_in_words(result.goal)} under real load.{_nearest(result)}"
    parts = ". ".join(f"{model}: {_lower(served(choice))}" for model, choice in winner.choice.choices.items())
    tail = f"p{result.goal.percentile:g} of {milliseconds(figures.tail_ms)}"
    limit = milliseconds(result.goal.limit_s * 1e3)
    gives = f"{per_second(figures.throughput_rps)} of {per_second(figures.offered_rps)} offered, at a {tail} (within {limit})"
    return f"{parts}. Together: {gives}.{_against_today(result, figures)}"


def text_lines(result: PipelineResult) -> Iterator[str]:
    """What the command says below its table."""
    spent = result.spent
    yield (
        f"{spent.configurations} configurations, real load on {spent.confirmed}; "
        f"{number(spent.total_s)} s of {number(spent.budget_s)} s"
    )
    yield pipeline_answer(result)
    if result.winner and result.winner.rerun:
        yield f"Run again: {_in_words(result.winner.rerun)}"
    yield from (f"note: {note}" for note in result.notes)


def write_pipeline_report(result: PipelineResult, path: Path) -> None:
    """Raises `BadRequest` if the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render_pipeline(result), "utf-8")
    except OSError as fault:
        raise BadRequest(f"{path} cannot be written: {fault.strerror}", hint="name a file in a folder of yours") from fault


def render_pipeline(result: PipelineResult) -> str:
    """The whole page."""
    page = ReportPage(
        title=f"penstock tune: {result.pipeline}",
        heading=f"{result.pipeline}: {goal_in_words(result.goal)}",
        subtitle=f"penstock tune, a pipeline of {', '.join(result.stages.values())}",
        machine=machine_line(result.machine),
        tiles=_tiles(result),
        figures=[],
        tables=list(_tables(result)),
        answers=[pipeline_answer(result)],
        notes=result.notes,
    )
    return render_page(page, "tune.html", package="penstock.tune.report")


def _shown(result: PipelineResult, most: int) -> list[PipelineConfiguration]:
    known = [one for one in result.configurations if _figures(one) is not None]
    first = [one for one in known if one.verdict is ConfigurationVerdict.WINNER or one.is_declared]
    return [*first, *(one for one in known if one not in first)][:most]


def _figures(one: PipelineConfiguration) -> Figures | None:
    return one.confirmed or one.predicted


def _rows(result: PipelineResult, one: PipelineConfiguration) -> Iterator[tuple[str, ...]]:
    figures = _figures(one)
    assert figures is not None
    whole = (
        number(figures.offered_rps),
        number(figures.throughput_rps),
        number(figures.p50_ms),
        number(figures.p99_ms),
        "yes" if keeps(figures, result.goal) else "no",
        _origin(one),
    )
    for index, (model, choice) in enumerate(one.choice.choices.items()):
        yield (model, *_settings(choice), *(whole if index == 0 else [""] * len(whole)))


def _settings(choice: Choice) -> tuple[str, ...]:
    engine = choice.engine
    precision = engine.precision if engine.compile == "off" else f"{engine.precision}, compiled"
    threads = "auto" if engine.threads is None else str(engine.threads)
    return engine.device, engine.runtime, precision, str(choice.batch_size), str(choice.slots), threads


def _origin(one: PipelineConfiguration) -> str:
    name = "winner, " if one.verdict is ConfigurationVerdict.WINNER else "as declared, " if one.is_declared else ""
    return name + ("measured" if one.confirmed else "simulated")


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]


def _in_words(figures: Figures) -> str:
    return f"{per_second(figures.throughput_rps)}, p50 {milliseconds(figures.p50_ms)}, p99 {milliseconds(figures.p99_ms)}"


def _against_today(result: PipelineResult, best: Figures) -> str:
    today = next((one.confirmed for one in result.configurations if one.is_declared), None)
    if today is None:
        return ""
    return f" As declared: {per_second(today.throughput_rps)}, {difference(best.throughput_rps, today.throughput_rps)}."


def _nearest(result: PipelineResult) -> str:
    known = [(figures, one) for one in result.configurations if (figures := _figures(one))]
    if not known:
        return " None of them got as far as a simulation: the notes say why."
    figures, one = max(known, key=lambda pair: pair[0].throughput_rps)
    return f" Nearest came {one.choice.label}: {_in_words(figures)}."


def _tiles(result: PipelineResult) -> dict[str, str]:
    winner = result.winner
    if winner is None or winner.confirmed is None:
        return {}
    figures = winner.confirmed
    return {
        "requests per second": per_second(figures.throughput_rps),
        "p50": milliseconds(figures.p50_ms),
        "p99": milliseconds(figures.p99_ms),
        f"of the p{result.goal.percentile:g} allowed": percent(figures.tail_ms / (result.goal.limit_s * 1e3)),
        "under real load": f"{result.spent.confirmed} of {result.spent.configurations}",
    }


def _tables(result: PipelineResult) -> Iterator[TextTable]:
    yield TextTable("The best configurations", CASE_COLUMNS, pipeline_rows(result))
    compared = [row for one in result.configurations for row in _compared(one)]
    head = ("configuration", "offered/s", "p50 simulated", "p50 measured", "p99 simulated", "p99 measured")
    yield TextTable("Predicted against measured", head, compared, look="cards")
    lost = [(one.choice.label, one.why) for one in result.configurations if one.verdict is not ConfigurationVerdict.WINNER]
    yield TextTable("Why the others lost", ("configuration", "why"), lost[:_MOST_ENGINES], look="reasons")
    engines = [(f"{model}: {row[0]}", *row[1:]) for model, all_ in result.measured.items() for row in map(engine_row, all_)]
    columns = ("engine", "slots", "a batch of 1", "the largest", "memory", "load", "drift", "items per call")
    yield TextTable("What was measured of each engine", columns, engines[:_MOST_ENGINES], look="cards")
    searched = [
        (f"{model}: {name}", text) for model, space in result.space.items() for name, text in space_in_words(space).items()
    ]
    yield TextTable("What was searched", ("", ""), searched, look="words")
    steps = ", ".join(f"{name} {number(seconds)} s" for name, seconds in result.spent.steps_s.items())
    yield TextTable(
        "How", ("", ""), [("method", _METHOD), ("inputs", result.sample), ("time of the search", steps)], look="words"
    )


def _compared(one: PipelineConfiguration) -> Iterator[tuple[str, ...]]:
    for name, seen in (("", one.confirmed), (", run again", one.rerun)):
        if seen is not None and one.predicted is not None:
            cells = (one.predicted.p50_ms, seen.p50_ms, one.predicted.p99_ms, seen.p99_ms)
            yield (one.choice.label + name, number(seen.offered_rps), *map(number, cells))

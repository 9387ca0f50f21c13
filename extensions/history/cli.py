"""`penstock history`: what happened to a model lately, one line per step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from penstock.cli.display import print_faint, print_json, print_table
from penstock.cli.options import JsonOption, KeyOption, UrlOption, connect, model_names
from penstock.errors import BadRequest
from penstock.gateway.asgi.negotiation import parse_duration, parse_moment
from penstock.words import UNKNOWN, count, duration, number, percent, plural

app = typer.Typer(add_completion=False)
Text = Callable[[Any], str]
Values = Sequence[float | None]
_COLUMNS = (
    *("IN/S", "DONE/S", "FAILED/S", "TOTAL P50", "P95", "P99", "QUEUE P50", "P95", "P99"),
    *("WAITING", "OLDEST", "BATCH", "BUSY"),
)


@app.command()
def history(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Default: all models together.", autocompletion=model_names)
    ] = None,
    last: Annotated[
        str,
        typer.Option("--last", metavar="TIME", help="How far to look back, such as 5m or 7d. Default: 1h."),
    ] = "",
    since: Annotated[str, typer.Option("--from", metavar="MOMENT", help="The start, such as 2026-12-24T18:00:00Z.")] = "",
    until: Annotated[str, typer.Option("--to", metavar="MOMENT", help="The end. Default: now.")] = "",
    show_all: Annotated[bool, typer.Option("--all", help="Show the steps in which nothing happened, too.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Show what happened lately to a model: jobs in and out per second, times, what waited, batches, busy slots."""
    range_s = _range(last)
    begin, end = _moment(since, "--from"), _moment(until, "--to")
    with connect(url, api_key) as client:
        answer = client.history(model, range_s=range_s, since=begin, until=end)
    if as_json:
        return print_json(answer)
    rows = rows_of(answer)
    shown = rows if show_all else [row for row in rows if not is_idle(row)]
    columns = (*_COLUMNS, "GPU") if has_devices(answer) else _COLUMNS
    print_table((f"BEGIN (UTC), {duration(answer['step_s'])} EACH", *columns), shown)
    for line in remarks(answer, idle=len(rows) - len(shown)):
        print_faint(line)
    return None


def _range(text: str) -> int | None:
    seconds = parse_duration(text) if text else None
    if text and seconds is None:
        raise typer.BadParameter(f"--last takes a time such as 5m, 6h or 7d, not {text[:80]!r}")
    return None if seconds is None else int(seconds)


def _moment(text: str, name: str) -> float | None:
    try:
        return parse_moment(text, name=name) if text else None
    except BadRequest as error:
        raise typer.BadParameter(error.message) from None


def rows_of(answer: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """One row per step. `answer` is what `GET /v1/history` answers."""
    columns: list[tuple[Values, Text]] = [(answer[f"{name}_per_s"], number) for name in ("accepted", "succeeded", "failed")]
    columns += [(answer[name][share], duration) for name in ("total_s", "queue_s") for share in ("p50", "p95", "p99")]
    columns += [(answer["waiting"], _count), (answer["oldest_s"], duration)]
    columns += [(answer["batch_size"], number), (answer["busy_share"], percent)]
    columns += [(answer["device_busy_share"], percent)] if has_devices(answer) else []
    form = "%H:%M:%S" if answer["step_s"] < 60 else "%Y-%m-%d %H:%M"
    begins = [datetime.fromtimestamp(at, UTC).strftime(form) for at in answer["at"]]
    return [(begin, *(text(values[index]) for values, text in columns)) for index, begin in enumerate(begins)]


def has_devices(answer: Mapping[str, Any]) -> bool:
    return any(share is not None for share in answer["device_busy_share"])


def is_idle(row: Sequence[str]) -> bool:
    """Whether nothing came, ended, waited or ran."""
    return all(cell in (UNKNOWN, "0", "0 s", "0 %") for cell in row[1:])


def remarks(answer: Mapping[str, Any], *, idle: int) -> list[str]:
    error = f"percentiles are within {percent(answer['percentile_error'])}; waiting and oldest are the highest of each step"
    left_out = [f"{plural(idle, 'step')} in which nothing happened left out; --all shows them"] if idle else []
    away = [f"without {', '.join(answer['away'])}: the store does not answer"] if answer.get("away") else []
    return [error, *left_out, *away]


def _count(value: float | None) -> str:
    return UNKNOWN if value is None else count(value)

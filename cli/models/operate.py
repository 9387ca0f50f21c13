"""`penstock models pause|resume|limits`: operations on a model that serves."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli.display import print_json, print_table
from penstock.cli.options import JsonOption, KeyOption, UrlOption, connect, model_names

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="The model's name.", autocompletion=model_names)]


def pause(model: ModelArgument, as_json: JsonOption = False, url: UrlOption = None, api_key: KeyOption = None) -> None:
    """Have a model's jobs wait: they are accepted, and workers claim none until you resume it. Restarts change nothing."""
    with connect(url, api_key) as client:
        view = client.operators.pause(model)
    print_json(view) if as_json else typer.echo(f"{model} is paused: its jobs wait until `penstock models resume {model}`")


def resume(model: ModelArgument, as_json: JsonOption = False, url: UrlOption = None, api_key: KeyOption = None) -> None:
    """Run the jobs of a paused model again."""
    with connect(url, api_key) as client:
        view = client.operators.resume(model)
    print_json(view) if as_json else typer.echo(f"{model} is not paused: its jobs run")


def limits(
    model: ModelArgument,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=NUMBER", help="A limit; NAME= is what settings say. Repeatable.")
    ] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Show a model's limits, or change some for the jobs that come from now on: --set max_queue_depth=500."""
    with connect(url, api_key) as client:
        wanted = dict(map(_limit, changes or []))
        view = client.operators.limit(model, **wanted) if wanted else client.model(model)
    values: dict[str, Any] = view["limits"]
    print_json(values) if as_json else print_table(("LIMIT", "NOW"), [(name, f"{limit:g}") for name, limit in values.items()])


def _limit(text: str) -> tuple[str, float | None]:
    name, sign, number = text.partition("=")
    if not sign:
        raise typer.BadParameter(f"{text!r} is not NAME=NUMBER")
    try:
        return name, int(number) if number.isdecimal() else float(number) if number else None
    except ValueError:
        raise typer.BadParameter(f"{number!r} is not a number") from None

"""`penstock models split` divides the calls that name no version between versions, shows how that goes, and ends it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli.display import print_json, print_table
from penstock.cli.options import JsonOption, KeyOption, UrlOption, connect, model_names
from penstock.words import duration

app = typer.Typer(add_completion=False)
_SHADOW_WORDS = "equal", "close", "different", "status", "lost", "refused", "dropped"


@app.command()
def split(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model's name.", autocompletion=model_names)],
    weights: Annotated[
        list[str] | None,
        typer.Argument(metavar="VERSION=PERCENT", help="100 together; none: all that no canary gets to the default version."),
    ] = None,
    sticky: Annotated[str, typer.Option(metavar="HEADER", help="The same value of this header gets the same version.")] = "",
    shadow: Annotated[
        str, typer.Option(metavar="VERSION=PERCENT", help="Copy this share to a version; compare, never answer with it.")
    ] = "",
    canary: Annotated[str, typer.Option(metavar="VERSION", help="Give this version more, step by step, if it does well.")] = "",
    steps: Annotated[str, typer.Option(metavar="PERCENT,...", help="The canary's shares; default 1,5,25,100.")] = "",
    step_s: Annotated[float | None, typer.Option("--step-time", help="Seconds per step, at least; default 300.")] = None,
    max_errors: Annotated[
        float | None, typer.Option(help="Error rate beyond that of the others that is allowed; default 0.01.")
    ] = None,
    max_p99: Annotated[float | None, typer.Option(help="p99 as a multiple of that of the others; default 1.2.")] = None,
    min_samples: Annotated[int | None, typer.Option(help="Ended jobs that each step needs; default 200.")] = None,
    end: Annotated[bool, typer.Option("--end", help="End the split: the default version gets all calls again.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Divide the calls that name no version: by weight, to a canary, with a shadow. Without a division: show how it goes.

    penstock models split square 1=90 2=10 --sticky x-user; penstock models split square --canary 2 --steps 1,10,100
    """
    plan = _plan(canary, steps, step_s=step_s, max_errors=max_errors, max_p99=max_p99, min_samples=min_samples)
    copies = dict(zip(("version", "share"), _pair(shadow, "--shadow 3=5"), strict=True)) if shadow else {}
    parts = dict(_pair(text, "1=90") for text in weights or [])
    asked = bool(parts or sticky or copies or plan)
    if end and asked:
        raise typer.BadParameter("--end ends the split; it takes no division")
    with connect(url, api_key) as client:
        if end:
            client.end_split(model)
            typer.echo(f"the default version of {model} gets all calls that name none")
            return
        view = client.split_model(model, parts, sticky=sticky, shadow=copies, canary=plan) if asked else client.split(model)
    if as_json:
        print_json(view)
    else:
        _show(view)


def _plan(version: str, steps: str, **limits: float | None) -> dict[str, Any]:
    said: dict[str, Any] = {name: value for name, value in limits.items() if value is not None}
    if steps:
        said["steps"] = [_number(step, "--steps 1,5,25,100") for step in steps.split(",")]
    if said and not version:
        raise typer.BadParameter("these options are those of a canary: name its version with --canary")
    return {"version": version, **said} if version else {}


def _pair(text: str, example: str) -> tuple[str, float]:
    version, equals, share = text.partition("=")
    if not version or not equals:
        raise typer.BadParameter(f"{text!r} is not VERSION=PERCENT, for example {example}")
    return version, _number(share, example)


def _number(text: str, example: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number of percent, for example {example}") from None


def _show(view: dict[str, Any]) -> None:
    rows = [(name, *_row(figures)) for name, figures in view["versions"].items()]
    print_table(("VERSION", "SHARE", "JOBS ENDED", "ERRORS", "P50", "P99"), rows)
    if sticky := view.get("sticky"):
        typer.echo(f"\nsticky: the same value of the header {sticky} gets the same version")
    if canary := view.get("canary"):
        _show_canary(canary)
    if shadow := view.get("shadow"):
        compared = ", ".join(f"{shadow['compared'][word]} {word}" for word in _SHADOW_WORDS)
        typer.echo(f"\nshadow: version {shadow['version']} gets copies of {shadow['share']:g} %: {compared}")


def _show_canary(canary: dict[str, Any]) -> None:
    state, step, steps = canary["state"].replace("_", " "), canary["step"] + 1, len(canary["steps"])
    why = f": {canary['why']}" if canary["why"] else ""
    typer.echo(f"\ncanary: version {canary['version']} is {state}, step {step} of {steps}{why}")
    if canary["decisions"]:
        rows = [(made["at"], f"{made['from']:g} %", f"{made['to']:g} %", made["why"]) for made in canary["decisions"]]
        print_table(("WHEN", "FROM", "TO", "WHY"), rows)


def _row(figures: dict[str, Any]) -> tuple[str, ...]:
    p50_s, p99_s = figures["p50_s"], figures["p99_s"]
    return (
        f"{figures['share']:g} %",
        str(figures["jobs"]),
        str(figures["errors"]),
        "-" if p50_s is None else duration(p50_s),
        "-" if p99_s is None else duration(p99_s),
    )

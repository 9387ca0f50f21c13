"""`penstock models` lists models, `show` one of them; `load|switch|unload|reset` change one while it runs; `fetch` brings one
here, and `cache` lists those.
"""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer

from penstock.cli import exits
from penstock.cli.display import print_faint, print_json, print_table
from penstock.cli.models.fetch import cache, fetch
from penstock.cli.options import JsonOption, KeyOption, UrlOption, connect
from penstock.cli.place import completed
from penstock.client.sync import Client
from penstock.words import duration

app = typer.Typer(add_completion=False, invoke_without_command=True)
app.command()(fetch)
app.command()(cache)

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="The model's name.")]
VersionArgument = Annotated[str, typer.Argument(metavar="VERSION", help="The version's name.")]
WaitOption = Annotated[
    float, typer.Option("--wait", min=0, help="Seconds to wait until the workers have loaded it; 0 returns at once.")
]
_LOOK_EVERY_S = 0.3


@app.callback()
def models(ctx: typer.Context, as_json: JsonOption = False, url: UrlOption = None, api_key: KeyOption = None) -> None:
    """List the models a gateway serves (`--json` prints one per line); with a command, change one while it runs."""
    if ctx.invoked_subcommand is not None:
        return
    with connect(url, api_key) as client:
        found = client.models()
    if as_json:
        for model in found:
            print_json(model)
    else:
        print_table(("MODEL", "VERSIONS", "READY SLOTS", "BATCH UP TO", "WAIT UP TO"), [_row(model) for model in found])


@app.command()
def show(model: ModelArgument, as_json: JsonOption = False, url: UrlOption = None, api_key: KeyOption = None) -> None:
    """One model: its versions, how batches are made, and what the workers have learned of calls of the model."""
    with connect(url, api_key) as client:
        view = client.model(model)
    if as_json:
        print_json(view)
        return
    print_table(("MODEL", "VERSIONS", "READY SLOTS", "BATCH UP TO", "WAIT UP TO"), [_row(view)])
    for version, found in (view.get("versions") or {}).items():
        if description := found.get("description"):
            typer.echo(f"\nversion {version}: {description}")
        if source := found.get("source"):
            typer.echo(f"\nversion {version}: fetched from {source}")
        if calls := found.get("calls"):
            _print_calls(version, calls)


def _print_calls(version: str, calls: dict[str, Any]) -> None:
    measure = str(calls["measure"])
    typer.echo(f"\nversion {version}: calls of {calls['items_per_call']:g} items on average, chosen by {measure}")
    print_table((measure.upper(), "A CALL TAKES"), [(size, duration(seconds)) for size, seconds in calls["run_s"].items()])


@app.command()
def load(
    model: ModelArgument,
    source: Annotated[str, typer.Argument(help="The model's file below the workers' model_dir, e.g. square/2.py[:Name].")],
    version: Annotated[str, typer.Option("--version", help="The new version's name, never to be used for other code.")],
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A key of the version's settings. Repeatable.")
    ] = None,
    wait_s: WaitOption = 120.0,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Load a version beside those that serve. It gets no calls without a version until you switch.

    penstock models load square square/2.py --version 2, then penstock models switch square 2, then unload square 1.
    """
    with connect(url, api_key) as client:
        view = client.load_version(model, version, source, settings=dict(map(_setting, setting or [])))
        view = _await_ready(client, view, version, until=time.monotonic() + wait_s)
    _report(view, f"version {version} of {model} is ready" if _ready(view, version) else f"{version} is loading", as_json)


@app.command()
def switch(
    model: ModelArgument,
    version: VersionArgument,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Make a version the default for calls that name none. Jobs accepted before keep their version."""
    with connect(url, api_key) as client:
        view = client.switch_version(model, version)
    _report(view, f"the default version of {model} is now {version}", as_json)


@app.command()
def unload(
    model: ModelArgument,
    version: VersionArgument,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Stop accepting jobs for a version; its workers finish the waiting jobs, then unload it."""
    with connect(url, api_key) as client:
        view = client.unload_version(model, version)
    _report(
        view,
        f"{model} accepts no more jobs for version {version}; its workers finish the waiting jobs, then unload it",
        as_json,
    )


@app.command()
def reset(model: ModelArgument, as_json: JsonOption = False, url: UrlOption = None, api_key: KeyOption = None) -> None:
    """Undo every change: the model is served as in the settings; waiting jobs of other versions still run."""
    with connect(url, api_key) as client:
        view = client.reset_model(model)
    _report(view, f"{model} is served as in the settings", as_json)


def _setting(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise typer.BadParameter(f"{text!r} is not KEY=VALUE, for example --set max_batch_size=16")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _await_ready(client: Client, view: dict[str, Any], version: str, *, until: float) -> dict[str, Any]:
    """The model's view once the version is ready, or at `until` (monotonic). Exits if the version cannot be loaded."""
    while not _ready(view, version) and time.monotonic() < until:
        why = str(((view.get("versions") or {}).get(version) or {}).get("why") or "")
        if why.startswith("could not be loaded"):
            print_faint(f"version {version} {why}")
            print_faint(completed(f"`penstock models unload {view.get('name')} {version}` removes it"))
            raise typer.Exit(exits.FAILED)
        time.sleep(_LOOK_EVERY_S)
        view = client.model(str(view["name"]))
    return view


def _ready(view: dict[str, Any], version: str) -> bool:
    return bool(((view.get("versions") or {}).get(version) or {}).get("ready_slots"))


def _report(view: dict[str, Any], sentence: str, as_json: bool) -> None:
    if as_json:
        print_json(view)
    else:
        typer.echo(sentence)


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    """One line of the table; a star marks the default version."""
    default = model.get("default_version")
    versions = [f"{name}*" if name == default else str(name) for name in model.get("versions") or {}]
    policy = model.get("policy") or {}
    wait_s = policy.get("max_wait_s")
    return (
        str(model.get("name", "?")),
        ", ".join(versions) or "-",
        str(model.get("ready_slots", "-")),
        str(policy.get("max_batch_size", "-")),
        duration(wait_s) if isinstance(wait_s, int | float) else "-",
    )

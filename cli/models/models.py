"""`penstock models` lists models, `show` one of them; `load|switch|scale|unload|reset` change one while it runs, as do
`pause|resume|limits`; `fetch` downloads one.
"""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer

from penstock.cli import exits
from penstock.cli.completion import completed
from penstock.cli.display import print_faint, print_ids, print_json, print_table
from penstock.cli.models.fetch import fetch
from penstock.cli.models.operate import limits, pause, resume
from penstock.cli.options import JsonOption, KeyOption, QuietOption, UrlOption, connect, model_names
from penstock.client.sync import Client
from penstock.errors import NotFound
from penstock.words import duration

app = typer.Typer(add_completion=False, invoke_without_command=True)
app.command()(fetch)
app.command()(pause)
app.command()(resume)
app.command()(limits)

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="The model's name.", autocompletion=model_names)]
VersionArgument = Annotated[str, typer.Argument(metavar="VERSION", help="The version's name.")]
WaitOption = Annotated[float, typer.Option("--wait", min=0, help="Seconds to wait until it is done; 0 returns at once.")]
_LOOK_EVERY_S = 0.3
# An unloaded version needs no slots before its next job.
_REACHED = ("reached", "unloaded")


@app.callback()
def models(
    ctx: typer.Context,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """List the models a gateway serves (`--json` prints one per line); with a command, change one while it runs."""
    if ctx.invoked_subcommand is not None:
        return
    with connect(url, api_key) as client:
        listed = client.models()
    if quiet:
        print_ids(str(model["name"]) for model in listed)
    elif as_json:
        for model in listed:
            print_json(model)
    else:
        print_table(("MODEL", "VERSIONS", "READY SLOTS", "BATCH UP TO", "WAIT UP TO"), [_row(model) for model in listed])


@app.command()
def show(model: ModelArgument, as_json: JsonOption = False, url: UrlOption = None, api_key: KeyOption = None) -> None:
    """One model: its versions, how batches are made, and what the workers have learned of calls of the model."""
    with connect(url, api_key) as client:
        view = client.model(model)
    if as_json:
        print_json(view)
        return
    print_table(("MODEL", "VERSIONS", "READY SLOTS", "BATCH UP TO", "WAIT UP TO"), [_row(view)])
    for version, details in (view.get("versions") or {}).items():
        if description := details.get("description"):
            typer.echo(f"\nversion {version}: {description}")
        if details.get("workers") is not None:
            typer.echo(f"\nversion {version}: {_slots(details)} slots ready, scaled to {details['workers']} per worker process")
        for reason in details.get("failed") or ():
            typer.echo(f"\nversion {version}: {reason}")
        if source := details.get("source"):
            typer.echo(f"\nversion {version}: fetched from {source}")
        if calls := details.get("calls"):
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
def scale(
    model: ModelArgument,
    slots: Annotated[
        int | None, typer.Argument(metavar="[N]", min=0, help="Slots in each worker process; with 0 its jobs wait.")
    ] = None,
    auto: Annotated[bool, typer.Option("--auto", help="Give the number back to the settings, or to the work.")] = False,
    version: Annotated[str | None, typer.Option("--version", help="The version to scale; without it the default one.")] = None,
    wait_s: WaitOption = 120.0,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Set how many slots each worker process has of a version. Slots that go end what they run; a restart keeps the number."""
    if auto == (slots is not None):
        raise typer.BadParameter("name a number of slots, or give --auto")
    with connect(url, api_key) as client:
        view = client.scale_model(model, "auto" if slots is None else slots, version=version)
        name = version or str(view["default_version"])
        view = _await_scaled(client, view, name, until=time.monotonic() + wait_s)
    scaled = _version(view, name)
    done = f"version {name} of {model} has {scaled.get('ready_slots')} ready slots of {scaled.get('wanted_slots')}"
    _report(view, done if scaled.get("state") in _REACHED else f"{done}; {scaled.get('why', 'not done yet')}", as_json)


@app.command()
def unload(
    model: ModelArgument,
    version: Annotated[str, typer.Argument(metavar="[VERSION]", help="The version's name; or give --all.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="The whole model, its default version too.")] = False,
    wait_s: WaitOption = 0.0,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Stop accepting jobs for a version, or for the whole model; its workers finish the waiting jobs, then unload it."""
    if bool(version) == everything:
        raise typer.BadParameter("name a version to unload, or give --all for the whole model")
    with connect(url, api_key) as client:
        view = client.unload_model(model) if everything else client.unload_version(model, version)
        left = _await_unloaded(client, model, version, until=time.monotonic() + wait_s) if wait_s else {"not looked at": {}}
    what = f"version {version}" if version else "the model"
    going = f"{model} accepts no more jobs for {what}; its workers finish the waiting jobs, then unload it"
    _report(view, f"{what} of {model} is gone" if version and not left else f"{model} is gone" if not left else going, as_json)


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
        why = str(_version(view, version).get("why") or "")
        if why.startswith("could not be loaded"):
            print_faint(f"version {version} {why}")
            print_faint(completed(f"`penstock models unload {view.get('name')} {version}` removes it"))
            raise typer.Exit(exits.FAILED)
        time.sleep(_LOOK_EVERY_S)
        view = client.model(str(view["name"]))
    return view


def _await_scaled(client: Client, view: dict[str, Any], version: str, *, until: float) -> dict[str, Any]:
    """The model's view once the version has its slots, or at `until` (monotonic). Exits if that failed."""
    while _version(view, version).get("state") not in (*_REACHED, "failed") and time.monotonic() < until:
        time.sleep(_LOOK_EVERY_S)
        view = client.model(str(view["name"]))
    scaled = _version(view, version)
    if scaled.get("state") == "failed":
        print_faint(f"version {version} has {scaled.get('ready_slots')} ready slots of {scaled.get('wanted_slots')}")
        for reason in scaled.get("failed") or ():
            print_faint(str(reason))
        raise typer.Exit(exits.FAILED)
    return view


def _await_unloaded(client: Client, model: str, version: str, *, until: float) -> dict[str, Any]:
    """What is left of the version (empty: of the model) at `until` (monotonic); returns earlier once nothing is."""
    while left := _left(client, model, version):
        if time.monotonic() >= until:
            break
        time.sleep(_LOOK_EVERY_S)
    return left


def _left(client: Client, model: str, version: str) -> dict[str, Any]:
    try:
        unloading: dict[str, Any] = client.rollout(model)["unloading"]
    except NotFound:
        return {}
    return {name: one for name, one in unloading.items() if not one["gone"] and version in ("", name)}


def _version(view: dict[str, Any], version: str) -> dict[str, Any]:
    return (view.get("versions") or {}).get(version) or {}


def _ready(view: dict[str, Any], version: str) -> bool:
    return bool(_version(view, version).get("ready_slots"))


def _report(view: dict[str, Any], sentence: str, as_json: bool) -> None:
    if as_json:
        print_json(view)
    else:
        typer.echo(sentence)


def _slots(version: dict[str, Any]) -> str:
    """`2 of 3`: the ready slots, and the wanted number if it differs."""
    ready, wanted = version.get("ready_slots", "-"), version.get("wanted_slots")
    return str(ready) if wanted in (None, ready) else f"{ready} of {wanted}"


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    """One line of the table; a star marks the default version."""
    default = model.get("default_version")
    versions = [f"{name}*" if name == default else str(name) for name in model.get("versions") or {}]
    policy = model.get("policy") or {}
    wait_s = policy.get("max_wait_s")
    return (
        str(model.get("name", "?")),
        ", ".join(versions) or "-",
        _slots(model),
        str(policy.get("max_batch_size", "-")),
        duration(wait_s) if isinstance(wait_s, int | float) else "-",
    )

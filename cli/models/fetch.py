"""`penstock models fetch` downloads models into this machine's cache and lists the cached ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.display import print_faint, print_ids, print_json, print_table
from penstock.cli.options import ConfigOption, JsonOption, QuietOption, StateDirOption
from penstock.cli.serve import setup
from penstock.errors import ConfigError
from penstock.settings.remote_sources import is_remote, read_source
from penstock.words import size

if TYPE_CHECKING:
    from penstock.settings.tables import Settings

SourcesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="SOURCE...", help="hf://..., s3://... or https://...#sha256=... Default: those of penstock.toml."),
]
TrustOption = Annotated[
    bool, typer.Option("--trust-remote-code", help="Also fetch a file that runs code when it is loaded; its revision is fixed.")
]
ListOption = Annotated[bool, typer.Option("--list", help="Fetch nothing: list what was fetched to this machine.")]
PruneOption = Annotated[bool, typer.Option("--prune", help="Fetch nothing: delete what no process uses, and list it.")]


def fetch(
    sources: SourcesArgument = None,
    trust_remote_code: TrustOption = False,
    list_here: ListOption = False,
    prune: PruneOption = False,
    quiet: QuietOption = False,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch models ahead of a start, for example while an image is built. What is here already is not fetched again.

    penstock models fetch hf://org/name     penstock models fetch
    """
    # Imported here: the other commands of this group need neither settings nor this HTTP client.
    from penstock.cli.serve.fetching import fetch_model

    settings = _settings(config, state_dir)
    if list_here or prune:
        if sources:
            raise typer.BadParameter("--list and --prune are of the whole cache: leave out SOURCE")
        return _print_here(settings, prune=prune, quiet=quiet, as_json=as_json)
    for source, is_trusted in _wanted(settings, sources or [], trust_remote_code).items():
        fetched = fetch_model(settings, source, trust_remote_code=is_trusted)
        fetched.lock.close()
        if quiet:
            print_ids([fetched.source])
        elif as_json:
            print_json({"source": source, "resolved": fetched.source, "path": fetched.path, "bytes": fetched.size_bytes})
        else:
            typer.echo(f"{fetched.source}  {size(fetched.size_bytes)}  {fetched.path}")
    return None


def _wanted(settings: Settings, sources: list[str], trust_remote_code: bool) -> dict[str, bool]:
    """The sources to fetch, all readable, and whether their code is trusted. Raises `ConfigError` without any."""

    wanted = dict.fromkeys(sources, trust_remote_code)
    if not sources:
        wanted = {spec.source: spec.trust_remote_code for spec in settings.specs() if is_remote(spec.source)}
    if not wanted:
        raise ConfigError(
            "no model here lies elsewhere, so there is nothing to fetch", hint="name one: penstock models fetch SOURCE"
        )
    for source in wanted:
        # Check all before the first fetch, which may take long.
        read_source(source)
    return wanted


def _print_here(settings: Settings, *, prune: bool, quiet: bool, as_json: bool) -> None:
    from penstock.cli.serve.fetching import model_cache

    here = model_cache(settings)
    entries = here.prune() if prune else here.entries.all()
    if quiet:
        return print_ids(entry.source for entry in entries)
    if as_json:
        for entry in entries:
            print_json({"source": entry.source, "path": str(entry.path), "bytes": entry.size_bytes, "whole": entry.is_whole})
        return None
    used = sum(entry.size_bytes for entry in entries)
    if entries:
        rows = [(entry.source, size(entry.size_bytes), "yes" if entry.is_whole else "in part") for entry in entries]
        print_table(("SOURCE", "SIZE", "HERE"), rows)
    limit = size(settings.models_cache.max_bytes)
    return print_faint(f"deleted {size(used)}" if prune else f"{size(used)} of at most {limit}, in {settings.models_dir}")


def _settings(config: Path | None, state_dir: Path | None) -> Settings:
    flags = {"store.state_dir": state_dir.absolute() if state_dir else None}
    return setup.serve_setup([], config=config, flags=flags).settings

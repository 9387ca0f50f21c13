"""`penstock config`: shows the settings in force and checks them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from penstock.cli.display import print_faint, print_json, print_table
from penstock.cli.options import ConfigOption, JsonOption
from penstock.cli.serve import setup
from penstock.cli.serve.sources import CONFIG_NAME
from penstock.errors import ConfigError
from penstock.settings.extension_tables import hidden_settings
from penstock.settings.tables import Settings
from penstock.words import MASK

app = typer.Typer(add_completion=False)

_CHECK = f"change to its folder, or name it: penstock config FOLDER/{CONFIG_NAME} --check"
_IN_QUERY = re.compile(r"([?&](?:sentinel_)?password=)[^&]*")

FileArgument = Annotated[Path | None, typer.Argument(metavar="FILE", help="Settings file. Default: ./penstock.toml.")]


@app.command()
def config(
    file: FileArgument = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Check the settings, the model files and the packages that the models require instead."),
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show every setting with its value and its origin: a flag, the environment, the file, or the default.

    *** hides what may be a secret: passwords, and texts among the options of your own code. FROM says where they stand.
    --check reports every fault at once.
    """
    if check:
        return check_settings(file or config, as_json=as_json)
    rows = list(rows_of(setup.serve_setup([], config=file or config, flags={}).settings))
    if not as_json:
        return print_table(("SETTING", "VALUE", "FROM"), [(name, _word(value), origin) for name, value, origin in rows])
    for name, value, origin in rows:
        print_json({"setting": name, "value": value, "origin": origin})
    return None


def check_settings(file: Path | None, *, as_json: bool) -> None:
    """Raises `ConfigError` with every fault of the settings and the model files, or with the packages that are missing."""
    chosen = setup.serve_setup([], config=file, flags={}, need_files=True)
    settings = chosen.settings
    _need_packages(settings)
    names = settings.served_names
    if not names and not chosen.env.get("PENSTOCK_CONFIG"):
        raise ConfigError(f"there is nothing to check: no {CONFIG_NAME} here, and no model in the environment", hint=_CHECK)
    missing = _missing_of_sources(settings)
    if as_json:
        return print_json({"ok": True, "models": names, **({"missing_of_archives": missing} if missing else {})})
    for one in missing:
        print_faint(f"missing here: {one}")
    return typer.echo(f"ok: {len(names)} model{'s' if len(names) != 1 else ''}" + (f" ({', '.join(names)})" if names else ""))


def _need_packages(settings: Settings) -> None:
    from penstock.cli.serve.model_files import missing_requirements

    faults, command = missing_requirements(settings)
    if faults:
        raise ConfigError("packages of models are missing here:", faults=faults, hint=command or None)


def _missing_of_sources(settings: Settings) -> list[str]:
    """Missing packages of sources are shown but are not a fault: the model may work without them."""
    from penstock.cli.serve.model_files import missing_of_sources

    told, command = missing_of_sources(settings)
    return [*told, command] if command else told


def rows_of(settings: Settings) -> Iterator[tuple[str, Any, str]]:
    """Name, value and origin of every setting; passwords and texts among the options of the user's own code are masked."""
    own, hidden = tuple(_own_options(settings)), hidden_settings()
    for name, value in _leaves(settings.tree()):
        is_masked = name.startswith(own) and _may_be_secret(value)
        yield name, MASK if is_masked else _shown(name, value, hidden), settings.origin(name)


def _own_options(settings: Settings) -> Iterator[str]:
    """The prefixes of options that the user's code reads. Options of model files are known and not secret."""
    from penstock.handlers.runtimes.contract import is_model_file

    for name, model in settings.models.items():
        for version, table in model.tables().items():
            if not is_model_file(table["source"]):
                yield from (f"models.{name}.options.", f"models.{name}.versions.{version}.options.")


def _may_be_secret(value: Any) -> bool:
    return value is not None and not isinstance(value, (int, float))


def _leaves(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        name = f"{path}.{key}" if path else key
        if isinstance(value, dict) and value:
            yield from _leaves(value, name)
        elif value not in ({}, ""):
            yield name, value


def _shown(name: str, value: Any, hidden: Set[str]) -> Any:
    """The value without secrets; API keys are shown by their ids."""
    if name == "keys":
        return [key["id"] for key in value]
    if name in hidden:
        return [MASK] * len(value) if isinstance(value, list) else MASK
    is_store = name in ("store.url", "store.celery_url")
    return _masked(value) if is_store else value


def _masked(url: str | None) -> str | None:
    password = urlsplit(url).password if url else None
    shown = url.replace(f":{password}@", f":{MASK}@") if url and password else url
    return _IN_QUERY.sub(rf"\1{MASK}", shown) if shown else shown


def _word(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    return "-" if value is None else str(value)

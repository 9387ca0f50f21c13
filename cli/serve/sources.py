"""Command-line arguments as models: files, modules, addresses, `name=source`, or a penstock.toml."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError
from penstock.extension import DeclaredInFile, declared_in
from penstock.model_spec import name_fault
from penstock.settings.layers import why_absent
from penstock.settings.remote_sources import is_remote, read_source, remote_name
from penstock.settings.source_kinds import kind_of, source_kinds

CONFIG_NAME = "penstock.toml"
_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]{0,63})=(.+)")
_OBJECT = re.compile(r"(.+):([A-Za-z_]\w*)")
_NEW_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class DeclaredModels:
    """`models` maps names to sources (absolute paths for files); `tables`: the files' declarations for tables of
    extensions. `config`: the settings file to read, if any.
    """

    config: Path | None = None
    models: dict[str, str] = field(default_factory=dict)
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)


def declared_models(arguments: Sequence[str], *, config: Path | None, folder: Path) -> DeclaredModels:
    """The models that the arguments name; without arguments, those of penstock.toml in `folder`.

    Raises `ConfigError` with every fault.
    """
    files = [name for name in arguments if _is_config(name, folder)]
    chosen = _config_file(files, config, folder, alone=not arguments)
    models: dict[str, str] = {}
    tables: dict[str, dict[str, Any]] = {}
    faults = ["more than one settings file is named: " + ", ".join(files)] if len(files) + bool(config) > 1 else []
    for argument in arguments:
        if argument in files:
            continue
        declared = _declared(folder / argument)
        if declared is not None:
            models |= declared.models
            for name, table in declared.tables.items():
                tables[name] = tables.get(name, {}) | table
        else:
            faults += _add(models, argument, folder)
    if chosen is not None and not chosen.is_file():
        faults.append(f"{chosen}: no such file")
    if faults:
        raise ConfigError("the command line names models that cannot be started:", faults=faults)
    return DeclaredModels(chosen, models, tables)


def _declared(path: Path) -> DeclaredInFile | None:
    return declared_in(path.absolute()) if path.suffix == ".py" else None


def named_source(argument: str) -> tuple[str, str]:
    """Name and source of a model on the command line. Raises `ConfigError` for an address that cannot be read."""
    named = _NAMED.fullmatch(argument)
    return (named[1], named[2]) if named else (model_name(argument), argument)


def model_name(source: str) -> str:
    """The default name of a model: from `Name` in `file.py:Name` or `module:Name`, else from the file's name. Sources such as
    archives contain their name.

    Raises `ConfigError` for an address that cannot be read.
    """
    remote = read_source(source) if is_remote(source) else None
    if remote and not remote.name:
        return _NOT_IN_A_NAME.sub("-", remote_name(remote)).strip("-_.")
    source = f"{remote.file}:{remote.name}" if remote else source
    named = _OBJECT.fullmatch(source)
    if named:
        return _NEW_WORD.sub("-", named[2]).lower().strip("_")
    kind = kind_of(source)
    name = Path(source).stem if kind is None else kind.model_name(Path(source).expanduser())
    return _NOT_IN_A_NAME.sub("-", name).strip("-_.")


def _config_file(files: Sequence[str], config: Path | None, folder: Path, *, alone: bool) -> Path | None:
    given = config or (Path(files[0]) if files else None)
    if given is not None:
        path = folder / given
        return path / CONFIG_NAME if path.is_dir() else path
    default = folder / CONFIG_NAME
    return default if alone and default.is_file() else None


def _is_config(argument: str, folder: Path) -> bool:
    return argument.endswith(".toml") or (folder / argument / CONFIG_NAME).is_file()


def _add(models: dict[str, str], argument: str, folder: Path) -> list[str]:
    """Add one model, or return the faults found with it."""
    try:
        name, source = named_source(argument)
    except ConfigError as error:
        return [error.message]
    if fault := name_fault(name):
        return [f"{argument}: {name!r} cannot be a model's name ({fault}); give it one: my-model={source}"]
    if name in models:
        return [f"{argument}: the name {name!r} is already taken by {models[name]}; choose another: {name}-2={source}"]
    located, fault = _located(source, folder)
    models[name] = located
    return [fault] if fault else []


def _located(source: str, folder: Path) -> tuple[str, str]:
    """The source with an absolute path, and its fault ("" for none)."""
    if is_remote(source):
        # Faults of an address are reported with those of the other settings.
        return source, ""
    named = _OBJECT.fullmatch(source)
    location, suffix = (named[1], f":{named[2]}") if named else (source, "")
    if "/" not in location and not Path(location).suffix:
        # A module: only the worker's child may import it and learn whether it exists.
        return source, "" if named else f"{source}: no such file; a module is written as module:Name"
    if named and "/" not in location and not (folder / location).exists() and Path(location).suffix != ".py":
        return source, ""
    path = folder / Path(location).expanduser()
    is_here = path.is_file() or (path.is_dir() and any(kind.is_model(path, {}) for kind in source_kinds()))
    return f"{path}{suffix}", "" if is_here else f"{source}: {_missing(path)}"


def _missing(path: Path) -> str:
    if path.is_dir():
        return f"is a folder without a {CONFIG_NAME}; name a file in it"
    return why_absent(path)

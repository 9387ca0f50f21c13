"""A deployment of TorchServe as settings of penstock: found as `torchserve` finds it, translated, written as TOML."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit import TOMLDocument
from tomlkit.items import Table

from penstock.errors import BadArchive, ConfigError
from penstock.extensions.torchserve.archives.model_config import MAX_CONFIG_BYTES, read_yaml
from penstock.extensions.torchserve.archives.parity import Parity, SettingParity, not_plain
from penstock.extensions.torchserve.archives.workflows import read_workflow
from penstock.extensions.torchserve.cli.properties import read_properties, with_environment
from penstock.extensions.torchserve.cli.server_settings import server_settings, whole
from penstock.extensions.torchserve.cli.startup_models import MachineSize, StartupModel, startup_models

CONFIG_VARIABLE = "TS_CONFIG_FILE"
_CONFIG_NAME = "config.properties"
# Settings of models that are registered at run time.
_REGISTERED = {
    "default_workers_per_model": "default_workers",
    "default_response_timeout": "default_response_timeout_s",
    "default_startup_timeout": "default_startup_timeout_s",
    "job_queue_size": "default_queue_depth",
}
_METRICS_KEY = "metrics_config"
_METRICS_WHY = "its model_metrics; the names of ts_metrics are fixed here"


@dataclass(frozen=True, slots=True)
class TorchServeCommandLine:
    """What the command line says. `models` as `--models` takes them: `all`, `none`, or `[name=]file`."""

    config: Path | None = None
    model_store: Path | None = None
    models: Sequence[str] = ()
    workflow_store: Path | None = None
    without_tokens: bool = False
    with_model_api: bool = False


@dataclass(frozen=True, slots=True)
class TranslatedDeployment:
    """`origin`: the file that was read, if any. `settings` are by dotted path."""

    origin: Path | None
    settings: Mapping[str, Any]
    models: Sequence[StartupModel]
    workflows: Mapping[str, Path]
    report: Sequence[SettingParity]


def translated(
    options: TorchServeCommandLine, environment: Mapping[str, str], folder: Path, machine: MachineSize
) -> TranslatedDeployment:
    """Raises `ConfigError` for a file that cannot be read, and for one that names variables which are not set."""
    origin = _found(options, environment, folder)
    properties = with_environment(_properties(origin), environment) if origin else {}
    properties |= _of_command(options, folder)
    # Paths in the file are relative to the folder that the server is started in, wherever the file lies.
    server = server_settings(properties, folder, has_grpc=machine.has_grpc)
    store = server.values.get("torchserve.model_store")
    metrics, about_metrics = _declared_metrics(properties, folder)
    startup = startup_models(properties, Path(store) if store else None, machine, metrics)
    workflows, about_workflows = _workflows(properties, folder, store)
    values = {**server.values, **_registered(properties)}
    report = [*server.report, *about_metrics, *startup.report, *about_workflows]
    return TranslatedDeployment(origin, values, startup.models, workflows, report)


def _registered(properties: Mapping[str, str]) -> dict[str, int]:
    """The defaults that the keys of all models set for models registered later. `startup_models` reports the keys."""
    settings = {}
    for key, ours in _REGISTERED.items():
        with suppress(ValueError):
            settings[f"torchserve.{ours}"] = whole(properties.get(key, "").strip())
    return settings


def _workflows(
    properties: Mapping[str, str], folder: Path, model_store: str | None
) -> tuple[dict[str, Path], list[SettingParity]]:
    """The workflows of the store by name: TorchServe serves one when it is registered, penstock from its start."""
    written = properties.get("workflow_store", "").strip()
    place = folder / Path(written).expanduser() if written else Path(model_store or "")
    workflows: dict[str, Path] = {}
    report = [SettingParity("workflow_store", written, Parity.HONOURED, "workflows")] if written else []
    for path in sorted(place.glob("*.war")) if written or model_store else ():
        try:
            workflows.setdefault(read_workflow(path).name, path)
        except (BadArchive, OSError) as error:
            why = error.message if isinstance(error, BadArchive) else str(error)
            report.append(SettingParity("workflow", path.name, Parity.REFUSED, why=why))
    return workflows, report


def _found(options: TorchServeCommandLine, environment: Mapping[str, str], folder: Path) -> Path | None:
    """The order of TorchServe: the variable, the option, the current folder."""
    named = environment.get(CONFIG_VARIABLE) or options.config
    if named:
        return folder / Path(named).expanduser()
    default = folder / _CONFIG_NAME
    return default if default.is_file() else None


def _properties(path: Path) -> dict[str, str]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        what = f"{path} cannot be read: {error.strerror}"
        raise ConfigError(what, hint=f"name config.properties with --ts-config or {CONFIG_VARIABLE}") from error
    try:
        return read_properties(raw.decode("utf-8"))
    except UnicodeDecodeError:
        # The encoding that Java assumes.
        return read_properties(raw.decode("latin-1"))


def _of_command(options: TorchServeCommandLine, folder: Path) -> dict[str, str]:
    """The properties that the command line sets; they override the file."""
    said: dict[str, str] = {}
    if options.model_store:
        said["model_store"] = str(folder / options.model_store.expanduser())
    if options.workflow_store:
        said["workflow_store"] = str(folder / options.workflow_store.expanduser())
    if options.models:
        said["load_models"] = ",".join(options.models)
    if options.without_tokens:
        said["disable_token_authorization"] = "true"
    if options.with_model_api:
        said["enable_model_api"] = "true"
    return said


def _declared_metrics(properties: Mapping[str, str], folder: Path) -> tuple[dict[str, Any], Sequence[SettingParity]]:
    """The option of every model that holds the file's `model_metrics`, and what the report says."""
    written = properties.get(_METRICS_KEY, "").strip()
    if not written:
        return {}, ()
    path = folder / Path(written).expanduser()
    try:
        with path.open("rb") as file:
            parsed = read_yaml(file.read(MAX_CONFIG_BYTES), str(path))
    except (OSError, BadArchive) as error:
        why = error.message if isinstance(error, BadArchive) else f"{path} cannot be read: {error.strerror}"
        return {}, [SettingParity(_METRICS_KEY, written, Parity.IGNORED, why=why)]
    declared = parsed.get("model_metrics") if isinstance(parsed, dict) else None
    if not isinstance(declared, dict):
        return {}, [SettingParity(_METRICS_KEY, written, Parity.HONOURED, why="it declares no model_metrics")]
    return {"metrics": declared}, [SettingParity(_METRICS_KEY, written, Parity.HONOURED, "options.metrics", _METRICS_WHY)]


def as_toml(deployment: TranslatedDeployment) -> str:
    """A penstock.toml with the settings, and what is not simply honoured as comments at its end."""
    document = tomlkit.document()
    document.add(
        tomlkit.comment(
            f"From TorchServe: {deployment.origin or 'its defaults'}. docs/reference/torchserve.md explains each setting."
        )
    )
    _add_settings(document, deployment.settings)
    for name in dict.fromkeys(model.name for model in deployment.models):
        _add_model(document, name, [model for model in deployment.models if model.name == name])
    for name, path in deployment.workflows.items():
        workflows = document.setdefault("workflows", tomlkit.table(is_super_table=True))
        workflows[name] = tomlkit.table()
        workflows[name]["source"] = str(path)
    left = not_plain(deployment.report)
    if left:
        document.add(tomlkit.nl())
        document.add(tomlkit.comment("Not as it was in TorchServe:"))
    for one in left:
        document.add(tomlkit.comment(str(one).replace("\n", " ")))
    return tomlkit.dumps(document)


def _add_settings(document: TOMLDocument, settings: Mapping[str, Any]) -> None:
    for path, value in settings.items():
        section, _, key = path.partition(".")
        if section not in document:
            document[section] = tomlkit.table()
        _put(document[section], key, value)


def _put(table: Any, key: str, value: Any) -> None:
    table[key] = str(value) if isinstance(value, Path) else value


def _add_model(document: TOMLDocument, name: str, versions: Sequence[StartupModel]) -> None:
    """One version is the model itself; of several each has a table of its own."""
    models = document.setdefault("models", tomlkit.table(is_super_table=True))
    if len(versions) == 1:
        models[name] = _version(versions[0])
        return
    model = tomlkit.table()
    default = next((one for one in versions if one.is_default), versions[0])
    model["default_version"] = default.version
    model["versions"] = tomlkit.table(is_super_table=True)
    for one in versions:
        model["versions"][one.version] = _version(one)
    models[name] = model


def _version(model: StartupModel) -> Table:
    table = tomlkit.table()
    table["source"] = str(model.source)
    for key, value in model.table.items():
        table[key] = value
    return table


def this_machine() -> MachineSize:
    """Imported late: discovery loads the library that finds GPUs."""
    from penstock.workers.devices.machine import discover

    machine = discover()
    return MachineSize(len(os.sched_getaffinity(0)), len(machine.gpus.found), find_spec("grpc") is not None)

"""The setup of a serving command: the settings in force, and the environment with which its processes read them."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.cli.exits import StartError
from penstock.cli.serve.sources import CONFIG_NAME, DeclaredModels, declared_models, named_source
from penstock.errors import ConfigError
from penstock.settings.remote_sources import is_remote
from penstock.settings.tables import Settings
from penstock.words import size
from penstock.workers.__main__ import platform_fault

# The log of the first jobs, and the rewrite of a small log, fit in; with less, the store dies at the first submits.
_LEAST_ROOM_BYTES = 32 << 20
# Not Redis's default port, which a Redis of this machine may use.
_CELERY_PORT = 6380

MODELS_VARIABLE = "PENSTOCK_MODELS"
URL_VARIABLE = "PENSTOCK_REDIS_URL"


@dataclass(frozen=True, slots=True)
class ServeSetup:
    """`env`: the environment of the processes, without the store's address if the command starts an embedded store."""

    settings: Settings
    env: dict[str, str]


def serve_setup(
    arguments: Sequence[str],
    *,
    config: Path | None,
    flags: Mapping[str, Any],
    task: str | None = None,
    slots: int | None = None,
    need_files: bool = False,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> ServeSetup:
    """The setup for a command line. Raises `ConfigError` with every fault of the settings.

    `need_files`: also report model files that are missing or cannot be loaded.
    """
    environ = dict(os.environ if environ is None else environ)
    folder = folder or Path.cwd()
    inherited = environ.get("PENSTOCK_CONFIG")
    named = declared_models(
        arguments, config=config or (Path(inherited) if inherited and not arguments else None), folder=folder
    )
    if task and not named.models:
        raise ConfigError(
            "--task applies only to a model file on the command line", hint="in a settings file, write task = ... for the model"
        )
    env = _environment(environ, named, flags, task=task or "")
    settings = Settings.load(named.config, env, flags=flags, need_files=need_files)
    if slots is not None:
        env[MODELS_VARIABLE] = json.dumps(_with_slots(env, settings, slots))
        settings = Settings.load(named.config, env, flags=flags)
    if need_files:
        check_model_files(settings, named.config)
    return ServeSetup(settings, env)


def declared_model(model: str, config: Path | None, task: str | None) -> tuple[Settings, str]:
    """The settings that declare the model, and its name: from penstock.toml, or from a named file."""
    file = config or Path.cwd() / CONFIG_NAME
    if file.is_file():
        settings = serve_setup([], config=file, flags={}).settings
        if model in settings.served_names:
            return settings, model
    settings = serve_setup([model], config=config, flags={}, task=task, need_files=True).settings
    return settings, named_source(model)[0]


def check_model_files(settings: Settings, config: Path | None) -> None:
    """Raises `ConfigError` for model files that cannot be loaded; skips models that are not fetched yet."""
    from penstock.cli.serve.model_files import model_file_faults

    faults = model_file_faults(settings)
    if faults:
        raise ConfigError(f"{config or 'the settings'} cannot be used:", faults=faults)


def fetch_models(chosen: ServeSetup) -> None:
    """Download remote models and check their files. Raises `FetchFailed`, `ConfigError`."""
    if not any(is_remote(spec.source) for spec in chosen.settings.specs()):
        return
    from penstock.cli.serve.fetching import fetch_missing

    fetch_missing(chosen.settings)
    config = chosen.env.get("PENSTOCK_CONFIG")
    check_model_files(chosen.settings, Path(config) if config else None)


def need_models(settings: Settings) -> None:
    if settings.models:
        return
    raise ConfigError(
        f"there is no model to serve: the command names none, and there is no {CONFIG_NAME} here",
        hint="name one (penstock up model.py), or create a starter folder with `penstock new NAME`",
    )


def need_linux() -> None:
    """Raises `StartError` if the kernel lacks system calls that a worker needs."""
    if fault := platform_fault():
        raise StartError(fault, hint="start it on Linux or in a container; docs/reference/platforms.md lists what works here")


def need_room(settings: Settings) -> None:
    """Raises `StartError` if the disk of an embedded store has hardly any room. Says so below the reserve of the settings."""
    if settings.store.url:
        return
    from penstock.cli.display import print_faint

    folder, reserve = settings.store.state_dir, settings.store.reserve_bytes
    free = shutil.disk_usage(next(parent for parent in (folder, *folder.parents) if parent.exists())).free
    text = f"the disk of {folder} is nearly full: {size(free)} are free"
    if free < _LEAST_ROOM_BYTES:
        hint = "free some space, or choose another folder with --state-dir"
        raise StartError(f"{text}, and a store takes {size(_LEAST_ROOM_BYTES)} to begin with", hint=hint)
    if free < reserve:
        print_faint(f"{text}; files and large inputs are refused below {size(reserve)} (store.reserve_bytes)")


def need_store(settings: Settings) -> None:
    if settings.store.url:
        return
    raise ConfigError(
        "no Redis is configured, and this command starts none",
        hint=f"set {URL_VARIABLE}, or start everything together with `penstock up`",
    )


def need_sound_store(settings: Settings) -> None:
    """Raises `StartError` if a configured Redis answers but refuses the login, has no functions, or lacks the `require` of
    the settings. Says so if it does not answer.
    """
    if not settings.store.url:
        return
    from penstock.cli.display import print_faint
    from penstock.cli.serve.start_watch import check_login, check_store

    if away := check_login(settings.store.url):
        print_faint(f"the job store: {away}; it is tried until it answers: start it, or correct {URL_VARIABLE}")
    check_store(settings.store.url, settings.store, print_faint)


def with_store(env: Mapping[str, str], url: str) -> dict[str, str]:
    """`env` with the store's address in the variable that takes precedence; the other variables for it are removed."""
    others = {name: value for name, value in env.items() if name not in (f"{URL_VARIABLE}_FILE", "PENSTOCK_STORE__URL")}
    return {**others, URL_VARIABLE: url}


def free_port(host: str, port: int) -> int:
    """`port` if it can be bound, any free one for 0. Raises `StartError` when it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            free: int = probe.getsockname()[1]
            return free
    except OSError as fault:
        raise _no_port(host, port, fault) from fault


def celery_port(settings: Settings) -> int:
    """The loopback port for Celery's clients: the same each time, unless it is taken.

    Raises `ConfigError` for a configured store, which is not ours.
    """
    if settings.store.url:
        raise ConfigError(
            "--celery opens the store that `penstock up` brings, and store.url names another",
            hint="give your Celery app the URL of that store; docs/reference/celery.md says how",
        )
    try:
        return free_port("127.0.0.1", _CELERY_PORT)
    except StartError:
        # The printed URL shows the port.
        return free_port("127.0.0.1", 0)


def _environment(environ: Mapping[str, str], named: DeclaredModels, flags: Mapping[str, Any], *, task: str) -> dict[str, str]:
    env = dict(environ)
    env.pop("PENSTOCK_CONFIG", None)
    if named.config is not None:
        env["PENSTOCK_CONFIG"] = str(named.config)
    if named.models:
        extra = {"task": task} if task else {}
        env[MODELS_VARIABLE] = json.dumps({name: {"source": source, **extra} for name, source in named.models.items()})
    for name, tables in named.tables.items():
        env[f"PENSTOCK_{name.upper()}"] = json.dumps(tables)
    for path, value in flags.items():
        if value is not None:
            env["PENSTOCK_" + path.replace(".", "__").upper()] = str(value)
    return env


def _with_slots(env: Mapping[str, str], settings: Settings, slots: int) -> dict[str, Any]:
    given = json.loads(env.get(MODELS_VARIABLE) or "{}")
    return {**given, **{name: {**given.get(name, {}), "slots": slots} for name in settings.models}}


def _no_port(host: str, port: int, fault: OSError) -> StartError:
    if fault.errno == errno.EADDRINUSE:
        return StartError(
            f"port {port} of {host} is in use by another program", hint="stop it, or choose another port with --port"
        )
    if fault.errno == errno.EACCES:
        return StartError(f"port {port} requires root", hint="choose a port above 1023 with --port")
    return StartError(f"cannot listen on {host}:{port}: {fault.strerror}", hint="choose another address with --host and --port")

"""The processes of penstock, one module each: `penstock gateway`, `worker` and `runner` become one, `up` and `run` start them.

The commands check the settings, then replace this process, so that signals and exit codes are the new process's own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import typer

from penstock.cli.options import ConfigOption, HostOption, ModelsArgument, PortOption, RedisOption, SlotsOption
from penstock.cli.serve import setup
from penstock.cli.serve.process_manager import ManagedProcess
from penstock.process_lifetime import PARENT_VARIABLE
from penstock.settings.tables import Settings

gateway_app = typer.Typer(add_completion=False)
worker_app = typer.Typer(add_completion=False)
runner_app = typer.Typer(add_completion=False)

_MODULES = {"gateway": "penstock.gateway", "worker": "penstock.workers", "runner": "penstock.runs"}
# -P for processes without user code: a redis.py beside the model must not replace the real one.
_FLAGS = {"gateway": ["-P"], "worker": [], "runner": ["-P"]}


@gateway_app.command()
def gateway(
    config: ConfigOption = None,
    host: HostOption = None,
    port: PortOption = None,
    redis_url: RedisOption = None,
) -> None:
    """Start a gateway alone. Needs a Redis: --redis-url or PENSTOCK_REDIS_URL."""
    flags = {"gateway.host": host, "gateway.port": port, "store.url": redis_url}
    chosen = setup.serve_setup([], config=config, flags=flags)
    chosen.settings.access_rule()
    setup.need_store(chosen.settings)
    setup.free_port(chosen.settings.gateway.host, chosen.settings.gateway.port)
    setup.need_sound_store(chosen.settings)
    _become("gateway", chosen.env)


@worker_app.command()
def worker(
    models: ModelsArgument = None,
    config: ConfigOption = None,
    slots: SlotsOption = None,
    redis_url: RedisOption = None,
) -> None:
    """Start a worker alone. Needs a Redis: --redis-url or PENSTOCK_REDIS_URL."""
    chosen = setup.serve_setup(models or [], config=config, flags={"store.url": redis_url}, slots=slots, need_files=True)
    setup.need_models(chosen.settings)
    setup.need_store(chosen.settings)
    setup.need_linux()
    setup.need_sound_store(chosen.settings)
    _become("worker", chosen.env)


@runner_app.command()
def runner(config: ConfigOption = None, redis_url: RedisOption = None) -> None:
    """Start a runner alone: it drives the runs made over HTTP. Needs a Redis: --redis-url or PENSTOCK_REDIS_URL."""
    chosen = setup.serve_setup([], config=config, flags={"store.url": redis_url})
    setup.need_store(chosen.settings)
    setup.need_sound_store(chosen.settings)
    _become("runner", chosen.env)


def managed_process(name: str, env: Mapping[str, str], store_url: str) -> ManagedProcess:
    """One of `gateway`, `worker`, `runner`, for a manager to start. It ends when this process ends, even by a crash."""
    whole = {**setup.with_store(env, store_url), PARENT_VARIABLE: str(os.getpid())}
    return ManagedProcess(name, [sys.executable, *_FLAGS[name], "-m", _MODULES[name]], _needed_by(name, whole))


def store_server(settings: Settings, *, port: int = 0) -> Any:
    """The embedded server, not started yet; a context manager that yields None when a Redis is configured.

    With `port`, it listens on loopback for clients of Celery.
    """
    if settings.store.url:
        return nullcontext()
    # Imported here, so that a system without an embedded server can use a Redis.
    from penstock.embedded.server import EmbeddedServer

    return EmbeddedServer(settings.store.state_dir, fsync=settings.store.fsync, users=True, port=port)


def _become(name: str, env: Mapping[str, str]) -> None:
    os.execve(sys.executable, [sys.executable, "-m", _MODULES[name]], env)


def _needed_by(name: str, env: Mapping[str, str]) -> dict[str, str]:
    """The environment without secrets that the process does not need: only a gateway checks keys, and none sends one."""
    withheld = ("PENSTOCK_API_KEY",) if name == "gateway" else ("PENSTOCK_API_KEY", "PENSTOCK_KEYS", "PENSTOCK_KEYS_FILE")
    return {variable: value for variable, value in env.items() if variable not in withheld}

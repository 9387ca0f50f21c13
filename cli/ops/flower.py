"""`penstock flower`: checks that Flower needs a login, then replaces this process with Flower."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.options import ConfigOption, RedisOption, StateDirOption
from penstock.cli.serve import setup
from penstock.distribution import install_hint
from penstock.errors import ConfigError
from penstock.running_stack import running_stack
from penstock.settings.keys import is_loopback
from penstock.settings.tables import Settings, StoreSettings

app = typer.Typer(add_completion=False)

PORT = 5555
LOGINS = "FLOWER_BASIC_AUTH"
_OAUTH = "FLOWER_AUTH"
# Flower's switch for an open API, whose answers any web page in a browser may read.
_OPEN = "FLOWER_UNAUTHENTICATED_API"

AddressOption = Annotated[str, typer.Option("--address", help="Address to listen on.")]
FlowerPortOption = Annotated[int, typer.Option("--port", "-p", min=0, max=65_535, help="Port; 0 takes a free one.")]
LoginsOption = Annotated[
    Path | None, typer.Option("--basic-auth-file", help=f"The logins: USER:PASSWORD, one per line. Or set {LOGINS}.")
]
PrefixOption = Annotated[str, typer.Option("--url-prefix", help="The path under which a proxy serves it.")]


@app.command()
def flower(
    address: AddressOption = "127.0.0.1",
    port: FlowerPortOption = PORT,
    basic_auth_file: LoginsOption = None,
    url_prefix: PrefixOption = "",
    config: ConfigOption = None,
    redis_url: RedisOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Start Flower: workers, tasks, and the queue lengths per model and priority.

    The store is --redis-url or PENSTOCK_REDIS_URL, else that of the `penstock up` that runs here. Flower is read-only; with
    FLOWER_READ_ONLY=false it can also stop workers and resize their pools. Other FLOWER_* variables are passed on to Flower.
    """
    _need_flower()
    flags = {"store.url": redis_url, "store.state_dir": state_dir.absolute() if state_dir else None}
    chosen = setup.serve_setup([], config=config, flags=flags)
    env = guard_environment(chosen.env, address=address, logins=_logins(basic_auth_file))
    free = setup.free_port(address, port)
    env = {
        **setup.with_store(env, _store_url(chosen.settings)),
        "PENSTOCK_STORE__STATE_DIR": str(chosen.settings.store.state_dir),
    }
    words = [f"--address={address}", f"--port={free}", *([f"--url-prefix={url_prefix}"] if url_prefix else [])]
    # Replaces this process. -P: a redis.py in this folder must not take the place of the real one.
    os.execve(sys.executable, [sys.executable, "-P", "-m", "penstock.cli.ops.flower_process", *words], env)


def guard_environment(environ: Mapping[str, str], *, address: str, logins: str) -> dict[str, str]:
    """Flower's environment. Raises `ConfigError` if no login is needed; a file's logins override the variable's."""
    env = {"FLOWER_READ_ONLY": "true", **environ}
    if logins:
        # In the environment, because every process of this machine can read a command line.
        env[LOGINS] = logins
    if env.get(_OPEN):
        raise ConfigError(
            f"{_OPEN} opens Flower's API to every program and every web page that reaches it",
            hint=f"unset it, and give --basic-auth-file or {LOGINS}: the API is available with a login",
        )
    if is_loopback(address) or env.get(LOGINS) or env.get(_OAUTH):
        return env
    raise ConfigError(
        f"Flower on {address} would show every job and worker to any caller that reaches it",
        hint=f"give --basic-auth-file with lines USER:PASSWORD, or set {LOGINS}=USER:PASSWORD; on 127.0.0.1 no login is needed",
    )


def _logins(path: Path | None) -> str:
    """The logins in the form of Flower's variable: separated by commas."""
    if path is None:
        return ""
    try:
        lines = [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
    except OSError as fault:
        raise ConfigError(f"{path}: {fault.strerror}", hint="name a readable file with lines USER:PASSWORD") from fault
    if not lines or not all(_is_login(line) for line in lines):
        raise ConfigError(f"{path} must hold lines USER:PASSWORD, at least one, without commas", hint="correct the file")
    return ",".join(lines)


def _is_login(line: str) -> bool:
    user, _, password = line.partition(":")
    return bool(user and password) and "," not in line


def _store_url(settings: Settings) -> str:
    """The configured store, else the running embedded one with its user for Flower. Raises `ConfigError` without both."""
    if settings.store.url:
        _need_celery(settings.store)
        return settings.store.url
    stack = running_stack(settings.store.state_dir)
    if stack is None:
        raise ConfigError(
            f"no Redis is configured, and no `penstock up` runs on {settings.store.state_dir}",
            hint=f"set {setup.URL_VARIABLE}, or start `penstock up` in this folder first",
        )
    if not stack.redis_url.startswith("unix://penstock-"):
        return stack.redis_url
    from penstock.embedded.server import flower_url

    return flower_url(settings.store.state_dir)


def _need_celery(store: StoreSettings) -> None:
    if "+cluster:" in (store.url or "") and not store.celery_url:
        raise ConfigError(
            "Flower shows what Celery's events tell, and Celery cannot use a cluster",
            hint="name a Redis of its own for control and events: store.celery_url, for the workers too",
        )


def _need_flower() -> None:
    if importlib.util.find_spec("flower") is None:
        raise ConfigError("Flower is not installed", hint=install_hint("flower"))

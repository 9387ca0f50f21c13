"""`penstock store users|load`: prepares a Redis for penstock."""

from __future__ import annotations

import secrets
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from redis.exceptions import RedisError

from penstock.broker.server.users import rules, setuser_lines
from penstock.broker.store.connection import connect_all
from penstock.broker.store.sync import RedisStore
from penstock.cli.display import print_json
from penstock.cli.ops.deployment import write_secrets
from penstock.cli.options import JsonOption
from penstock.cli.serve import setup
from penstock.errors import ConfigError, StoreUnavailable

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Prepare a Redis of your own.")

AdminOption = Annotated[
    str | None,
    typer.Option(
        "--redis-url",
        help="The Redis, with a user that may load functions. Default: PENSTOCK_REDIS_URL or PENSTOCK_REDIS_URL_FILE.",
    ),
]


@app.command()
def users(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[FOLDER]", help="Write the secret files of a deployment in containers into this folder."),
    ] = None,
    store: Annotated[
        str,
        typer.Option(
            "--store", metavar="HOST:PORT|URL", help="With FOLDER: the store's address in the containers, or URL without login."
        ),
    ] = "valkey:6379",
    as_json: JsonOption = False,
) -> None:
    """Print the commands that create users for gateways, workers, Flower and Celery clients, with new passwords.

    With FOLDER: write the users' file, the URLs with their passwords, an API key, passwords of Flower and Grafana. A repeat
    keeps every secret and gives the users the rights of this version. To replace a secret, remove its file first.
    """
    if folder is not None:
        return write_secrets(folder, store, as_json=as_json)
    passwords = {name: secrets.token_urlsafe(24) for name in rules()}
    for line in setuser_lines(passwords):
        if as_json:
            print_json(line)
        else:
            typer.echo(line)
    return None


@app.command()
def load(
    redis_url: AdminOption = None,
    reload_users: Annotated[
        bool, typer.Option("--reload-users", help="Also have the server reload its file of users, after a change of it.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Load this version's functions, which those users may call but not load. Repeat after every upgrade of penstock."""
    url = setup.serve_setup([], config=None, flags={"store.url": redis_url}).settings.store.url
    if not url:
        raise ConfigError(
            "no Redis is configured", hint="give --redis-url or set PENSTOCK_REDIS_URL, as a user that may load functions"
        )
    if reload_users:
        _reload_users(url)
    _load_functions(url)
    if as_json:
        return print_json({"ok": True})
    return typer.echo("ok: the functions of this version are loaded")


def _load_functions(url: str) -> None:
    store = RedisStore(url, name="penstock-load")
    try:
        store.load_functions()
    finally:
        store.close()


def _reload_users(url: str) -> None:
    try:
        for client in connect_all(url, name="penstock-load").values():
            with closing(client):
                client.acl_load()
    except RedisError as fault:
        raise StoreUnavailable(
            f"the server did not reload its users: {fault}",
            hint="check that it has an aclfile, which this user may reload",
        ) from fault

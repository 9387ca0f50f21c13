"""`penstock store users|load`: what the administrator of a Redis of one's own has to do once."""

from __future__ import annotations

import secrets
from typing import Annotated

import typer

from penstock.broker.redis_store import RedisStore
from penstock.broker.users import GATEWAY, WORKER, setuser_lines
from penstock.cli.connect import JsonOption
from penstock.cli.display import print_json
from penstock.errors import ConfigError

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Prepare a Redis of your own.")

AdminOption = Annotated[
    str | None,
    typer.Option(
        "--redis-url", envvar="PENSTOCK_REDIS_URL", help="As a user who may load functions. Default: PENSTOCK_REDIS_URL."
    ),
]


@app.command()
def users(as_json: JsonOption = False) -> None:
    """Print the commands that make a user for gateways and one for workers, with fresh passwords."""
    passwords = {name: secrets.token_urlsafe(24) for name in (GATEWAY, WORKER)}
    for line in setuser_lines(passwords):
        if as_json:
            print_json(line)
        else:
            typer.echo(line)


@app.command()
def load(redis_url: AdminOption = None, as_json: JsonOption = False) -> None:
    """Load this version's functions, which those users may call and not load. Repeat it after every upgrade of penstock."""
    if not redis_url:
        raise ConfigError(
            "no Redis is named", hint="give --redis-url or set PENSTOCK_REDIS_URL, as a user who may load functions"
        )
    store = RedisStore(redis_url, name="penstock-load")
    try:
        store.load_functions()
    finally:
        store.close()
    if as_json:
        return print_json({"ok": True})
    return typer.echo("ok: the functions of this version are loaded")

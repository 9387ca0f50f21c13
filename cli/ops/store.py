"""`penstock store users|load|move`: what prepares a Redis for penstock, and takes a model from one store to another."""

from __future__ import annotations

import secrets
from contextlib import closing
from typing import Annotated

import typer
from redis.exceptions import RedisError

from penstock.broker.server.users import CELERY, FLOWER, GATEWAY, WORKER, setuser_lines
from penstock.broker.store.connection import connect_all
from penstock.broker.store.sync import RedisStore
from penstock.cli.display import print_json
from penstock.cli.options import ConfigOption, JsonOption
from penstock.cli.serve import plan
from penstock.errors import ConfigError, StoreUnavailable

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Prepare a Redis of your own; move models between stores.")

AdminOption = Annotated[
    str | None,
    typer.Option(
        "--redis-url",
        help="The Redis, with a user who may load functions. Default: PENSTOCK_REDIS_URL or PENSTOCK_REDIS_URL_FILE.",
    ),
]


@app.command()
def users(as_json: JsonOption = False) -> None:
    """Print the commands that create users for gateways, workers, Flower and Celery clients, with new passwords."""
    passwords = {name: secrets.token_urlsafe(24) for name in (GATEWAY, WORKER, FLOWER, CELERY)}
    for line in setuser_lines(passwords):
        if as_json:
            print_json(line)
        else:
            typer.echo(line)


@app.command()
def load(
    redis_url: AdminOption = None,
    reload_users: Annotated[
        bool, typer.Option("--reload-users", help="Also have the server reload its file of users, after a change of it.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Load this version's functions, which those users may call but not load. Repeat after every upgrade of penstock."""
    url = plan.make_plan([], config=None, flags={"store.url": redis_url}).settings.store.url
    if not url:
        raise ConfigError(
            "no Redis is configured", hint="give --redis-url or set PENSTOCK_REDIS_URL, as a user who may load functions"
        )
    if reload_users:
        _reload_users(url)
    _load_functions(url)
    if as_json:
        return print_json({"ok": True})
    return typer.echo("ok: the functions of this version are loaded")


@app.command()
def move(
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    to: Annotated[str, typer.Option("--to", metavar="NAME", help="The store: the name of a [stores.NAME], or main.")],
    config: ConfigOption = None,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="End once new jobs go to the other store; do not wait for the earlier ones.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Move a model to another store: new jobs go there, and the earlier ones run and are read where they are.

    Nothing is copied, so nothing is lost or run twice. A move that was broken off goes on when the command is repeated.
    """
    from penstock.cli.ops.store_move import move as move_model

    def say(step: str, text: str, left: int | None) -> None:
        if as_json:
            print_json({"step": step, "text": text} | ({} if left is None else {"left": left}))
        else:
            typer.echo(text)

    move_model(plan.make_plan([], config=config, flags={}).settings, model, to, is_waiting=not no_wait, say=say)


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

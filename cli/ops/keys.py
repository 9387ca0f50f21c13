"""`penstock keys new|list|revoke`."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from penstock.access import digest_of, new_secret
from penstock.cli.display import print_ids, print_json, print_secret, print_table
from penstock.cli.lazy import added
from penstock.cli.options import ConfigOption, JsonOption, KeyOption, QuietOption, UrlOption, connect
from penstock.cli.serve import setup
from penstock.settings.keys import KeySettings, declared

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Make, list and revoke API keys.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The key's id, as logs and settings name it.")]
RoleOption = Annotated[str, typer.Option("--role", help="submit, read, manage; separate several with commas.")]
OwnerOption = Annotated[str, typer.Option("--owner", help="The owner of its jobs. Default: NAME. Keys may share an owner.")]
_USE = "callers set PENSTOCK_API_KEY to it"
DaysOption = Annotated[int | None, typer.Option("--days", min=1, help="Days until it expires. Default: never.")]


@app.command()
def new(
    context: typer.Context,
    name: NameArgument,
    role: RoleOption = "submit,read",
    owner: OwnerOption = "",
    days: DaysOption = None,
    rate: Annotated[float | None, typer.Option("--rate", help="Requests a second, over all gateways. Default: 100.")] = None,
    burst: Annotated[int | None, typer.Option("--burst", help="Requests at once after a rest. Default: 200.")] = None,
    max_open_jobs: Annotated[int | None, typer.Option("--max-open-jobs", help="Jobs of a model that have not ended.")] = None,
    toml: Annotated[
        bool, typer.Option("--toml", help="Ask no gateway: print the lines of a [[keys]] table, and the key on stderr.")
    ] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Make a key: prints it on stdout, once. All gateways of the store know it within seconds; it takes a key that may manage.

    The first key is declared in the settings: penstock keys new admin --role manage --toml >> keys.toml; then
    PENSTOCK_KEYS_FILE=keys.toml penstock up.
    """
    moment = _expiry(days)
    limits: dict[str, Any] = {"rate_per_s": rate, "burst": burst, "max_open_jobs": max_open_jobs, **added(context)}
    if toml:
        given = {name: limit for name, limit in limits.items() if limit is not None}
        return _declare({"id": name, "roles": _roles(role), "owner": owner, "expires_at": moment, **given}, as_json=as_json)
    with connect(url, api_key) as client:
        made = client.keys.add(
            name,
            _roles(role),
            owner=owner or None,
            expires_at=moment.isoformat() if moment else None,
            **limits,
        )
    if as_json:
        return print_json(made)
    within = f"every gateway knows it within {made['within_s']:g} s"
    return print_secret(made["key"], f"the API key, shown only this once: {_USE}; {within}")


def _declare(table: dict[str, Any], *, as_json: bool) -> None:
    """Make a key without a gateway: prints its table for the settings on stdout, the key itself on stderr."""
    secret = new_secret()
    key = declared({**table, "sha256": digest_of(secret.encode("ascii"))})
    if as_json:
        return print_json({"key": f"{key.id}.{secret}", **key.model_dump(mode="json", exclude_defaults=True)})
    typer.echo(f"the API key, shown only this once: {_USE}; its table is for the gateways' settings", err=True)
    typer.echo(f"{key.id}.{secret}", err=True)
    return typer.echo(toml_of(key))


@app.command()
def revoke(name: NameArgument, as_json: JsonOption = False, url: UrlOption = None, api_key: KeyOption = None) -> None:
    """End a key that was made while gateways run, and what waits or streams for it."""
    with connect(url, api_key) as client:
        done = client.keys.revoke(name)
    if as_json:
        return print_json(done)
    return typer.echo(f"{name} is revoked; it opens no gateway after {done['within_s']:g} s")


@app.command("list")
def list_keys(
    config: ConfigOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """List the keys of the running gateway, or with --config those that the settings of a file declare."""
    if config is not None:
        views = [_declared_view(key) for key in setup.serve_setup([], config=config, flags={}).settings.keys]
    else:
        with connect(url, api_key) as client:
            views = client.keys.all()
    if quiet:
        print_ids(one["id"] for one in views)
    elif as_json:
        for one in views:
            print_json(one)
    else:
        print_table(("ID", "OWNER", "ROLES", "RATE/S", "EXPIRES", "SOURCE"), [_row(one) for one in views])


def _declared_view(key: KeySettings) -> dict[str, Any]:
    return {
        "id": key.id,
        "owner": key.owner or key.id,
        "roles": sorted(key.roles),
        "rate_per_s": key.rate_per_s,
        "expires_at": key.expires_at.isoformat() if key.expires_at else None,
        "source": "settings",
    }


def _row(key: dict[str, Any]) -> tuple[str, ...]:
    roles, rate = ",".join(key["roles"]), f"{key['rate_per_s']:g}"
    return (key["id"], key["owner"], roles, rate, key["expires_at"] or "-", key["source"])


def toml_of(key: KeySettings) -> str:
    lines = ["[[keys]]", f'id = "{key.id}"', f'sha256 = "{key.sha256}"']
    lines.append(f"roles = {json.dumps(list(key.roles))}")
    lines += [f'owner = "{key.owner}"'] if key.owner else []
    lines += [f"expires_at = {key.expires_at.isoformat()}"] if key.expires_at else []
    limits = key.model_dump(exclude={"id", "sha256", "roles", "owner", "expires_at"}, exclude_defaults=True)
    return "\n".join([*lines, *(f"{name} = {json.dumps(limit)}" for name, limit in limits.items()), ""])


def _roles(text: str) -> list[str]:
    return text.replace(" ", "").split(",")


def _expiry(days: int | None) -> datetime | None:
    return datetime.now(UTC).replace(microsecond=0) + timedelta(days=days) if days else None

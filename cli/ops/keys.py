"""`penstock keys new|add|revoke|list`."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from penstock.access import digest_of, new_secret
from penstock.cli.display import print_json, print_table
from penstock.cli.options import ConfigOption, JsonOption, KeyOption, UrlOption, connect
from penstock.cli.serve import plan
from penstock.settings.keys import KeySettings, declared

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Make, list and revoke API keys.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The key's id, as logs and settings name it.")]
RoleOption = Annotated[str, typer.Option("--role", help="submit, read, manage; separate several with commas.")]
OwnerOption = Annotated[str, typer.Option("--owner", help="The owner of its jobs. Default: NAME. Keys may share an owner.")]
DaysOption = Annotated[int | None, typer.Option("--days", min=1, help="Days until it expires. Default: never.")]


@app.command()
def new(
    name: NameArgument,
    role: RoleOption = "submit,read",
    owner: OwnerOption = "",
    days: DaysOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key: prints its secret on stderr, once, and on stdout the lines for penstock.toml.

    penstock keys new ci --role submit,read >> keys.toml; then PENSTOCK_KEYS_FILE=keys.toml penstock up
    """
    secret = new_secret()
    table = _table(name, role, owner, days, sha256=digest_of(secret.encode("ascii")))
    if as_json:
        return print_json({"key": f"{name}.{secret}", **table.model_dump(mode="json", exclude_defaults=True)})
    typer.echo(f"{name}.{secret}", err=True)
    typer.echo("the key, shown only this once; callers set PENSTOCK_API_KEY to it. For the gateway:", err=True)
    return typer.echo(toml_of(table))


@app.command()
def add(
    name: NameArgument,
    role: RoleOption = "submit,read",
    owner: OwnerOption = "",
    days: DaysOption = None,
    rate: Annotated[float | None, typer.Option("--rate", help="Requests a second, over all gateways. Default: 100.")] = None,
    burst: Annotated[int | None, typer.Option("--burst", help="Requests at once after a rest. Default: 200.")] = None,
    max_open_jobs: Annotated[int | None, typer.Option("--max-open-jobs", help="Jobs of a model that have not ended.")] = None,
    webhook: Annotated[str | None, typer.Option("--webhook", help="Where the events of its jobs go.")] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Make a key while gateways run: prints it on stdout, once. All gateways of the store know it within seconds.

    It takes a key with the role manage.
    """
    moment = _expiry(days)
    with connect(url, api_key) as client:
        made = client.keys.add(
            name,
            _roles(role),
            owner=owner or None,
            rate_per_s=rate,
            burst=burst,
            max_open_jobs=max_open_jobs,
            expires_at=moment.isoformat() if moment else None,
            webhook=webhook,
        )
    if as_json:
        return print_json(made)
    typer.echo("the key, shown only this once; callers set PENSTOCK_API_KEY to it:", err=True)
    typer.echo(made["key"])
    return typer.echo(f"every gateway knows it within {made['within_s']:g} s", err=True)


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
    config: ConfigOption = None, as_json: JsonOption = False, url: UrlOption = None, api_key: KeyOption = None
) -> None:
    """List the keys of the running gateway, or with --config those that the settings of a file declare."""
    if config is not None:
        found = [_declared_view(key) for key in plan.make_plan([], config=config, flags={}).settings.keys]
    else:
        with connect(url, api_key) as client:
            found = client.keys.all()
    if as_json:
        for one in found:
            print_json(one)
    else:
        print_table(("ID", "OWNER", "ROLES", "RATE/S", "EXPIRES", "SOURCE"), [_row(one) for one in found])


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
    return "\n".join([*lines, ""])


def _table(name: str, role: str, owner: str, days: int | None, *, sha256: str) -> KeySettings:
    given = {"id": name, "sha256": sha256, "roles": _roles(role), "owner": owner, "expires_at": _expiry(days)}
    return declared(given)


def _roles(text: str) -> list[str]:
    return text.replace(" ", "").split(",")


def _expiry(days: int | None) -> datetime | None:
    return datetime.now(UTC).replace(microsecond=0) + timedelta(days=days) if days else None

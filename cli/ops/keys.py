"""`penstock keys new|list`."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from penstock.access import digest_of, new_secret
from penstock.cli.display import print_json, print_table
from penstock.cli.options import ConfigOption, JsonOption
from penstock.cli.serve import plan
from penstock.settings.keys import KeySettings, declared

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Make API keys, and see which are declared.")


@app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The key's id, as logs and settings name it.")],
    role: Annotated[str, typer.Option("--role", help="submit, read, manage; separate several with commas.")] = "submit,read",
    owner: Annotated[str, typer.Option("--owner", help="The owner of its jobs. Default: NAME. Keys may share an owner.")] = "",
    days: Annotated[int | None, typer.Option("--days", min=1, help="Days until it expires. Default: never.")] = None,
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


@app.command("list")
def list_keys(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List the keys that the settings declare."""
    rows = [
        {
            "id": key.id,
            "owner": key.owner or key.id,
            "roles": ",".join(key.roles),
            "expires_at": key.expires_at.isoformat() if key.expires_at else None,
        }
        for key in plan.make_plan([], config=config, flags={}).settings.keys
    ]
    if as_json:
        for row in rows:
            print_json(row)
    else:
        print_table(("ID", "OWNER", "ROLES", "EXPIRES"), [tuple(value or "-" for value in row.values()) for row in rows])


def toml_of(key: KeySettings) -> str:
    lines = ["[[keys]]", f'id = "{key.id}"', f'sha256 = "{key.sha256}"']
    lines.append(f"roles = {json.dumps(list(key.roles))}")
    lines += [f'owner = "{key.owner}"'] if key.owner else []
    lines += [f"expires_at = {key.expires_at.isoformat()}"] if key.expires_at else []
    return "\n".join([*lines, ""])


def _table(name: str, role: str, owner: str, days: int | None, *, sha256: str) -> KeySettings:
    expires_at = datetime.now(UTC).replace(microsecond=0) + timedelta(days=days) if days else None
    given = {"id": name, "sha256": sha256, "roles": role.replace(" ", "").split(","), "owner": owner, "expires_at": expires_at}
    return declared(given)

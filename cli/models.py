"""`penstock models`."""

from __future__ import annotations

from typing import Any

import typer

from penstock.cli.connect import JsonOption, KeyOption, UrlOption, connected
from penstock.cli.display import duration, print_json, print_table

app = typer.Typer(add_completion=False)


@app.command()
def models(as_json: JsonOption = False, url: UrlOption = None, api_key: KeyOption = None) -> None:
    """The models a gateway serves. `--json` prints one model per line."""
    with connected(url, api_key) as client:
        found = client.models()
    if as_json:
        for model in found:
            print_json(model)
    else:
        print_table(("MODEL", "VERSIONS", "READY SLOTS", "BATCH UP TO", "WAIT UP TO"), [_row(model) for model in found])


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    """The default version is marked with a star."""
    default = model.get("default_version")
    versions = [f"{name}*" if name == default else str(name) for name in model.get("versions") or {}]
    policy = model.get("policy") or {}
    wait_s = policy.get("max_wait_s")
    return (
        str(model.get("name", "?")),
        ", ".join(versions) or "-",
        str(model.get("ready_slots", "-")),
        str(policy.get("max_batch_size", "-")),
        duration(wait_s) if isinstance(wait_s, int | float) else "-",
    )

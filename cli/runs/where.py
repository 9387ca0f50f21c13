"""Decides whether a command on runs uses a gateway or a store. The code for a gateway is loaded only then."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from penstock.cli.runs.at_gateway import GatewayRuns


# No environment variable: by default, the verbs of runs use a store.
RunUrlOption = Annotated[
    str | None, typer.Option("--url", help="The gateway that has the runs. Default: the store in use, then PENSTOCK_URL.")
]


def store_options(config: Path | None, state_dir: Path | None, redis_url: str | None) -> dict[str, Any]:
    """The options that name a store."""
    return {"--config": config, "--state-dir": state_dir, "--redis-url": redis_url}


def gateway_url(url: str | None, own: Mapping[str, Any]) -> str | None:
    """The gateway that has the runs; None if this command uses a store.

    `own`: the options for driving runs itself. Without them, a store of the environment or the settings, or the
    `penstock up` of this folder, takes precedence over PENSTOCK_URL.
    """
    named = [name for name, value in own.items() if value]
    if url and named:
        raise typer.BadParameter(f"{named[0]} is for runs that this command drives; at --url a gateway's runners drive them")
    given = url or os.environ.get("PENSTOCK_URL")
    if url or not given or named:
        return url
    from penstock.cli.serve import setup
    from penstock.running_stack import running_stack

    store = setup.serve_setup([], config=None, flags={}).settings.store
    return None if store.url or running_stack(store.state_dir) else given


def at_gateway(url: str, api_key: str | None, *, as_json: bool, quiet: bool = False) -> GatewayRuns:
    from penstock.cli.runs.at_gateway import GatewayRuns

    return GatewayRuns(url, api_key, as_json, quiet)

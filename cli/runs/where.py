"""Whether a command on runs asks a gateway or a store. What asks a gateway is loaded once it is known."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from penstock.cli.runs.at_gateway import GatewayRuns


def gateway_url(url: str | None, *, store: Mapping[str, Any]) -> str | None:
    """The gateway that has the runs; None if this command finds them in a store.

    `store`: the options of this command that name a store, or what this command starts for itself. Without them a store of the
    environment or the settings, or the `penstock up` of this folder, come before PENSTOCK_URL.
    """
    named = [name for name, value in store.items() if value]
    if url and named:
        raise typer.BadParameter(f"{named[0]} is for runs that this command drives; at --url a gateway's runners drive them")
    given = url or os.environ.get("PENSTOCK_URL")
    if url or not given or named:
        return url
    from penstock.cli.serve import plan
    from penstock.running_stack import running_stack

    found = plan.make_plan([], config=None, flags={}).settings.store
    return None if found.url or running_stack(found.state_dir) else given


def at_gateway(url: str, api_key: str | None, *, as_json: bool, quiet: bool = False) -> GatewayRuns:
    from penstock.cli.runs.at_gateway import GatewayRuns

    return GatewayRuns(url, api_key, as_json, quiet)

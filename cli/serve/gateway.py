"""`penstock gateway`: checks the settings, then becomes the gateway process."""

from __future__ import annotations

import os
import sys

import typer

from penstock.cli.options import ConfigOption, HostOption, PortOption, RedisOption
from penstock.cli.serve import plan

app = typer.Typer(add_completion=False)


@app.command()
def gateway(
    config: ConfigOption = None,
    host: HostOption = None,
    port: PortOption = None,
    redis_url: RedisOption = None,
) -> None:
    """Start a gateway alone. Needs a Redis: --redis-url or PENSTOCK_REDIS_URL."""
    flags = {"gateway.host": host, "gateway.port": port, "store.url": redis_url}
    chosen = plan.planned([], config=config, flags=flags)
    chosen.settings.access_rule()
    plan.need_store(chosen.settings)
    plan.free_port(chosen.settings.gateway.host, chosen.settings.gateway.port)
    # In place of this process: signals and exit codes are then the gateway's own.
    os.execve(sys.executable, [sys.executable, "-m", "penstock.gateway"], chosen.env)

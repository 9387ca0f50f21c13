"""`penstock runner`: checks the settings, then becomes the process that drives runs made over HTTP."""

from __future__ import annotations

import os
import sys

import typer

from penstock.cli.options import ConfigOption, RedisOption
from penstock.cli.serve import plan

app = typer.Typer(add_completion=False)


@app.command()
def runner(config: ConfigOption = None, redis_url: RedisOption = None) -> None:
    """Start a runner alone. Needs a Redis: --redis-url or PENSTOCK_REDIS_URL."""
    chosen = plan.planned([], config=config, flags={"store.url": redis_url})
    plan.need_store(chosen.settings)
    # In place of this process: signals and exit codes are then the runner's own.
    os.execve(sys.executable, [sys.executable, "-m", "penstock.runs"], chosen.env)

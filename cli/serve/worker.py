"""`penstock worker`: checks the settings, then becomes the worker process."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from penstock.cli.options import ConfigOption, RedisOption, WorkersOption
from penstock.cli.serve import plan

app = typer.Typer(add_completion=False)


@app.command()
def worker(
    models: Annotated[
        list[str] | None, typer.Argument(help="model.py, module:Name, model.onnx, name=SOURCE, or a penstock.toml.")
    ] = None,
    config: ConfigOption = None,
    workers: WorkersOption = None,
    redis_url: RedisOption = None,
) -> None:
    """Start a worker alone. Needs a Redis: --redis-url or PENSTOCK_REDIS_URL."""
    chosen = plan.planned(models or [], config=config, flags={"store.url": redis_url}, workers=workers, need_files=True)
    plan.need_models(chosen.settings)
    plan.need_store(chosen.settings)
    plan.need_linux()
    # In place of this process: signals and exit codes are then the worker's own.
    os.execve(sys.executable, [sys.executable, "-m", "penstock.workers"], chosen.env)

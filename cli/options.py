"""The options that the serving commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Fsync(StrEnum):
    ALWAYS = "always"
    EVERYSEC = "everysec"


ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="Settings file. Default: ./penstock.toml when no model is named.")
]
HostOption = Annotated[str | None, typer.Option("--host", help="Address to listen on. Default: 127.0.0.1.")]
PortOption = Annotated[
    int | None, typer.Option("--port", "-p", min=0, max=65_535, help="Port; 0 takes a free one. Default: 8080.")
]
StateDirOption = Annotated[
    Path | None, typer.Option("--state-dir", help="Where the embedded store and blobs lie. Default: .penstock here.")
]
WorkersOption = Annotated[int | None, typer.Option("--workers", min=1, help="Handler processes per model, for every model.")]
FsyncOption = Annotated[
    Fsync | None,
    typer.Option("--fsync", help="always: an accepted job survives a power cut. everysec: faster, may lose a second."),
]
RedisOption = Annotated[str | None, typer.Option("--redis-url", help="The Redis to use. Default: PENSTOCK_REDIS_URL.")]

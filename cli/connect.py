"""Which gateway a command talks to, and the options that all such commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.state import running_stack
from penstock.client.retries import RetryPolicy
from penstock.client.sync import Client

UrlOption = Annotated[
    str | None, typer.Option("--url", envvar="PENSTOCK_URL", help="The gateway's address. Default: the one running here.")
]
KeyOption = Annotated[
    str | None, typer.Option("--api-key", envvar="PENSTOCK_API_KEY", help="Key for a gateway that asks for one.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one value per line.")]
TimeoutOption = Annotated[
    float | None, typer.Option("--timeout", min=0, help="Seconds to wait for the end of the job. Default: as long as it takes.")
]


def connected(url: str | None, api_key: str | None) -> Client:
    """A client on the gateway named by flag or environment, else on this folder's `penstock up`, else on the default port."""
    # A person waits: fewer tries than a program makes.
    return Client(url or _gateway_of(Path.cwd()), api_key, retry=RetryPolicy(max_attempts=3))


def _gateway_of(folder: Path) -> str | None:
    if os.environ.get("PENSTOCK_URL"):
        return None
    stack = running_stack(folder / ".penstock")
    # A run that works alone leaves a note too, and has no gateway.
    return stack.url or None if stack else None

"""The options that several commands share, their client for `--url` and `--api-key`, and the completions for a shell."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.client.sync import Client


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
    Path | None, typer.Option("--state-dir", help="Folder of the embedded store and the blobs. Default: .penstock here.")
]
SlotsOption = Annotated[int | None, typer.Option("--slots", min=1, help="Copies of each model in a worker process.")]
FsyncOption = Annotated[
    Fsync | None,
    typer.Option("--fsync", help="always: an accepted job survives a power cut. everysec: faster, may lose a second."),
]
RedisOption = Annotated[str | None, typer.Option("--redis-url", help="The Redis to use. Default: PENSTOCK_REDIS_URL.")]
ModelsArgument = Annotated[
    list[str] | None, typer.Argument(help="model.py, module:Name, model.onnx, name=SOURCE, or a penstock.toml.")
]
UrlOption = Annotated[
    str | None, typer.Option("--url", envvar="PENSTOCK_URL", help="The gateway's address. Default: the one running here.")
]
KeyOption = Annotated[
    str | None, typer.Option("--api-key", envvar="PENSTOCK_API_KEY", help="Key for a gateway that requires one.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one value per line.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print ids alone, one per line, for other commands.")]
TimeoutOption = Annotated[
    float | None, typer.Option("--timeout", min=0, help="Seconds to wait for the job to end. Default: no limit.")
]


def connect(url: str | None, api_key: str | None) -> Client:
    """A client of the gateway of the flag or environment, else of this folder's `penstock up`, else of the default port."""
    # Imported here, because most commands with these options need no HTTP client.
    from penstock.client.retries import RetryPolicy
    from penstock.client.sync import Client

    # Fewer attempts than a program makes, because a person waits.
    return Client(url, api_key, retry=RetryPolicy(max_attempts=3))


# The completions of a shell: the models and jobs of the gateway that the command itself would use.
_WITHIN_S = 1.0
_JOBS = 50


def model_names(incomplete: str) -> list[str]:
    return _offered(incomplete, lambda client: (model["name"] for model in client.models()))


def job_ids(incomplete: str) -> list[str]:
    """The newest jobs."""
    return _offered(incomplete, lambda client: (handle.id for handle in islice(client.jobs(limit=_JOBS), _JOBS)))


def _offered(incomplete: str, names: Callable[[Client], Iterable[str]]) -> list[str]:
    """Empty if no gateway answers at once: printed text would appear in the line that is being typed."""
    from penstock.client.retries import RetryPolicy
    from penstock.client.sync import Client

    try:
        with Client(timeout_s=_WITHIN_S, retry=RetryPolicy(max_attempts=1)) as client:
            return [name for name in names(client) if name.startswith(incomplete)]
    except PenstockError:
        return []

"""penstock: durable, micro-batched model inference on Celery and Redis.

The names below are the public ones. They load on first use, so that importing `penstock` (and `penstock --help`) stays cheap
and this package imports nothing of ours at start.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.client.aio import AsyncClient
    from penstock.client.sync import Client
    from penstock.errors import PenstockError
    from penstock.handlers.array_handler import ArrayHandler
    from penstock.handlers.contract import Context, Failure, Handler, Request
    from penstock.handlers.decorator import model
    from penstock.handlers.runtimes.contract import open_runtime
    from penstock.inputs.file import File, Image
    from penstock.job import Job, JobState, Priority
    from penstock.outputs.media import Media

    __version__: str

_HOMES = {
    "ArrayHandler": "penstock.handlers.array_handler",
    "AsyncClient": "penstock.client.aio",
    "Client": "penstock.client.sync",
    "Context": "penstock.handlers.contract",
    "Failure": "penstock.handlers.contract",
    "File": "penstock.inputs.file",
    "Handler": "penstock.handlers.contract",
    "Image": "penstock.inputs.file",
    "Job": "penstock.job",
    "JobState": "penstock.job",
    "Media": "penstock.outputs.media",
    "PenstockError": "penstock.errors",
    "Priority": "penstock.job",
    "Request": "penstock.handlers.contract",
    "model": "penstock.handlers.decorator",
    "open_runtime": "penstock.handlers.runtimes.contract",
}

__all__ = [
    "ArrayHandler",
    "AsyncClient",
    "Client",
    "Context",
    "Failure",
    "File",
    "Handler",
    "Image",
    "Job",
    "JobState",
    "Media",
    "PenstockError",
    "Priority",
    "Request",
    "__version__",
    "model",
    "open_runtime",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}; it exports {', '.join(__all__)}")
    value = _version() if name == "__version__" else getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def _version() -> str:
    # Looking through what is installed takes a third of the time in which a model's process loads our modules.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("penstock")
    except PackageNotFoundError:  # a checkout on the path that was never installed
        return "0+unknown"


def __dir__() -> list[str]:
    return sorted(__all__)

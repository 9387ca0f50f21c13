"""penstock: durable, micro-batched model inference on Celery and Redis.

Users type the names below; errors are in `penstock.errors`. They load on first use, so that importing `penstock`
(and `penstock --help`) stays cheap and this package imports nothing of ours at start.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.client.aio import AsyncClient
    from penstock.client.calls import JobOptions
    from penstock.client.handles.job_handle import JobHandle
    from penstock.client.handles.job_handle_aio import AsyncJobHandle
    from penstock.client.handles.run_handle import RunHandle
    from penstock.client.handles.run_handle_aio import AsyncRunHandle
    from penstock.client.retries import RetryPolicy
    from penstock.client.runs import RunOptions
    from penstock.client.sync import Client
    from penstock.extensions.pipelines.declared import pipeline, stage
    from penstock.handlers.array_handler import ArrayHandler
    from penstock.handlers.contract import Context, Failure, Handler, Request
    from penstock.handlers.decorator import model
    from penstock.handlers.runtimes.contract import open_runtime
    from penstock.inputs.file import File, Image
    from penstock.job import Priority
    from penstock.outputs.media import Media

    __version__: str

_HOMES = {
    "ArrayHandler": "penstock.handlers.array_handler",
    "AsyncClient": "penstock.client.aio",
    "AsyncJobHandle": "penstock.client.handles.job_handle_aio",
    "AsyncRunHandle": "penstock.client.handles.run_handle_aio",
    "Client": "penstock.client.sync",
    "Context": "penstock.handlers.contract",
    "Failure": "penstock.handlers.contract",
    "File": "penstock.inputs.file",
    "Handler": "penstock.handlers.contract",
    "Image": "penstock.inputs.file",
    "JobHandle": "penstock.client.handles.job_handle",
    "JobOptions": "penstock.client.calls",
    "Media": "penstock.outputs.media",
    "Priority": "penstock.job",
    "Request": "penstock.handlers.contract",
    "RetryPolicy": "penstock.client.retries",
    "RunHandle": "penstock.client.handles.run_handle",
    "RunOptions": "penstock.client.runs",
    "model": "penstock.handlers.decorator",
    "open_runtime": "penstock.handlers.runtimes.contract",
    "pipeline": "penstock.extensions.pipelines.declared",
    "stage": "penstock.extensions.pipelines.declared",
}

__all__ = [
    "ArrayHandler",
    "AsyncClient",
    "AsyncJobHandle",
    "AsyncRunHandle",
    "Client",
    "Context",
    "Failure",
    "File",
    "Handler",
    "Image",
    "JobHandle",
    "JobOptions",
    "Media",
    "Priority",
    "Request",
    "RetryPolicy",
    "RunHandle",
    "RunOptions",
    "__version__",
    "model",
    "open_runtime",
    "pipeline",
    "stage",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(
            f"module 'penstock' has no attribute {name!r}; it exports {', '.join(__all__)}; errors: penstock.errors"
        )
    if name == "__version__":
        value = import_module("penstock.distribution").installed_version()
    else:
        value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

"""penstock: durable, micro-batched model inference on Celery and Redis.

The names below are the public ones. They load on first use, so that importing `penstock` (and `penstock --help`) stays cheap
and this package imports nothing of ours at start.
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
    from penstock.client.problems import (
        AnswerTimeout,
        GatewayUnreachable,
        JobCancelled,
        JobEnded,
        JobExpired,
        JobFailed,
        RunTimeout,
        StreamRestarted,
        UnexpectedAnswer,
        WaitTimeout,
    )
    from penstock.client.retries import RetryPolicy
    from penstock.client.runs import RowFailed, RunEnded, RunOptions
    from penstock.client.sync import Client
    from penstock.errors import (
        BadRequest,
        CallerError,
        CapacityError,
        ConfigError,
        Conflict,
        Gone,
        HandlerError,
        InvalidInput,
        KeyReused,
        NotFound,
        NoWorker,
        Overloaded,
        PenstockError,
        StorageFull,
        StoreUnavailable,
        TooLarge,
        Unauthorized,
        UnsupportedMedia,
        WrongRole,
    )
    from penstock.extensions.pipelines.declared import pipeline, stage
    from penstock.handlers.array_handler import ArrayHandler
    from penstock.handlers.contract import Context, Failure, Handler, Request
    from penstock.handlers.decorator import model
    from penstock.handlers.runtimes.contract import open_runtime
    from penstock.inputs.file import File, Image
    from penstock.job import Job, JobState, Priority
    from penstock.outputs.media import Media

    __version__: str

_HOMES = {
    "AnswerTimeout": "penstock.client.problems",
    "ArrayHandler": "penstock.handlers.array_handler",
    "AsyncClient": "penstock.client.aio",
    "AsyncJobHandle": "penstock.client.handles.job_handle_aio",
    "AsyncRunHandle": "penstock.client.handles.run_handle_aio",
    "BadRequest": "penstock.errors",
    "CallerError": "penstock.errors",
    "CapacityError": "penstock.errors",
    "Client": "penstock.client.sync",
    "ConfigError": "penstock.errors",
    "Conflict": "penstock.errors",
    "Context": "penstock.handlers.contract",
    "Failure": "penstock.handlers.contract",
    "File": "penstock.inputs.file",
    "GatewayUnreachable": "penstock.client.problems",
    "Gone": "penstock.errors",
    "Handler": "penstock.handlers.contract",
    "HandlerError": "penstock.errors",
    "Image": "penstock.inputs.file",
    "InvalidInput": "penstock.errors",
    "Job": "penstock.job",
    "JobCancelled": "penstock.client.problems",
    "JobEnded": "penstock.client.problems",
    "JobExpired": "penstock.client.problems",
    "JobFailed": "penstock.client.problems",
    "JobHandle": "penstock.client.handles.job_handle",
    "JobOptions": "penstock.client.calls",
    "JobState": "penstock.job",
    "KeyReused": "penstock.errors",
    "Media": "penstock.outputs.media",
    "NoWorker": "penstock.errors",
    "NotFound": "penstock.errors",
    "Overloaded": "penstock.errors",
    "PenstockError": "penstock.errors",
    "Priority": "penstock.job",
    "Request": "penstock.handlers.contract",
    "RetryPolicy": "penstock.client.retries",
    "RowFailed": "penstock.client.runs",
    "RunEnded": "penstock.client.runs",
    "RunHandle": "penstock.client.handles.run_handle",
    "RunOptions": "penstock.client.runs",
    "RunTimeout": "penstock.client.problems",
    "StorageFull": "penstock.errors",
    "StoreUnavailable": "penstock.errors",
    "StreamRestarted": "penstock.client.problems",
    "TooLarge": "penstock.errors",
    "Unauthorized": "penstock.errors",
    "UnexpectedAnswer": "penstock.client.problems",
    "UnsupportedMedia": "penstock.errors",
    "WaitTimeout": "penstock.client.problems",
    "WrongRole": "penstock.errors",
    "model": "penstock.handlers.decorator",
    "open_runtime": "penstock.handlers.runtimes.contract",
    "pipeline": "penstock.extensions.pipelines.declared",
    "stage": "penstock.extensions.pipelines.declared",
}

__all__ = [
    "AnswerTimeout",
    "ArrayHandler",
    "AsyncClient",
    "AsyncJobHandle",
    "AsyncRunHandle",
    "BadRequest",
    "CallerError",
    "CapacityError",
    "Client",
    "ConfigError",
    "Conflict",
    "Context",
    "Failure",
    "File",
    "GatewayUnreachable",
    "Gone",
    "Handler",
    "HandlerError",
    "Image",
    "InvalidInput",
    "Job",
    "JobCancelled",
    "JobEnded",
    "JobExpired",
    "JobFailed",
    "JobHandle",
    "JobOptions",
    "JobState",
    "KeyReused",
    "Media",
    "NoWorker",
    "NotFound",
    "Overloaded",
    "PenstockError",
    "Priority",
    "Request",
    "RetryPolicy",
    "RowFailed",
    "RunEnded",
    "RunHandle",
    "RunOptions",
    "RunTimeout",
    "StorageFull",
    "StoreUnavailable",
    "StreamRestarted",
    "TooLarge",
    "Unauthorized",
    "UnexpectedAnswer",
    "UnsupportedMedia",
    "WaitTimeout",
    "WrongRole",
    "__version__",
    "model",
    "open_runtime",
    "pipeline",
    "stage",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}; it exports {', '.join(__all__)}")
    if name == "__version__":
        value = import_module("penstock.distribution").installed_version()
    else:
        value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

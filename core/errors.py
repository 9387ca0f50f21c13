"""Every error penstock raises, by whose fault it is.

PenstockError
├── CallerError            the request cannot be served as it stands; sending it again does not help
│   ├── BadRequest         unreadable: not JSON, too deep, malformed id or parameter
│   │   ├── MalformedId
│   │   └── BadParameter   names the member that is wrong (`param`)
│   ├── InvalidInput       readable, but not what the model's schema asks for (carries `errors`)
│   ├── TooLarge           over a size limit
│   ├── UnsupportedMedia   a media type the model does not take
│   ├── NotFound           no such model, version or job
│   │   ├── UnknownModel       names the model
│   │   └── UnknownVersion     names the model and the version
│   ├── Gone               it existed; its retention is over
│   ├── Conflict           the job's state forbids it (cancel after the end, id taken)
│   ├── KeyReused          the idempotency key belongs to another request
│   ├── Unauthorized       no API key, or not one of ours
│   ├── WrongRole          the API key is not for this
│   └── ConfigError        settings or model files that cannot be used (carries every fault found)
├── CapacityError          right request, wrong moment; trying again helps (carries `retry_after_s`)
│   ├── Overloaded         the model's queue is at its limit, or the deadline cannot be met
│   │   ├── DeadlineUnlikely   the job would most likely end after its deadline
│   │   ├── RateLimited    this caller sends too many requests
│   │   └── QuotaSpent     this owner has too many jobs or runs under way, or too many files
│   ├── StorageFull        the disk has no room beyond what is kept for the store
│   ├── StoreUnavailable   Redis cannot be reached or cannot write
│   └── NoWorker           answer-now route and no live worker
├── HandlerError           the model's code failed on this item
│   ├── HandlerContractError   wrong count or type returned by a stage
│   ├── HandlerTimeout     ran past its limit
│   └── HandlerLoadError   the model could not be loaded
│       ├── BadArchive     a model archive that is unsafe, damaged, or lacks what it names
│       └── DiskFull       the models' cache has no room for the model, on its disk or within its limit
├── InputUrlFailed         a file that an input names by URL cannot be fetched now
└── InternalError          ours; the message ends with "this is a bug"

What only a client raises is defined beside the client and has its name here too, loaded on first use: JobFailed, JobCancelled
and JobExpired (a JobEnded), RunEnded, RowFailed, WaitTimeout, RunTimeout, AnswerTimeout, StreamRestarted, UnexpectedAnswer,
and GatewayUnreachable (a CapacityError). Their tree is drawn in `penstock.client.problems`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from penstock.client.problems import AnswerTimeout as AnswerTimeout
    from penstock.client.problems import GatewayUnreachable as GatewayUnreachable
    from penstock.client.problems import JobCancelled as JobCancelled
    from penstock.client.problems import JobEnded as JobEnded
    from penstock.client.problems import JobExpired as JobExpired
    from penstock.client.problems import JobFailed as JobFailed
    from penstock.client.problems import RunTimeout as RunTimeout
    from penstock.client.problems import StreamRestarted as StreamRestarted
    from penstock.client.problems import UnexpectedAnswer as UnexpectedAnswer
    from penstock.client.problems import WaitTimeout as WaitTimeout
    from penstock.client.runs import RowFailed as RowFailed
    from penstock.client.runs import RunEnded as RunEnded

CLIENT_ERRORS = {
    **dict.fromkeys(
        (
            "AnswerTimeout",
            "GatewayUnreachable",
            "JobCancelled",
            "JobEnded",
            "JobExpired",
            "JobFailed",
            "RunTimeout",
            "StreamRestarted",
            "UnexpectedAnswer",
            "WaitTimeout",
        ),
        "penstock.client.problems",
    ),
    **dict.fromkeys(("RowFailed", "RunEnded"), "penstock.client.runs"),
}

_NO_SPACE = os.strerror(errno.ENOSPC)


def is_disk_full(error: BaseException) -> bool:
    """Whether a write was refused because a disk, or this user's share of it, has no room left: here or at the store."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    # A store sends only its text; a library that writes files may raise an error of its own.
    # `raise error from error` makes an error its own cause.
    cause = error.__cause__ if error.__cause__ is not error else None
    return _NO_SPACE in str(error) or (cause is not None and is_disk_full(cause))


class PenstockError(Exception):
    """Base of all errors. `kind` is the stable code to match on; `retryable` says whether sending the same again can help."""

    kind: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class CallerError(PenstockError):
    """The request cannot be served as it stands; sending it again does not help."""

    kind = "caller_error"


class BadRequest(CallerError):
    """The request cannot be read: not JSON, too deep, a malformed id or parameter."""

    kind = "bad_request"


class MalformedId(BadRequest):
    kind = "malformed_id"


class BadParameter(BadRequest):
    """`param` is the member of the request that is wrong."""

    def __init__(self, message: str, *, param: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.param = param


class InvalidInput(CallerError):
    """The input does not fit the model's schema. `errors` holds one `{"pointer": JSON Pointer, "detail": text}` per fault."""

    kind = "invalid_input"

    def __init__(self, message: str, *, errors: Sequence[dict[str, Any]] = (), hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.errors = list(errors)


class TooLarge(CallerError):
    """The body, an output or a file is over a size limit."""

    kind = "too_large"


class UnsupportedMedia(CallerError):
    """The model does not take this media type."""

    kind = "unsupported_media_type"


class NotFound(CallerError):
    """There is no such model, version, job or run, or it is another owner's."""

    kind = "not_found"


class UnknownModel(NotFound):
    def __init__(self, message: str, *, model: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.model = model


class UnknownVersion(NotFound):
    def __init__(self, message: str, *, model: str = "", version: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.model = model
        self.version = version


class Gone(CallerError):
    """It existed; its retention is over."""

    kind = "gone"


class Conflict(CallerError):
    """The state of the job, run or model forbids it, such as a cancel after the end."""

    kind = "conflict"


class KeyReused(CallerError):
    """The idempotency key belongs to another request."""

    kind = "idempotency_key_reused"


class Unauthorized(CallerError):
    """The request has no API key, or none that is valid."""

    kind = "unauthorized"


class WrongRole(CallerError):
    """The API key lacks the role that this takes."""

    kind = "wrong_role"


class ConfigError(CallerError):
    """Settings or model files cannot be used. `faults` lists every fault, one sentence each, so that one run shows them all."""

    kind = "config_error"

    def __init__(self, message: str, *, faults: Sequence[str] = (), hint: str | None = None) -> None:
        super().__init__("\n".join([message, *(f"  - {fault}" for fault in faults)]), hint=hint)
        self.faults = list(faults)


class CapacityError(PenstockError):
    """The request is right, the moment wrong. `retry_after_s` is when trying again is likely to succeed, in seconds."""

    kind = "capacity"
    retryable = True

    def __init__(self, message: str, *, retry_after_s: float = 1.0, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class Overloaded(CapacityError):
    """The model's queue is at its limit, or the job would most likely miss its deadline."""

    kind = "overloaded"


class DeadlineUnlikely(Overloaded):
    """The kind stays `overloaded`: callers match on it, and only the metrics tell the two refusals apart."""


class RateLimited(Overloaded):
    kind = "rate_limited"


class QuotaSpent(Overloaded):
    kind = "quota_spent"


class StoreUnavailable(CapacityError):
    """Redis cannot be reached or cannot write."""

    kind = "store_unavailable"


class StorageFull(CapacityError):
    """The disk has no room beyond what is kept for the store."""

    kind = "storage_full"


class NoWorker(CapacityError):
    """No worker is ready to serve the model, and the caller wanted the answer at once."""

    kind = "no_worker"


class HandlerError(PenstockError):
    """The model's code failed on this item; other items of its batch are not affected."""

    kind = "handler_error"


class HandlerContractError(HandlerError):
    kind = "handler_contract"


class HandlerTimeout(HandlerError):
    kind = "timeout"


class HandlerLoadError(HandlerError):
    kind = "load_failed"


class BadArchive(HandlerLoadError):
    kind = "bad_archive"


class DiskFull(HandlerLoadError):
    kind = "load_failed"


class InputUrlFailed(PenstockError):
    kind = "input_url_failed"
    retryable = True


class InternalError(PenstockError):
    kind = "internal"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(f"{message}; this is a bug", hint=hint)


# A type checker would take a module with this function for one that has every name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> type[PenstockError]:
        if name not in CLIENT_ERRORS:
            raise AttributeError(f"module 'penstock.errors' has no attribute {name!r}")
        return getattr(import_module(CLIENT_ERRORS[name]), name)

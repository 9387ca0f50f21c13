"""Responses to failed requests: one table from error class to status code, and the problem+json body (RFC 9457)."""

from __future__ import annotations

import math
import random
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from typing import Any

import orjson

from penstock import errors
from penstock.errors import (
    BadRequest,
    CallerError,
    CapacityError,
    ConfigError,
    Conflict,
    Gone,
    HandlerTimeout,
    InputUrlFailed,
    InternalError,
    InvalidInput,
    KeyReused,
    NotFound,
    Overloaded,
    PenstockError,
    StorageFull,
    StoreUnavailable,
    TooLarge,
    Unauthorized,
    UnsupportedMedia,
    WrongRole,
    is_disk_full,
)
from penstock.extension import installed
from penstock.gateway.asgi.negotiation import HeadersTooLarge, trace_header
from penstock.gateway.asgi.ranges import RangeNotSatisfiable
from penstock.job import JobId, JobState
from penstock.outputs.response_head import PREDICTION_EXCEPTION, split_prediction_message
from penstock.trace_context import TraceContext

Headers = list[tuple[bytes, bytes]]

STORE_UNREACHABLE = "The job store cannot be reached or refuses writes."
PROBLEM_JSON = b"application/problem+json"
JITTER = 0.2
MAX_RETRY_AFTER_S = 120.0
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class MethodNotAllowed(CallerError):
    """`allow` lists the methods that the path supports."""

    kind = "method_not_allowed"

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class NotSupported(CallerError):
    """A feature of a foreign protocol that penstock lacks."""

    kind = "not_supported"


class NotAcceptable(CallerError):
    """No answer has a media type that the caller accepts."""

    kind = "not_acceptable"


class TooSlow(CallerError):
    """A message did not arrive in time. The connection itself answers slow HTTP requests."""

    kind = "too_slow"


class WrongHost(CallerError):
    kind = "wrong_host"


class GatewayBusy(CapacityError):
    kind = "gateway_busy"


class CrossSite(CallerError):
    """A request that a browser may have sent for a page of another site."""

    kind = "cross_site"


class NotReady(CapacityError):
    """A probe's negative response; `missing` says what is missing, by model or part."""

    kind = "not_ready"

    def __init__(self, message: str, *, missing: list[dict[str, str]]) -> None:
        super().__init__(message)
        self.errors = missing


class NoAnswerYet(PenstockError):
    """The time limit of an answer-now request passed; its job goes on until its own deadline."""

    kind = "sync_timeout"

    def __init__(self, message: str, *, job: JobId) -> None:
        super().__init__(message, hint=f"The job may still end: GET /v1/jobs/{job}")
        self.job = job


class EndedWithoutOutput(PenstockError):
    """A job ended without an output. Its reader gets this `code` and `retryable`."""

    kind = "failed"

    def __init__(self, message: str, *, job: JobId, state: JobState, code: str = "", retryable: bool = False) -> None:
        super().__init__(message)
        self.job = job
        self.state = state
        self.code = code or "failed"
        self.again = retryable


class NoResult(EndedWithoutOutput):
    """A reader asked for the result of a job that ended without one: 409, whatever the job's end (D53)."""


class ForeignRefusal(PenstockError):
    """A refusal that a foreign protocol words itself; `status` is the response's."""

    kind = "refused"

    def __init__(self, status: int, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


STATUS: dict[type[PenstockError], int] = {
    BadRequest: 400,
    Unauthorized: 401,
    WrongRole: 403,
    NotFound: 404,
    MethodNotAllowed: 405,
    NotAcceptable: 406,
    TooSlow: 408,
    Conflict: 409,
    Gone: 410,
    TooLarge: 413,
    UnsupportedMedia: 415,
    RangeNotSatisfiable: 416,
    CrossSite: 403,
    NotSupported: 501,
    WrongHost: 421,
    InvalidInput: 422,
    KeyReused: 422,
    Overloaded: 429,
    HeadersTooLarge: 431,
    CallerError: 400,
    CapacityError: 503,
    StorageFull: 507,
    HandlerTimeout: 504,
    NoAnswerYet: 504,
    PenstockError: 500,
}

# The codes of the caller's errors that model code may raise. Settings that a model cannot use are not the caller's fault.
_KINDS = {one.kind for one in vars(errors).values() if isinstance(one, type) and issubclass(one, CallerError)}
INPUT_CODES = frozenset(_KINDS - {ConfigError.kind} | {InputUrlFailed.kind})
# The status of an answer-now request by the code of its failed job. Other codes that blame the input are 422: a 401, 404 or 409
# would seem to concern the key, the model or the job. All others are failures of the model: 500.
FAILURE_STATUS = {
    "bad_request": 400,
    "invalid_input": 422,
    "unsupported_media_type": 415,
    "too_large": 413,
    "oom": 507,
    "input_url_failed": 422,
    "timeout": 504,
    "not_explainable": 501,
    "load_failed": 503,
}
# A model's own codes with these prefixes blame the input, such as bad_image or invalid_date.
_OF_INPUTS = ("bad_", "invalid_")

TITLES = {
    "bad_request": "The request cannot be read",
    "malformed_id": "This is not a job id",
    "unauthorized": "A valid API key is required",
    "wrong_role": "The API key lacks the role for this",
    "not_found": "It does not exist",
    "gone": "It existed, and its retention is over",
    "method_not_allowed": "The path does not support this method",
    "not_acceptable": "The answer has no such media type",
    "conflict": "The job's state forbids it",
    "cancelled": "The job was cancelled",
    "expired": "The job's deadline passed before it finished",
    "too_slow": "The request did not arrive in time",
    "too_large": "The body is too large",
    "unsupported_media_type": "The media type is not accepted",
    "range_not_satisfiable": "The range begins behind the end of the content",
    "not_supported": "penstock does not have this part of the protocol",
    "cross_site": "A page of another site sent this",
    "wrong_host": "This gateway does not answer to that host name",
    "invalid_input": "The model cannot take this input",
    "idempotency_key_reused": "The idempotency key belongs to another request",
    "overloaded": "The model cannot accept more jobs now",
    "rate_limited": "Too many requests",
    "quota_spent": "The owner has too many open jobs, runs or files",
    "storage_full": "The disk has no room",
    "headers_too_large": "The headers are too large or too many",
    "gateway_busy": "The gateway serves too many requests at once",
    "store_unavailable": "The job store cannot be reached",
    "no_worker": "No worker is ready to serve the model",
    "not_ready": "Not ready",
    "sync_timeout": "No answer within the time limit",
    "timeout": "The model ran past its time limit",
    "input_url_failed": "A file that the input names by URL could not be fetched",
    "oom": "The item does not fit the device's memory",
    "poison": "The job was given up because it crashed its workers",
    "worker_lost": "The job was given up because its workers were lost",
    "handler_error": "The model failed on this input",
    "stream_too_large": "The model yielded more than a job may have",
    "not_explainable": "The model gives no explanations",
    "handler_contract": "The model returned an output of the wrong count or type",
    "load_failed": "The model could not be loaded",
    "failed": "The job failed",
    "refused": "The request was refused",
    "internal": "Internal error of the gateway",
}


@cache
def titles() -> Mapping[str, str]:
    """The title of each code: ours, and those of the errors that extensions raise."""
    return TITLES | {code: title for extension in installed() for code, title in extension.problems.items()}


@dataclass(frozen=True, slots=True)
class Explanation:
    """`status`: the code's HTTP status. `cause`: when it is sent. `action`: what to do, and who does it."""

    status: str
    cause: str
    action: str


@dataclass(frozen=True, slots=True)
class ProblemResponse:
    """The response to a failed request, ready to be sent."""

    status: int
    body: bytes
    headers: Headers = field(default_factory=list)


def status_of(error: PenstockError) -> int:
    if isinstance(error, EndedWithoutOutput):
        return _ended_status(error)
    if isinstance(error, ForeignRefusal):
        return error.status
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def is_of_input(code: str) -> bool:
    """Whether the code of a failed job blames the input: a caller's error, or one of a model's own codes for it."""
    return code in INPUT_CODES or (code.startswith(_OF_INPUTS) and code not in titles())


def failure_status(code: str) -> int:
    """The status of an answer for a job that failed with this code, on routes that wait for the output."""
    return FAILURE_STATUS.get(code, 422 if is_of_input(code) else 500)


def retry_after(drain_s: float, *, draw: float) -> int:
    """Whole seconds for a Retry-After header, from 1 to 120; `draw` is uniform in [0, 1).

    `drain_s` is spread by 20 % either way, so that refused callers do not retry all at once.
    """
    spread = drain_s * (1.0 - JITTER + 2.0 * JITTER * draw)
    return math.ceil(min(max(spread, 1.0), MAX_RETRY_AFTER_S))


def request_id_of(sent: bytes | None) -> str:
    """The caller's own id if it is safe to print, otherwise a new one."""
    if sent is not None and _REQUEST_ID.fullmatch(sent):
        return sent.decode("ascii")
    return uuid.uuid4().hex


def render(error: PenstockError, *, request_id: str, instance: str, trace: TraceContext | None = None) -> ProblemResponse:
    status = status_of(error)
    members = members_of(error)
    code = members.pop("code")
    page = _page_of_end(code) if isinstance(error, EndedWithoutOutput) else code
    content: dict[str, Any] = {
        "type": f"/problems/{page}",
        "title": titles().get(page, HTTPStatus(status).phrase),
        "status": status,
        "code": code,
        **members,
        "instance": instance,
        "request_id": request_id,
        "trace_id": trace.trace_id if trace else None,
    }
    body = orjson.dumps({key: value for key, value in content.items() if value is not None})
    return ProblemResponse(status, body, _headers(error, body, request_id) + trace_header(trace))


def internal_error() -> InternalError:
    """Body of an internal error: the request id, never the cause."""
    return InternalError("unexpected")


def members_of(error: PenstockError) -> dict[str, Any]:
    """The members of an error's problem: code, detail and others. Members without a value are None."""
    job = getattr(error, "job", None)
    members: dict[str, Any] = {
        "code": error.code if isinstance(error, EndedWithoutOutput) else error.kind,
        "detail": error.message,
        "hint": error.hint,
        "job": str(job) if job else None,
        "retryable": error.again if isinstance(error, EndedWithoutOutput) else error.retryable,
        "errors": getattr(error, "errors", None) or None,
    }
    return members | _redacted(error)


def refusal_text(members: Mapping[str, Any]) -> str:
    """A refusal as one text: why, and what to do next. `members` are the problem's."""
    hint = members.get("hint")
    return str(members["detail"]) if hint is None else f"{members['detail'].rstrip('.')}. {hint}"


def _redacted(error: PenstockError) -> dict[str, Any]:
    """Replacements for texts that may hold internal names; the log has the original, by request id."""
    if isinstance(error, InternalError):
        return {"code": "internal", "detail": "The gateway failed on this request.", "hint": "Its log has the request_id."}
    if isinstance(error, StoreUnavailable) and is_disk_full(error):
        return {"detail": "The disk of the server or of its job store is full.", "hint": "Its operator has to free some space."}
    if isinstance(error, StoreUnavailable):
        return {
            "detail": STORE_UNREACHABLE,
            "hint": "Try again after Retry-After; `penstock doctor` says what is wrong.",
        }
    return {}


def _ended_status(error: EndedWithoutOutput) -> int:
    if isinstance(error, NoResult) or error.state is JobState.CANCELLED:
        return 409
    if error.state is JobState.EXPIRED:
        return 504
    if error.code == PREDICTION_EXCEPTION:
        # A handler may name other statuses; our own routes only show whose fault it was.
        return 422 if split_prediction_message(error.message)[1] < 500 else 500
    return failure_status(error.code)


def _page_of_end(code: str) -> str:
    """A model may fail items with codes of its own, or with the gateway's codes; all of these share a page and a title."""
    if code in FAILURE_STATUS or (code in titles() and not is_of_input(code)):
        return code
    return "invalid_input" if is_of_input(code) else "handler_error"


def _headers(error: PenstockError, body: bytes, request_id: str) -> Headers:
    headers = [
        (b"content-type", PROBLEM_JSON),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", request_id.encode("ascii")),
    ]
    if isinstance(error, CapacityError):
        headers.append((b"retry-after", b"%d" % retry_after(error.retry_after_s, draw=random.random())))
    if isinstance(error, Unauthorized):
        headers.append((b"www-authenticate", b'Bearer realm="penstock"'))
    if isinstance(error, RangeNotSatisfiable):
        headers.append((b"content-range", b"bytes */%d" % error.size))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", error.allow.encode("ascii")))
    if isinstance(error, (EndedWithoutOutput, NoAnswerYet)):
        headers.append((b"x-penstock-job", str(error.job).encode("ascii")))
        headers.append((b"x-should-retry", b"false"))
    return headers

"""The errors that a caller may get: the gateway's problem bodies as `penstock.errors`, and the client's own errors.

CapacityError
└── GatewayUnreachable     no answer: not started, wrong address, network
PenstockError
├── JobFailed              the job ran and failed; also a HandlerError
├── JobCancelled           a caller cancelled the job
├── JobExpired             the job's deadline passed before its end
├── RunTimeout             the caller's timeout passed; the run goes on. Also a TimeoutError
├── WaitTimeout            the caller's timeout passed; the job goes on. Also a TimeoutError
├── AnswerTimeout          `predict` had no answer within its deadline. Also a TimeoutError
└── UnexpectedAnswer       the answer does not come from a penstock gateway
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from penstock import errors

if TYPE_CHECKING:
    from penstock.client.views import JobView


# An input may violate its schema in thousands of places. The message shows the first few, `errors` has all.
_SHOWN_FAULTS = 5


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem body (RFC 9457) or a job's error. `code` is stable, `hint` names the next command or setting."""

    code: str
    detail: str
    hint: str = ""
    title: str = ""
    status: int = 0
    retryable: bool = False
    job: str = ""
    request_id: str = ""
    errors: tuple[Mapping[str, Any], ...] = ()
    body: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def message(self) -> str:
        """What went wrong, where in the input, and what to do, as one text."""
        places = [f"{fault.get('pointer') or '/'}: {fault.get('detail', '')}" for fault in self.errors[:_SHOWN_FAULTS]]
        more = [f"and {len(self.errors) - _SHOWN_FAULTS} more"] if len(self.errors) > _SHOWN_FAULTS else []
        what = f"{self.detail} ({', '.join(places + more)})" if places else self.detail
        joint = " " if what.endswith(".") else "; "
        return f"{what}{joint}{self.hint}" if self.hint else what


class GatewayUnreachable(errors.CapacityError):
    """No gateway answers at this address, or the connection broke before the answer."""

    kind = "gateway_unreachable"


class StreamRestarted(errors.PenstockError):
    """The job began again while its chunks were read; earlier chunks are void."""

    kind, retryable = "stream_restarted", True


class UnexpectedAnswer(errors.PenstockError):
    """The answer is not from a penstock gateway, or from another version."""

    kind = "unexpected_answer"


class WaitTimeout(errors.PenstockError, TimeoutError):
    """The job has not ended within `timeout_s`. `job`: the job as last seen; call the same handle again to wait longer."""

    kind = "wait_timeout"
    retryable = True

    def __init__(self, message: str, *, job: JobView, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.job = job


class RunTimeout(errors.PenstockError, TimeoutError):
    """The run has not ended within `timeout_s`. It continues; wait again with the same handle."""

    kind = "wait_timeout"
    retryable = True


class AnswerTimeout(errors.PenstockError, TimeoutError):
    """An answer-now call had no answer in time. `problem.job` names the job, which may still be running."""

    kind = "sync_timeout"


class JobEnded(errors.PenstockError):
    """A job ended without a result. `problem` says why, `job` is its last record."""

    kind = "job_ended"

    def __init__(self, message: str, *, job: JobView, problem: Problem, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.job = job
        self.problem = problem


class JobFailed(JobEnded, errors.HandlerError):
    """The model failed on the input, or the job was given up; `problem.code` says how."""

    kind = "job_failed"


class JobCancelled(JobEnded):
    """A caller cancelled the job."""

    kind = "job_cancelled"


class JobExpired(JobEnded):
    """The job's deadline passed before it ended."""

    kind = "job_expired"


_ENDS: dict[str, type[JobEnded]] = {"failed": JobFailed, "cancelled": JobCancelled, "expired": JobExpired}

_BY_CODE: dict[str, type[errors.PenstockError]] = {
    kind.kind: kind
    for kind in (
        errors.BadRequest,
        errors.MalformedId,
        errors.InvalidInput,
        errors.TooLarge,
        errors.UnsupportedMedia,
        errors.NotFound,
        errors.Gone,
        errors.Conflict,
        errors.KeyReused,
        errors.Unauthorized,
        errors.WrongRole,
        errors.Overloaded,
        errors.RateLimited,
        errors.QuotaSpent,
        errors.StorageFull,
        errors.StoreUnavailable,
        errors.NoWorker,
        errors.HandlerError,
        errors.HandlerContractError,
        errors.HandlerTimeout,
        errors.HandlerLoadError,
        errors.InternalError,
    )
}
# For unknown codes, the status says whose fault it was.
_BY_STATUS: dict[int, type[errors.PenstockError]] = {
    400: errors.BadRequest,
    401: errors.Unauthorized,
    403: errors.WrongRole,
    404: errors.NotFound,
    409: errors.Conflict,
    410: errors.Gone,
    413: errors.TooLarge,
    415: errors.UnsupportedMedia,
    422: errors.InvalidInput,
    429: errors.Overloaded,
    500: errors.InternalError,
    503: errors.CapacityError,
    504: AnswerTimeout,
}


def problem_of(body: Mapping[str, Any], *, status: int = 0) -> Problem:
    """A problem body as a value, or a job's `error`, which has `message` in the place of `detail`."""
    faults = body.get("errors")
    return Problem(
        code=_text(body, "code") or "error",
        detail=_text(body, "detail") or _text(body, "message") or _text(body, "title") or f"status {status}",
        hint=_text(body, "hint"),
        title=_text(body, "title"),
        status=status or int(body.get("status") or 0),
        retryable=bool(body.get("retryable", False)),
        job=_text(body, "job"),
        request_id=_text(body, "request_id"),
        errors=tuple(fault for fault in faults if isinstance(fault, dict)) if isinstance(faults, list) else (),
        body=body,
    )


def error_from(status: int, headers: Mapping[str, str], content: bytes) -> errors.PenstockError:
    """The error for an answer of status 400 or more. Its `kind` is the body's code, its `problem` the body itself."""
    body = _problem_body(content)
    if body is None:
        return _foreign(status, headers, content)
    problem = problem_of(body, status=status)
    error = _built(problem, headers)
    # Set on the instance, because codes are finer than classes (`unknown_model` is a NotFound).
    vars(error).update(kind=problem.code, problem=problem, retryable=bool(body.get("retryable", error.retryable)))
    return error


def ended_error(job: JobView, problem: Problem | None = None) -> JobEnded:
    """The error for a job that ended as failed, cancelled or expired."""
    known = problem or job.error or Problem(code=job.status, detail=f"the job ended as {job.status}")
    # A handler's own message does not name the job, and the next command needs its id.
    raised = f"see where: penstock jobs show {job.id} --traceback" if known.code == "handler_error" else None
    return _ENDS.get(job.status, JobEnded)(
        f"job {job.id} {job.status}: {known.message}", job=job, problem=known, hint=known.hint or raised
    )


def retry_after_s(headers: Mapping[str, str], *, now: datetime | None = None) -> float | None:
    """The seconds that either form of Retry-After asks to wait; None without that header."""
    text = headers.get("retry-after", "").strip()
    if not text:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        return _until(text, now or datetime.now(UTC))


def _until(text: str, now: datetime) -> float | None:
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now.timestamp())


def _built(problem: Problem, headers: Mapping[str, str]) -> errors.PenstockError:
    kind = _BY_CODE.get(problem.code) or _BY_STATUS.get(problem.status, errors.PenstockError)
    hint = problem.hint or None
    if issubclass(kind, errors.CapacityError):
        return kind(problem.message, retry_after_s=retry_after_s(headers) or 1.0, hint=hint)
    if issubclass(kind, errors.InvalidInput):
        return kind(problem.message, errors=[dict(fault) for fault in problem.errors], hint=hint)
    return kind(problem.message, hint=hint)


def _foreign(status: int, headers: Mapping[str, str], content: bytes) -> errors.PenstockError:
    """The error for a body that no penstock gateway wrote, such as a proxy's page."""
    start = " ".join(content[:200].decode("utf-8", "replace").split())
    message = f"status {status} without a problem body: {start or 'nothing'}"
    if status in (429, 502, 503, 504):
        return errors.CapacityError(
            message, retry_after_s=retry_after_s(headers) or 1.0, hint="a proxy may have answered; try again"
        )
    return UnexpectedAnswer(message, hint="is this the address of a penstock gateway?")


def _problem_body(content: bytes) -> dict[str, Any] | None:
    try:
        body = json.loads(content)
    except ValueError:
        return None
    return body if isinstance(body, dict) and ("code" in body or "detail" in body) else None


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    return value if isinstance(value, str) else ""

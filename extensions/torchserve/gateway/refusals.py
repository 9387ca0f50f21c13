"""How TorchServe words the refusal of a prediction, or its end without an output. Pure."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from penstock.errors import NoWorker, UnknownModel
from penstock.extensions.torchserve.gateway.errors import TorchServeError, torchserve_error
from penstock.extensions.torchserve.gateway.replies import FIXED_HEADERS, pretty
from penstock.extensions.torchserve.gateway.routes import WORKFLOW, TorchServeTarget
from penstock.gateway.asgi.problems import EndedWithoutOutput, Headers, NoAnswerYet, ProblemResponse, failure_status
from penstock.gateway.asgi.wire import WORDING, Scope
from penstock.job import JobState
from penstock.outputs.response_head import PREDICTION_EXCEPTION, split_prediction_message

_FAILED = "InternalServerException"
_LATE = "RequestTimeoutException"
_WORKER_DIED = (500, _FAILED, "Worker died.")
# What TorchServe answers where a handler or its worker failed, by the code of the job that failed. Other codes are those of
# penstock's own handlers, and keep their message.
_ENDS = {
    "handler_error": (503, _FAILED, "Prediction failed"),
    "handler_contract": (503, _FAILED, "Invalid model predict output"),
    "bad_output_type": (503, _FAILED, "Invalid model predict output"),
    "bad_output_length": (503, _FAILED, "number of batch response mismatched"),
    "bad_output_value": (503, _FAILED, "Unsupported model output data type."),
    "oom": (507, _FAILED, "Out of resources"),
    "timeout": _WORKER_DIED,
    "poison": _WORKER_DIED,
    "worker_lost": _WORKER_DIED,
}
_NO_WORKER = (
    "{subject} has no worker to serve inference request. Please use scale workers API to add workers. If this is a sequence "
    "inference, please check if it is closed, or expired; or exceeds maxSequenceJobQueueSize"
)
_CHANGED = frozenset({b"content-type", b"content-length"})


def prediction_error(error: Exception, target: TorchServeTarget) -> TorchServeError:
    """The refusal of a request for this target, as TorchServe words it."""
    if target.route == WORKFLOW and isinstance(error, UnknownModel):
        return TorchServeError(404, "WorkflowNotFoundException", f"Workflow not found: {error.model}")
    if isinstance(error, EndedWithoutOutput):
        return _end_error(error, target)
    if isinstance(error, NoWorker):
        return TorchServeError(503, "ServiceUnavailableException", no_worker_text(target.model, target.version))
    if isinstance(error, NoAnswerYet):
        return TorchServeError(504, _LATE, error.message)
    return torchserve_error(error)


def no_worker_text(model: str, version: str) -> str:
    """The quotes are TorchServe's own."""
    return _NO_WORKER.format(subject=f'Model "{model}" Version {version}"' if version else f'Model "{model}"')


def _end_error(error: EndedWithoutOutput, target: TorchServeTarget) -> TorchServeError:
    if error.state is JobState.EXPIRED:
        return TorchServeError(504, _LATE, error.message)
    if error.state is JobState.CANCELLED:
        return TorchServeError(409, "ConflictStatusException", error.message)
    if error.code in _ENDS:
        return TorchServeError(*_ENDS[error.code])
    if error.code == PREDICTION_EXCEPTION:
        message, status = split_prediction_message(error.message)
        return TorchServeError(status, _FAILED, message)
    status = failure_status(error.code)
    status = 400 if status == 422 else status
    if status == 503:
        return TorchServeError(status, "ServiceUnavailableException", error.message)
    return TorchServeError(status, "BadRequestException" if status < 500 else _FAILED, error.message)


def word_refusals(scope: Scope, target: TorchServeTarget) -> None:
    """Have every refusal of the request worded as TorchServe words it."""
    scope[WORDING] = partial(as_torchserve, target)


def as_torchserve(target: TorchServeTarget, problem: ProblemResponse, error: Exception) -> ProblemResponse:
    """The same refusal with TorchServe's error object, and the headers of all its replies."""
    worded = prediction_error(error, target)
    body = pretty(worded.body)
    kept: Headers = [header for header in problem.headers if header[0] not in _CHANGED]
    own = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *FIXED_HEADERS]
    return replace(problem, status=worded.status, body=body, headers=[*kept, *own])

"""Refusals as TorchServe words them: a status, the name of its exception, and a message. Pure."""

from __future__ import annotations

from penstock.errors import (
    BadRequest,
    CapacityError,
    Conflict,
    InvalidInput,
    NotFound,
    PenstockError,
    StorageFull,
    TooLarge,
    UnknownModel,
    UnknownVersion,
)
from penstock.gateway.asgi.problems import Explanation, ForeignRefusal, MethodNotAllowed, members_of, refusal_text, status_of
from penstock.gateway.auth.keys import TokenRefused
from penstock.gateway.auth.rules import WrongToken

NO_PATH = "Requested resource is not found, please refer to API document."
NO_METHOD = "Requested method is not allowed, please refer to API document."
# The names of TorchServe's exceptions, by our errors; the first that fits counts. What is not listed goes by its status.
_NAMES: tuple[tuple[type[PenstockError], str], ...] = (
    (NotFound, "ModelNotFoundException"),
    (Conflict, "ConflictStatusException"),
    (MethodNotAllowed, "MethodNotAllowedException"),
    (TooLarge, "BadRequestException"),
    (StorageFull, "InternalServerException"),
    (CapacityError, "ServiceUnavailableException"),
)
_NAME_OF_STATUS = {401: "InvalidKeyException", 403: "InvalidKeyException", 404: "ResourceNotFoundException"}
# What the codes of errors of archives and of their handlers mean, and what to do.
_ANSWER_NOW = "500 of an answer-now request, else 409"
EXPLANATIONS = {
    "bad_archive": Explanation(
        "503 of an answer-now request, else 409; 400 when it is registered",
        "A model archive is damaged, unsafe (it holds links or paths outside of it), or lacks a file that its manifest names.",
        "Pack it again with `torch-model-archiver`; `penstock config --check` says what is wrong with it.",
    ),
    "prediction_exception": Explanation(
        "422 or 500 of an answer-now request, else 409",
        "A handler of TorchServe's raised `PredictionException`, with a message and a status of its own.",
        "`detail` is the handler's message; correct the input as it says.",
    ),
    "bad_output_type": Explanation(
        _ANSWER_NOW,
        "The `handle` of a TorchServe archive returned no list.",
        "Return a list with one element per request, as TorchServe asks too.",
    ),
    "bad_output_length": Explanation(
        _ANSWER_NOW,
        "The `handle` of a TorchServe archive returned a list of another length than the batch.",
        "Return one element per request. A handler that reads `data[0]` only is found, and gets one request at a time.",
    ),
    "bad_output_value": Explanation(
        _ANSWER_NOW,
        "The `handle` of a TorchServe archive returned an element that cannot be sent: no text, bytes, number, list or table.",
        "Turn tensors into lists with `tolist()`, and images into bytes.",
    ),
}


class TorchServeError(ForeignRefusal):
    """A refusal with the status and the exception's name of TorchServe. `hint` is not sent: its error object has no place."""

    def __init__(self, status: int, name: str, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(status, message, retry_after_s=retry_after_s)
        self.name = name

    @property
    def body(self) -> dict[str, int | str]:
        return {"code": self.status, "type": self.name, "message": self.message}


def bad_request(message: str) -> TorchServeError:
    return TorchServeError(400, "BadRequestException", message)


def model_not_found(model: str) -> TorchServeError:
    return TorchServeError(404, "ModelNotFoundException", f"Model not found: {model}")


def version_not_found(model: str, version: str) -> TorchServeError:
    message = f"Model version: {version} does not exist for model: {model}"
    return TorchServeError(404, "ModelVersionNotFoundException", message)


def no_path() -> TorchServeError:
    return TorchServeError(404, "ResourceNotFoundException", NO_PATH)


def no_method() -> TorchServeError:
    return TorchServeError(405, "MethodNotAllowedException", NO_METHOD)


def invalid_token(what: str = "Authorization") -> TorchServeError:
    message = f"Token {what} failed. Token either incorrect, expired, or not provided correctly"
    return TorchServeError(400, "InvalidKeyException", message)


def torchserve_error(error: Exception) -> TorchServeError:
    """Any error as TorchServe's. The cause of a bug is not shown; penstock's errors keep their message and their hint."""
    if isinstance(error, TorchServeError):
        return error
    if not isinstance(error, PenstockError):
        return TorchServeError(500, "InternalServerException", "The gateway failed on this request.")
    if isinstance(error, MethodNotAllowed):
        return no_method()
    if isinstance(error, UnknownModel):
        return model_not_found(error.model)
    if isinstance(error, UnknownVersion):
        return version_not_found(error.model, error.version)
    if isinstance(error, (TokenRefused, WrongToken)):
        return invalid_token()
    # TorchServe answers 400 to a well-formed request with wrong values; it never answers 422.
    status = 400 if isinstance(error, (BadRequest, InvalidInput)) else status_of(error)
    members = members_of(error)
    return TorchServeError(status, _name_of(error, status), refusal_text(members))


def _name_of(error: PenstockError, status: int) -> str:
    named = next((name for kind, name in _NAMES if isinstance(error, kind)), None)
    if named:
        return named
    return _NAME_OF_STATUS.get(status, "BadRequestException" if status < 500 else "InternalServerException")

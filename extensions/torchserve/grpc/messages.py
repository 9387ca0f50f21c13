"""The messages of TorchServe's gRPC services, and gRPC's statuses for its refusals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc

from penstock.errors import CapacityError, PenstockError, TooLarge
from penstock.extensions.torchserve.gateway.errors import TorchServeError
from penstock.extensions.torchserve.gateway.refusals import prediction_error
from penstock.extensions.torchserve.gateway.routes import TorchServeTarget
from penstock.gateway.jobs.submitting.form_input import MOST_RAW_PARTS
from penstock.gateway.rpc.pool import MessagePool
from penstock.gateway.rpc.refusals import RpcRefusal
from penstock.inputs.form import FormPart

POOL = MessagePool(__package__, "torchserve.binpb")
INFERENCE = "org.pytorch.serve.grpc.inference"
MANAGEMENT = "org.pytorch.serve.grpc.management"
INFERENCE_SERVICE = f"{INFERENCE}.InferenceAPIsService"
MANAGEMENT_SERVICE = f"{MANAGEMENT}.ManagementAPIsService"
PREDICTIONS_REQUEST = POOL.message_class(f"{INFERENCE}.PredictionsRequest")
# By the status that HTTP has for the same refusal, as TorchServe maps them; every other one is INTERNAL.
CODES: Mapping[int, Any] = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    405: grpc.StatusCode.PERMISSION_DENIED,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    409: grpc.StatusCode.ABORTED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    415: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.FAILED_PRECONDITION,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}


def worded(error: PenstockError, target: TorchServeTarget) -> TorchServeError:
    """The refusal as TorchServe's clients read it: the message, and below it the name of the exception."""
    refusal, wait_s = prediction_error(error, target), error.retry_after_s if isinstance(error, CapacityError) else None
    return TorchServeError(refusal.status, refusal.name, f"{refusal.message}\n{refusal.name}", retry_after_s=wait_s)


def fields_of(sent: Any) -> list[FormPart]:
    """The fields of a PredictionsRequest. A value that is not text is a file, for models that read forms by their schema.

    Raises `TooLarge`.
    """
    if len(sent.input) > MOST_RAW_PARTS:
        raise TooLarge(f"the request has {len(sent.input)} fields; {MOST_RAW_PARTS} is the limit")
    return [FormPart(name, value, "", None if is_text(value) else "") for name, value in sent.input.items()]


def without_input(sent: Any) -> Any:
    """What is needed of a PredictionsRequest while its answer is awaited; `ClearField` would keep the memory of the input."""
    kept = PREDICTIONS_REQUEST(model_name=sent.model_name, model_version=sent.model_version)
    if sent.HasField("sequence_id"):
        kept.sequence_id = sent.sequence_id
    return kept


def is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def prediction_message(data: bytes, sent: Any) -> bytes:
    """The answer to a request, whose sequence it names."""
    return POOL.written(f"{INFERENCE}.PredictionResponse", prediction=data, **_sequence_of(sent))


def refusal_message(refusal: RpcRefusal, sent: Any) -> bytes:
    """One refused request of a stream. `sent` is None if the request could not be read."""
    status = {"code": refusal.code.value[0], "message": refusal.text}
    return POOL.written(f"{INFERENCE}.PredictionResponse", status=status, **_sequence_of(sent))


def _sequence_of(sent: Any) -> dict[str, str]:
    return {"sequence_id": sent.sequence_id} if sent is not None and sent.HasField("sequence_id") else {}

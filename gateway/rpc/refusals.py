"""Refused calls: from an error of ours to gRPC's status, its text, and the metadata that programs read."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
import structlog

from penstock.errors import CapacityError, PenstockError, StoreUnavailable
from penstock.gateway.asgi import problems
from penstock.gateway.asgi.problems import EndedWithoutOutput, ForeignRefusal, refusal_text
from penstock.gateway.asgi.wire import drop_frames
from penstock.gateway.rpc.pool import MessagePool

log = structlog.get_logger(__name__)

# By the HTTP status of the same error. All others are INTERNAL.
CODES: Mapping[int, Any] = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    410: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    415: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    431: grpc.StatusCode.RESOURCE_EXHAUSTED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
    507: grpc.StatusCode.RESOURCE_EXHAUSTED,
}
# Clients refuse more than 8 KiB of metadata. It contains the text twice, once escaped to up to three times its size.
_MOST_TEXT_BYTES = 1_024
_POOL = MessagePool(__package__, "status.binpb")
_TYPES = "type.googleapis.com/google.rpc."
_DOMAIN = "penstock"
Metadata = tuple[tuple[str, str | bytes], ...]


@dataclass(frozen=True, slots=True)
class RpcRefusal:
    """The status that ends a call. `trailing` is its metadata."""

    code: grpc.StatusCode
    text: str
    trailing: Metadata = field(default=())


def refusal_of(error: Exception, *, method: str, given_id: bytes | None, codes: Mapping[int, Any] = CODES) -> RpcRefusal:
    """The refusal of a call that failed with `error`; `given_id`: the caller's x-request-id. `codes`: gRPC's status by HTTP's.

    Logs what an operator must know: an unreachable store, and bugs with their traceback.
    """
    request_id = problems.request_id_of(given_id)
    shown = error if isinstance(error, PenstockError) else problems.internal_error()
    members, status = problems.members_of(shown), problems.status_of(shown)
    text = refusal_text(members).encode("utf-8", "replace")[:_MOST_TEXT_BYTES].decode("utf-8", "ignore")
    if isinstance(error, StoreUnavailable):
        log.warning("store_unavailable", request_id=request_id, method=method, reason=error.message)
    if status == 500 and not isinstance(error, (EndedWithoutOutput, ForeignRefusal)):
        log.error("request_failed", request_id=request_id, method=method, exc_info=error)
    drop_frames(error)
    code = codes.get(status, grpc.StatusCode.INTERNAL)
    after_s = shown.retry_after_s if isinstance(shown, (CapacityError, ForeignRefusal)) else None
    wait_s = 0 if after_s is None else problems.retry_after(after_s, draw=random.random())
    trailing: list[tuple[str, str | bytes]] = [("x-request-id", request_id)]
    if wait_s:
        # gRPC's own retries read the second one.
        trailing += [("retry-after", str(wait_s)), ("grpc-retry-pushback-ms", str(wait_s * 1_000))]
    if members["job"]:
        trailing.append(("x-penstock-job", members["job"]))
    trailing.append(("grpc-status-details-bin", _details(code, text, str(members["code"]), wait_s)))
    return RpcRefusal(code, text, tuple(trailing))


def _kind(name: str) -> Any:
    return _POOL.message_class(f"google.rpc.{name}")


def _details(code: grpc.StatusCode, text: str, reason: str, wait_s: int) -> bytes:
    details = [_packed("ErrorInfo", reason=reason, domain=_DOMAIN)]
    if wait_s:
        details.append(_packed("RetryInfo", retry_delay={"seconds": wait_s}))
    made: bytes = _kind("Status")(code=code.value[0], message=text, details=details).SerializeToString()
    return made


def _packed(name: str, **members: Any) -> Any:
    return _kind("Any")(type_url=_TYPES + name, value=_kind(name)(**members).SerializeToString())

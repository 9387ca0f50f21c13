"""JSON-RPC 2.0 as values: calls out of JSON, responses and errors into JSON. Pure (https://www.jsonrpc.org/specification)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import orjson

from penstock.errors import BadRequest, InternalError, InvalidInput, NotFound
from penstock.gateway.asgi.problems import ProblemResponse, refusal_text

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603
# The first of those that the specification leaves to servers. `data.code` says which of penstock's errors it was.
SERVER_ERROR = -32000
RpcId = str | int | float | None


class InvalidRpcRequest(BadRequest):
    """JSON that is not a call."""


class UnknownRpcMethod(BadRequest):
    """A call of an unknown method."""


class RpcParams(msgspec.Struct, forbid_unknown_fields=True):
    """The members of `params`. `options` are the query parameters of POST /v1/models/{model}/jobs, by the same names."""

    model: str = ""
    input: Any = None
    version: str = ""
    job: str = ""
    idempotency_key: str | None = None
    options: dict[str, str | int | float] = {}


@dataclass(frozen=True, slots=True)
class RpcCall:
    """`is_notification`: it has no id, so no response is sent."""

    method: str
    params: Any
    id: RpcId
    is_notification: bool


def read_call(said: Any) -> RpcCall:
    """Raises `InvalidRpcRequest`."""
    if not isinstance(said, dict) or said.get("jsonrpc") != "2.0" or not isinstance(said.get("method"), str):
        raise InvalidRpcRequest('a call is {"jsonrpc": "2.0", "method": "...", "params": {...}, "id": ...}')
    if isinstance(said.get("id"), bool) or not isinstance(said.get("id"), RpcId):
        raise InvalidRpcRequest("the id of a call is a text, a number or null")
    return RpcCall(said["method"], said.get("params", {}), said.get("id"), is_notification="id" not in said)


def read_params(call: RpcCall) -> RpcParams:
    """Raises `BadRequest`."""
    try:
        return msgspec.convert(call.params, RpcParams)
    except msgspec.ValidationError as error:
        raise BadRequest(f"params: {error}") from None


def response_of(call: RpcCall, result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "result": result, "id": call.id}


def worded_unread(problem: ProblemResponse, error: Exception) -> ProblemResponse:
    """The refusal of a request without a readable call: its id is null."""
    is_parsing = type(error) is BadRequest
    return _worded(problem, PARSE_ERROR if is_parsing else code_of(error), None)


def worded_call(call: RpcCall, problem: ProblemResponse, error: Exception) -> ProblemResponse:
    return _worded(problem, code_of(error), call.id)


def code_of(error: Exception) -> int:
    """The number for an error. Everything that the caller can correct in `params` counts as invalid parameters."""
    known: Mapping[type[Exception], int] = {
        InvalidRpcRequest: INVALID_REQUEST,
        UnknownRpcMethod: METHOD_NOT_FOUND,
        BadRequest: INVALID_PARAMS,
        InvalidInput: INVALID_PARAMS,
        NotFound: INVALID_PARAMS,
        InternalError: INTERNAL_ERROR,
    }
    return next((code for kind, code in known.items() if isinstance(error, kind)), SERVER_ERROR)


def _worded(problem: ProblemResponse, code: int, id_: RpcId) -> ProblemResponse:
    """The same refusal, with the same status and headers, as an error object that has the problem's members as `data`."""
    members: dict[str, Any] = orjson.loads(problem.body)
    if waits := [int(value) for name, value in problem.headers if name == b"retry-after"]:
        # The item of a batch has no headers of its own.
        members["retry_after_s"] = waits[0]
    error = {"code": code, "message": refusal_text(members), "data": members}
    body = orjson.dumps({"jsonrpc": "2.0", "error": error, "id": id_})
    changed = {b"content-type": b"application/json", b"content-length": b"%d" % len(body)}
    return replace(problem, body=body, headers=[(name, changed.get(name, value)) for name, value in problem.headers])

"""ManagementAPIsService: each call does what the same call over HTTP does, and answers with its text."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from penstock.broker.store.audit import Act
from penstock.errors import PenstockError
from penstock.extensions.torchserve.gateway.routes import TorchServeTarget
from penstock.extensions.torchserve.grpc.messages import CODES, MANAGEMENT, POOL, worded
from penstock.extensions.torchserve.management.routes import Action
from penstock.extensions.torchserve.management.service import ManagementReply, ModelManagement
from penstock.gateway.auth.audit import AuditLog, said_of
from penstock.gateway.auth.keys import Shares
from penstock.gateway.rpc.guard import Rpc, RpcGuard, RpcMethod
from penstock.gateway.rpc.pool import parsed

Serve = Callable[[Rpc, Any], Awaitable[ManagementReply]]
_MODEL = "/models/{model}"
# The words of the audit log, which are those of the same call over HTTP.
_ACTS = {
    "RegisterModel": Action.REGISTER,
    "ScaleWorker": Action.SCALE,
    "SetDefault": Action.SET_DEFAULT,
    "UnregisterModel": Action.UNREGISTER,
}


class ManagementApis:
    """`requests`: the permits that calls take."""

    def __init__(self, service: ModelManagement, guard: RpcGuard, *, requests: Shares, audit: AuditLog) -> None:
        self._service = service
        self._audit = audit
        self._guard = guard
        self._requests = requests

    def handlers(self) -> dict[str, Any]:
        return {
            "DescribeModel": self._unary("DescribeModel", "GET", _MODEL, self._describe_model),
            "ListModels": self._unary("ListModels", "GET", "/models", self._list),
            "RegisterModel": self._unary("RegisterModel", "POST", "/models", self._register),
            "ScaleWorker": self._unary("ScaleWorker", "PUT", _MODEL, self._scale),
            "SetDefault": self._unary("SetDefault", "PUT", f"{_MODEL}/{{version}}/set-default", self._set_default),
            "UnregisterModel": self._unary("UnregisterModel", "DELETE", _MODEL, self._unregister),
        }

    def _unary(self, name: str, verb: str, route: str, serve: Serve) -> Any:
        return self._guard.unary(RpcMethod(name, route, self._requests, verb, CODES), partial(self._answered, serve))

    async def _answered(self, serve: Serve, rpc: Rpc, message: bytes) -> bytes:
        sent = parsed(POOL.message_class(f"{MANAGEMENT}.{rpc.method.name}Request"), message)
        try:
            reply = await self._done(serve, rpc, sent)
        except PenstockError as error:
            raise worded(error, TorchServeTarget(rpc.method.path, getattr(sent, "model_name", ""))) from error
        return POOL.written(f"{MANAGEMENT}.ManagementResponse", msg=message_text(reply))

    async def _done(self, serve: Serve, rpc: Rpc, sent: Any) -> ManagementReply:
        if rpc.method.verb == "GET":
            return await serve(rpc, sent)
        async with self._audit.noted(_act(rpc, sent), {}):
            return await serve(rpc, sent)

    async def _describe_model(self, rpc: Rpc, sent: Any) -> ManagementReply:
        model, version = sent.model_name, sent.model_version
        return await self._service.describe(model, version, given_of(sent), rpc.caller, rpc.connection)

    async def _list(self, rpc: Rpc, sent: Any) -> ManagementReply:
        return await self._service.list_models(given_of(sent))

    async def _register(self, rpc: Rpc, sent: Any) -> ManagementReply:
        return await self._service.register(given_of(sent))

    async def _scale(self, rpc: Rpc, sent: Any) -> ManagementReply:
        return await self._service.scale(sent.model_name, sent.model_version, given_of(sent))

    async def _set_default(self, rpc: Rpc, sent: Any) -> ManagementReply:
        return await self._service.set_default(sent.model_name, sent.model_version)

    async def _unregister(self, rpc: Rpc, sent: Any) -> ManagementReply:
        return await self._service.unregister(sent.model_name, sent.model_version)


def _act(rpc: Rpc, sent: Any) -> Act:
    said = said_of(given_of(sent))
    on = {kind: said.pop(f"model_{member}", "") for kind, member in (("model", "name"), ("version", "version"))}
    named = {kind: str(name) for kind, name in on.items() if name}
    return Act(f"torchserve {_ACTS[rpc.method.name]}", rpc.caller.key_id, rpc.address, named, said)


def given_of(sent: Any) -> dict[str, Any]:
    """The parameters of a request by their names over HTTP. A number or a text that is not set is 0 or empty, and left out."""
    given = {field.name: getattr(sent, field.name) for field in sent.DESCRIPTOR.fields}
    return {name: value for name, value in given.items() if isinstance(value, bool) or value}


def message_text(reply: ManagementReply) -> str:
    """A sentence stands alone, without the object around it."""
    value = reply.value
    return str(value["status"]) if isinstance(value, dict) and value.keys() == {"status"} else reply.text

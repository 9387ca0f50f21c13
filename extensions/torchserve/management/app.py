"""TorchServe's management over HTTP: an ASGI application, on a port of its own or beside the gateway's other paths.

It checks the request and its caller, and calls the function that its path stands for.
"""

# D103: docs/design/protocols.md
from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote_plus

import structlog
from starlette.responses import Response

from penstock.broker.blobs.space import DiskReserve
from penstock.broker.store.audit import Act
from penstock.errors import PenstockError, StoreUnavailable
from penstock.extensions.torchserve.gateway.errors import bad_request, invalid_token, no_path
from penstock.extensions.torchserve.gateway.replies import control_reply, error_reply, plain_reply
from penstock.extensions.torchserve.gateway.tokens import RENEWABLE
from penstock.extensions.torchserve.management.download import Downloader, DownloadLimits
from penstock.extensions.torchserve.management.model_store import ModelStore, StoreKeeper
from penstock.extensions.torchserve.management.routes import (
    CHANGES,
    PUBLIC_PATHS,
    Action,
    ManagementTarget,
    is_served_beside,
    management_description,
    management_target,
    model_description,
)
from penstock.extensions.torchserve.management.service import ManagementReply, ModelManagement
from penstock.extensions.torchserve.management.workflows import WorkflowManagement
from penstock.extensions.torchserve.settings.table import TorchServeSettings
from penstock.gateway.asgi import wire
from penstock.gateway.asgi.bodies import parse_json
from penstock.gateway.asgi.connection import connection_of
from penstock.gateway.asgi.negotiation import (
    JSON,
    MAX_TARGET_BYTES,
    SAFE_METHODS,
    Head,
    HeadersTooLarge,
    base_type,
    host_name,
    is_cross_site,
    parse_query,
    read_head,
    refuse_encoded,
)
from penstock.gateway.asgi.problems import CrossSite, WrongHost
from penstock.gateway.asgi.wire import CLIENT_GONE, ClientGone, HeadOnly, Receive, Scope, Send
from penstock.gateway.auth.audit import said_of
from penstock.gateway.auth.keys import NOBODY, Caller
from penstock.gateway.auth.rules import ANY, MANAGE, require_role
from penstock.gateway.services import Services
from penstock.settings.keys import loopback_names

log = structlog.get_logger(__name__)

_MOST_BODY_BYTES = 64 * 1024
_MOST_DEPTH = 16
# How long the download of an archive may take.
_DOWNLOAD_S = 600.0


class ManagementApp:
    """`hosts`: the Host names that are accepted; an empty set means any."""

    def __init__(
        self, services: Services, service: ModelManagement, workflows: WorkflowManagement, *, hosts: frozenset[str]
    ) -> None:
        self._service = service
        self._workflows = workflows
        self._uploads = services.uploads
        self._health = services.health
        self._auth = services.auth
        self._audit = services.audit
        self._requests = services.requests
        self._metrics = services.metrics
        self._hosts = hosts
        self._origins = services.settings.gateway.cors_origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        method = scope["method"]
        if method == "HEAD":
            head_only = HeadOnly(scope, send)
            scope, receive, send = head_only.scope, head_only.receive, head_only.send
        try:
            route, reply = await self._answer(scope, receive)
            status = reply.status_code
            await reply(scope, receive, send)  # type: ignore[arg-type]
        except ClientGone:
            route, status = "unknown", CLIENT_GONE
        self._metrics.on_answer(route, {**scope, "method": method}, status, time.perf_counter() - started)

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[str, Response]:
        """The path's template and the reply, also after a failure. Raises `ClientGone`."""
        route, head = "unknown", Head()
        try:
            head = read_head(scope["headers"])
            self._check(scope, head)
            scope["caller"] = caller = self._caller(scope, head)
            target = management_target(scope["method"], scope["path"])
            route = target.route
            return route, await self._permitted(target, caller, scope, receive, head)
        except ClientGone:
            raise
        except Exception as error:  # noqa: BLE001 - whatever failed, the request gets a reply
            _note(error, scope)
            reply = error_reply(error, sent_id=head.get(b"x-request-id"))
        if wire.is_close_needed(reply.status_code, head):
            reply.raw_headers.append((b"connection", b"close"))
        return route, reply

    def _check(self, scope: Scope, head: Head) -> None:
        if len(scope["raw_path"]) + len(scope["query_string"]) > MAX_TARGET_BYTES:
            raise HeadersTooLarge(f"the request target exceeds {MAX_TARGET_BYTES} bytes")
        if self._hosts and host_name(head.get(b"host", b"")) not in self._hosts:
            raise WrongHost("this port accepts its loopback names only")
        if _runs_something(scope) and is_cross_site(head, self._origins):
            raise CrossSite("a page of another site had this browser send the request")

    def _caller(self, scope: Scope, head: Head) -> Caller:
        """A stranger learns of no path that needs a key (D15)."""
        if scope["path"].rstrip("/") in PUBLIC_PATHS:
            return NOBODY
        return self._auth.admit(head.get(b"authorization"), (scope.get("client") or ("",))[0])

    async def _permitted(
        self, target: ManagementTarget, caller: Caller, scope: Scope, receive: Receive, head: Head
    ) -> Response:
        # The route of tokens looks at its caller itself: it takes none of the roles.
        if target.route not in PUBLIC_PATHS and target.action is not Action.TOKEN:
            require_role(caller, ANY if target.action is Action.READINESS else MANAGE)
        self._requests.take(caller)
        try:
            if target.action not in CHANGES:
                return await self._reply(target, caller, scope, receive, head)
            async with self._audit.noted(_act(target, caller, scope), scope):
                return await self._reply(target, caller, scope, receive, head)
        finally:
            self._requests.give_back(caller)

    async def _reply(self, target: ManagementTarget, caller: Caller, scope: Scope, receive: Receive, head: Head) -> Response:
        sent_id = head.get(b"x-request-id")
        if target.action is Action.TOKEN:
            await self._renew(caller, parse_query(scope["query_string"]))
            return plain_reply(b"", sent_id=sent_id)
        given = await self._given(target, scope, receive, head)
        answer = await self._managed(target, given, caller, scope)
        return control_reply(answer.value, status=answer.status, sent_id=sent_id)

    async def _managed(
        self, target: ManagementTarget, given: Mapping[str, Any], caller: Caller, scope: Scope
    ) -> ManagementReply:
        service, model, version = self._service, target.model, target.version
        asked: dict[Action, Callable[[], Awaitable[ManagementReply]]] = {
            Action.API_DESCRIPTION: self._description,
            Action.PING: self._ping,
            Action.LIST: lambda: service.list_models(given),
            Action.REGISTER: lambda: service.register(given),
            Action.DESCRIBE: lambda: service.describe(model, version, given, caller, connection_of(scope)),
            Action.SCALE: lambda: service.scale(model, version, given),
            Action.SET_DEFAULT: lambda: service.set_default(model, version),
            Action.UNREGISTER: lambda: service.unregister(model, version),
            Action.READINESS: lambda: service.readiness(model),
            Action.DESCRIPTION: lambda: self._description_of(model),
            Action.LIST_WORKFLOWS: lambda: self._workflows.list_workflows(given),
            Action.REGISTER_WORKFLOW: lambda: self._workflows.register(given),
            Action.DESCRIBE_WORKFLOW: lambda: self._workflows.describe(model),
            Action.UNREGISTER_WORKFLOW: lambda: self._workflows.unregister(model),
        }
        return await asked[target.action]()

    async def _ping(self) -> ManagementReply:
        is_ready = await self._health.is_ready()
        return ManagementReply(200 if is_ready else 500, {"status": "Healthy" if is_ready else "Unhealthy"})

    async def _description(self) -> ManagementReply:
        return ManagementReply(200, management_description())

    async def _description_of(self, model: str) -> ManagementReply:
        await self._service.readiness(model)  # raises for a model that is not there
        return ManagementReply(200, model_description(model))

    async def _given(self, target: ManagementTarget, scope: Scope, receive: Receive, head: Head) -> Mapping[str, Any]:
        """The query's parameters; for a registration with a JSON body only the body's members, as in TorchServe."""
        if target.action is not Action.REGISTER or base_type(head.get(b"content-type", b"").decode("latin-1")) != JSON:
            return parse_query(scope["query_string"])
        refuse_encoded(head)
        try:
            body = await wire.read_body(scope, receive, head, limit=_MOST_BODY_BYTES, memory=self._uploads)
        finally:
            self._uploads.give_back(scope)
        value = parse_json(body, max_depth=_MOST_DEPTH)
        if not isinstance(value, dict):
            raise bad_request("The body must be a JSON object.")
        scope["said"] = value
        return value

    async def _renew(self, caller: Caller, given: Mapping[str, str]) -> None:
        """The new token is written to the file and not sent, so that only readers of the file get it."""
        tokens = self._auth.tokens
        if tokens is None:
            raise no_path()
        name = given.get("type", "")
        if not tokens.is_api(caller) or name not in RENEWABLE:
            raise invalid_token("Authentication")
        await asyncio.to_thread(tokens.renew, name)


def _act(target: ManagementTarget, caller: Caller, scope: Scope) -> Act:
    on = {"model": target.model, "version": target.version}
    said = said_of(dict(parse_qsl(scope["query_string"].decode("latin-1"))))
    address = (scope.get("client") or ("",))[0]
    return Act(f"torchserve {target.action}", caller.key_id, address, {kind: name for kind, name in on.items() if name}, said)


def _runs_something(scope: Scope) -> bool:
    """A description that the model's own code completes (`customized`) runs that code, whatever the method."""
    return scope["method"] not in SAFE_METHODS or "customized" in unquote_plus(scope["query_string"].decode("latin-1")).lower()


def _note(error: Exception, scope: Scope) -> None:
    """What an operator has to know: a store that cannot be reached, and bugs with their traceback."""
    if isinstance(error, StoreUnavailable):
        log.warning("store_unavailable", path=scope["path"][:200], reason=error.message)
    elif not isinstance(error, PenstockError):
        log.error("request_failed", path=scope["path"][:200], exc_info=error)


@dataclass(frozen=True, slots=True)
class Management:
    """`service` is what the gRPC service calls too. `is_beside`: the gateway's own listener serves it."""

    app: ManagementApp
    service: ModelManagement
    keeper: StoreKeeper
    is_beside: bool
    serves: Callable[[str], bool] = is_served_beside


def management_of(services: Services, own: TorchServeSettings) -> Management:
    settings = services.settings
    is_beside = not own.has_own_port(settings)
    reserve = DiskReserve(own.model_store, settings.store.reserve_bytes)
    limits = DownloadLimits(own.max_archive_bytes, _DOWNLOAD_S)
    models = ModelStore(own.model_store, own.allowed_urls, Downloader(limits, reserve))
    service = ModelManagement(services, own, models)
    workflows = WorkflowManagement(own, registry=services.registry, changes=services.changes, models=models)
    hosts = loopback_names(settings.gateway.host if is_beside else own.management_host)
    app = ManagementApp(services, service, workflows, hosts=hosts)
    return Management(app, service, StoreKeeper(own.model_store, services.store), is_beside=is_beside)

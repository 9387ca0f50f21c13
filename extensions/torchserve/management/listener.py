"""TorchServe's management over HTTP: an ASGI application, on a port of its own or beside the gateway's other paths."""

# D103: docs/design/protocols.md
from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote_plus

import structlog
from starlette.responses import Response

from penstock.broker.blobs.space import DiskReserve
from penstock.broker.store.audit import Act
from penstock.errors import PenstockError, StoreUnavailable
from penstock.extensions.torchserve.gateway.replies import error_reply
from penstock.extensions.torchserve.management.actions import ManagementActions
from penstock.extensions.torchserve.management.download import Downloader, DownloadLimits
from penstock.extensions.torchserve.management.model_store import ModelStore
from penstock.extensions.torchserve.management.routes import (
    CHANGES,
    PUBLIC_PATHS,
    Action,
    ManagementTarget,
    is_served_beside,
    management_target,
)
from penstock.extensions.torchserve.management.service import ModelManagement
from penstock.extensions.torchserve.management.store_keeper import StoreKeeper
from penstock.extensions.torchserve.management.workflows import WorkflowManagement
from penstock.gateway.asgi import wire
from penstock.gateway.asgi.negotiation import (
    MAX_TARGET_BYTES,
    SAFE_METHODS,
    Head,
    HeadersTooLarge,
    host_name,
    is_cross_site,
    read_head,
)
from penstock.gateway.asgi.problems import CrossSite, WrongHost
from penstock.gateway.asgi.wire import CLIENT_GONE, ClientGone, HeadOnly, Receive, Scope, Send
from penstock.gateway.auth.audit import said_of
from penstock.gateway.auth.keys import NOBODY, Caller
from penstock.gateway.auth.roles import require_role
from penstock.gateway.options import TorchServeOptions
from penstock.gateway.services import Services

log = structlog.get_logger(__name__)


class ManagementApp:
    """`hosts`: the Host names that are accepted; an empty set means any."""

    def __init__(self, services: Services, actions: ManagementActions, *, hosts: frozenset[str]) -> None:
        self._actions = actions
        self._auth = services.auth
        self._audit = services.audit
        self._requests = services.requests
        self._metrics = services.metrics
        self._hosts = hosts
        self._origins = services.options.cors_origins

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
        """The path's template and the reply, whatever failed. Raises `ClientGone`."""
        route, head = "unknown", Head()
        try:
            head = read_head(scope["headers"])
            self._check(scope, head)
            caller = self._caller(scope, head)
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
            require_role(caller, scope["method"], target.route)
        self._requests.take(caller)
        try:
            if target.action not in CHANGES:
                return await self._actions.reply(target, caller, scope, receive, head)
            async with self._audit.noted(_act(target, caller, scope), scope):
                return await self._actions.reply(target, caller, scope, receive, head)
        finally:
            self._requests.give_back(caller)


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


def management_of(services: Services, own: TorchServeOptions) -> Management:
    reserve = DiskReserve(own.model_store, services.options.reserve_bytes)
    limits = DownloadLimits(own.max_archive_bytes, own.download_timeout_s)
    models = ModelStore(own.model_store, own.allowed_urls, Downloader(limits, reserve))
    service = ModelManagement(services, own, models)
    workflows = WorkflowManagement(own, registry=services.registry, changes=services.changes, models=models)
    app = ManagementApp(services, ManagementActions(services, service, workflows), hosts=own.management_hosts)
    return Management(app, service, StoreKeeper(models, services.store), is_beside=not own.is_management_apart)

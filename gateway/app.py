"""The ASGI callable: sends submits, predictions and inference straight to their endpoints, every other path to FastAPI."""

from __future__ import annotations

import asyncio
import time
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import Request

from penstock.access import Role
from penstock.broker.blobs.files import BlobStore
from penstock.broker.store.aio import AsyncStore
from penstock.errors import CapacityError, PenstockError, RateLimited, StoreUnavailable
from penstock.gateway.asgi import wire
from penstock.gateway.asgi.connection import Lifetime, connection_of
from penstock.gateway.asgi.cors import CrossOrigin
from penstock.gateway.asgi.negotiation import (
    EXPLAIN,
    MAX_TARGET_BYTES,
    PREDICT,
    SAFE_METHODS,
    Head,
    HeadersTooLarge,
    SubmitTarget,
    host_name,
    is_cross_site,
    is_streamed,
    parse_submit_target,
    read_head,
    trace_header,
)
from penstock.gateway.asgi.problems import CrossSite, MethodNotAllowed, WrongHost
from penstock.gateway.asgi.wire import CLIENT_GONE, ClientGone, HeadOnly, Receive, Scope, Send
from penstock.gateway.auth.keys import Caller, Shares, cost_of
from penstock.gateway.auth.rules import SUBMIT, require_role
from penstock.gateway.dashboard.router import Pages, is_page
from penstock.gateway.error_responses import problem_of
from penstock.gateway.extending import ForeignDoor, ForeignTarget, words_of
from penstock.gateway.jobs.predict import PredictEndpoint
from penstock.gateway.jobs.submitting.submit import SubmitEndpoint
from penstock.gateway.services import services_of
from penstock.gateway.telemetry.metrics import GatewayMetrics
from penstock.gateway.wiring import GatewayParts
from penstock.settings.keys import loopback_names
from penstock.settings.tables import Settings

log = structlog.get_logger(__name__)

RETRY_START_S = 0.5


class Gateway:
    """One gateway process. It keeps no state of requests except how many are open."""

    def __init__(
        self,
        settings: Settings,
        *,
        store: AsyncStore,
        blobs: BlobStore,
        lifetime: Lifetime,
        shares_port: bool = False,
    ) -> None:
        self._root, self._origins = settings.gateway.root_path, settings.gateway.cors_origins
        self._hosts = loopback_names(settings.gateway.host)
        self._store = store
        self._lifetime = lifetime
        self._open = 0
        self._cross_origin = CrossOrigin(self._origins) if self._origins else None
        self._starting: asyncio.Task[None] | None = None
        metrics = GatewayMetrics(open_requests=lambda: self._open)
        self.services = services = services_of(
            settings,
            store=store,
            blobs=blobs,
            lifetime=lifetime,
            metrics=metrics,
            shares_port=shares_port,
        )
        self.parts = parts = GatewayParts(services)
        self._auth, self._metrics = services.auth, services.metrics
        self._submit, self._predict, self._explain = parts.submit, parts.predict, parts.explain
        self._pages = parts.pages
        self._rules, self._uncounted = parts.rules, parts.rules.probes | {"/metrics"}
        self._doors_before = tuple(door for part in parts.extensions for door in part.doors_before)
        self._doors = tuple(door for part in parts.extensions for door in part.doors)
        self._listeners = tuple(listener for part in parts.extensions for listener in part.listeners)
        self._lifespans = (services.file_uploads, *(one for part in parts.extensions for one in part.lifespans))
        self._words = words_of(parts.extensions)
        self._api = parts.api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = self._below_root(scope) if self._root else scope
            if self._cross_origin is not None and not is_page(scope["path"]):
                if await self._cross_origin.answer_preflight(scope, send):
                    return
                send = self._cross_origin.opened(scope, send)
            for listener in self._listeners:
                if listener.serves(scope["path"]):
                    await listener.app(scope, receive, send)
                    return
            await self._serve(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)

    def _below_root(self, scope: Scope) -> Scope:
        """The scope without the root path: some proxies strip their prefix and some do not."""
        root, path = self._root, scope["path"]
        return {**scope, "path": path[len(root) :] or "/"} if path == root or path.startswith(root + "/") else scope

    async def start(self) -> None:
        """Does not fail without a store: the gateway then answers 503 and keeps trying."""
        try:
            await self._store.start()
            await self._store.ping()
            self._lifetime.started = True
        except StoreUnavailable as error:
            log.warning("store_unavailable_at_start", reason=error.message)
            self._starting = asyncio.create_task(self._keep_starting())
        await self.services.key_beat.start()
        await self.services.registry.start()
        for part in self._lifespans:
            part.start()

    async def close(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
        if self._pages is not None:
            await self._pages.close()
        for part in self._lifespans:
            await part.close()
        await self.services.registry.close()
        await self.services.key_beat.close()
        await self._store.close()
        if self.services.tracer is not None:
            await asyncio.to_thread(self.services.tracer.close)

    async def _keep_starting(self) -> None:
        while not self._lifetime.started:
            await asyncio.sleep(RETRY_START_S)
            try:
                await self._store.ping()
                self._lifetime.started = True
            except StoreUnavailable:
                continue

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        door, target = self._target(scope)
        head = dict[bytes, bytes]()
        route = target.route if target is not None else "unknown"
        is_probe = scope["path"] in self._uncounted
        self._open += not is_probe
        try:
            head = read_head(scope["headers"])
            self._check(scope, head, is_safe=scope["method"] in SAFE_METHODS and door is None)
            if door is not None:
                status = await self._answer_foreign(door, target, scope, receive, send, head)
            elif target is None and self._pages is not None and is_page(scope["path"]):
                route, status = await self._answer_page(self._pages, scope, receive, send, head)
            elif target is None:
                scope["caller"] = self._admit(scope, head)
                route, status = await self._answer_with_fastapi(scope, receive, send)
            else:
                scope["caller"] = caller = self._check_key(scope, head)
                status = await self._answer_submit(target, scope, receive, send, head, caller)
        except ClientGone:
            status = CLIENT_GONE
        except Exception as error:  # noqa: BLE001 - whatever failed, the request gets a response
            status = await self._refuse(error, scope, send, head)
        finally:
            self._open -= not is_probe
            self.services.uploads.give_back(scope)
        if not is_probe:
            self._metrics.on_answer(route, scope, status, time.perf_counter() - started)

    def _check(self, scope: Scope, head: Head, *, is_safe: bool) -> None:
        """`is_safe`: the request runs nothing, so requests from pages of other sites are allowed."""
        if len(scope["raw_path"]) + len(scope["query_string"]) > MAX_TARGET_BYTES:
            raise HeadersTooLarge(f"the request target exceeds {MAX_TARGET_BYTES} bytes")
        hosts = self._hosts
        if hosts and host_name(head.get(b"host", b"")) not in hosts:
            raise WrongHost(
                "this gateway answers only to its loopback names",
                hint="Call it as localhost or 127.0.0.1, or bind another host.",
            )
        if not is_safe and is_cross_site(head, self._origins) and not is_page(scope["path"]):
            raise CrossSite(
                "a page of another site had this browser send the request",
                hint="gateway.cors_origins names the pages that may. Programs send neither Sec-Fetch-Site nor Origin.",
            )

    def _admit(self, scope: Scope, head: Head) -> Caller:
        if self._rules.is_public(scope["path"]):
            return self._auth.identify(head.get(b"authorization"))
        return self._check_key(scope, head, cost=cost_of(scope["method"], scope["path"]))

    def _check_key(self, scope: Scope, head: Head, *, cost: float = 1.0) -> Caller:
        """Check the key before the body is read and the path is looked up: strangers learn no route and no model (D15)."""
        try:
            caller = self._auth.admit(head.get(b"authorization"), (scope.get("client") or ("",))[0], cost)
            connection_of(scope).key_id = caller.key_id
            return caller
        except RateLimited as error:
            self._metrics.count_refusal("unknown", error)
            raise

    async def _answer_submit(
        self, target: SubmitTarget, scope: Scope, receive: Receive, send: Send, head: Head, caller: Caller
    ) -> int:
        if scope["method"] != "POST":
            raise MethodNotAllowed(f"{scope['method'][:20]} is not a method of this path; it takes POST", allow="POST")
        if Role.SUBMIT not in caller.roles:
            require_role(caller, SUBMIT)
        endpoint = self._endpoint(target)
        permits = self.services.requests if endpoint is self._submit else self._prediction_permits(head)
        self._take(permits, caller)
        try:
            return await endpoint(scope, receive, send, head, target.model, target.version)
        finally:
            permits.give_back(caller)

    def _target(self, scope: Scope) -> tuple[ForeignDoor | None, Any]:
        """The target of a request that becomes a job without FastAPI, and the extension's door that serves it."""
        for door in self._doors_before:
            if (target := door.target(scope)) is not None:
                return door, target
        if (own := parse_submit_target(scope["path"])) is not None:
            return None, own
        for door in self._doors:
            if (target := door.target(scope)) is not None:
                return door, target
        return None, None

    async def _answer_foreign(
        self, door: ForeignDoor, target: ForeignTarget, scope: Scope, receive: Receive, send: Send, head: Head
    ) -> int:
        if target.is_public:
            return await door(scope, receive, send, head, target)
        scope["caller"] = caller = self._check_key(scope, head)
        if Role.SUBMIT not in caller.roles:
            require_role(caller, SUBMIT)
        permits = self._prediction_permits(head)
        self._take(permits, caller)
        try:
            return await door(scope, receive, send, head, target)
        finally:
            permits.give_back(caller)

    def _prediction_permits(self, head: Head) -> Shares:
        """A stream may last as long as its job, so it takes a permit of its own kind."""
        return self.services.streams if is_streamed(head.get(b"accept", b"")) else self.services.predictions

    def _take(self, permits: Shares, caller: Caller) -> None:
        try:
            permits.take(caller)
        except CapacityError as error:
            self._metrics.count_refusal("unknown", error)
            raise

    def _endpoint(self, target: SubmitTarget) -> SubmitEndpoint | PredictEndpoint:
        if target.route.startswith(PREDICT):
            return self._predict
        return self._explain if target.route.startswith(EXPLAIN) else self._submit

    async def _answer_page(self, pages: Pages, scope: Scope, receive: Receive, send: Send, head: Head) -> tuple[str, int]:
        """Serve a page of the dashboard: a browser's session replaces a key; without one, answer with the sign-in page."""
        if not self._auth.keyed or b"authorization" in head or self._rules.is_public(scope["path"]):
            scope["caller"] = self._admit(scope, head)
            return await self._answer_with_fastapi(scope, receive, send)
        request = Request(scope, receive)
        try:
            caller = await pages.caller(request.headers)
            answer = await pages.ask_to_sign_in(request) if caller is None else None
        except PenstockError as error:
            answer = await pages.error_page(request, problem_of(error, scope, head.get(b"x-request-id"), self._words), error)
        if answer is not None:
            await answer(scope, receive, send)  # type: ignore[arg-type]
            return "unknown", answer.status_code
        scope["caller"] = caller
        connection_of(scope).key_id = caller.key_id if caller is not None else ""
        return await self._answer_with_fastapi(scope, receive, send)

    async def _answer_with_fastapi(self, scope: Scope, receive: Receive, send: Send) -> tuple[str, int]:
        """Answer with FastAPI, holding a permit of the open requests unless it is a probe."""
        if scope["method"] == "HEAD":
            head_only = HeadOnly(scope, send)
            scope, receive, send = head_only.scope, head_only.receive, head_only.send
        if scope["path"] in self._uncounted:
            return await self._answer_routed(scope, receive, send)
        caller, permits = scope["caller"], self.services.requests
        self._take(permits, caller)
        try:
            return await self._answer_routed(scope, receive, send)
        finally:
            permits.give_back(caller)

    async def _answer_routed(self, scope: Scope, receive: Receive, send: Send) -> tuple[str, int]:
        status = [CLIENT_GONE]

        async def send_and_note(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
                if "trace" in scope and status[0] < HTTPStatus.BAD_REQUEST:
                    message["headers"] = [*message["headers"], *trace_header(scope["trace"])]
            await send(message)

        try:
            await self._api(scope, receive, send_and_note)  # type: ignore[arg-type]
        except Exception:
            # After our handler has answered a bug, FastAPI raises it again for servers that log it.
            if status[0] == CLIENT_GONE:
                raise
        finally:
            await self.services.audit.end(scope, status[0])
        return getattr(scope.get("route"), "path", "unknown"), status[0]

    async def _refuse(self, error: Exception, scope: Scope, send: Send, head: Head) -> int:
        problem = problem_of(error, scope, head.get(b"x-request-id"), self._words)
        try:
            await wire.answer_problem(send, problem, head)
        except RuntimeError:
            # The response had begun when the request failed; the server closes the connection.
            log.warning("answer_broken_off", path=scope["path"][:200])
        return problem.status

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self.start()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

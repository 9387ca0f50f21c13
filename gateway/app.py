"""The ASGI callable: the two submit families straight to their endpoints, everything else to FastAPI; wiring."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

import orjson
import structlog
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from penstock.access import Role
from penstock.broker.blobs.files import BlobStore
from penstock.broker.blobs.uploads import FileStore
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.runs import AsyncRunStore
from penstock.errors import PenstockError, RateLimited, StoreUnavailable
from penstock.gateway.asgi import framework_errors, problems, wire
from penstock.gateway.asgi.negotiation import (
    EXPLAIN,
    MAX_TARGET_BYTES,
    PREDICT,
    Head,
    HeadersTooLarge,
    SubmitTarget,
    caller_trace_in,
    host_name,
    read_head,
    submit_target,
)
from penstock.gateway.asgi.problems import EndedWithoutOutput, GatewayBusy, MethodNotAllowed, WrongHost
from penstock.gateway.asgi.server import Lifetime
from penstock.gateway.asgi.wire import ClientGone, Receive, Scope, Send
from penstock.gateway.auth.keys import KeyAuth
from penstock.gateway.auth.roles import Caller, Holds, allowed, is_public, need
from penstock.gateway.dashboard.router import Pages, is_page
from penstock.gateway.jobs.events import JobEvents
from penstock.gateway.jobs.predict import PredictEndpoint
from penstock.gateway.jobs.reads import JobReads
from penstock.gateway.jobs.replay import Replays
from penstock.gateway.jobs.results import ResultReader
from penstock.gateway.jobs.submit import SubmitEndpoint
from penstock.gateway.jobs.submitter import GatewayJobLog, Submitter
from penstock.gateway.models.profiles import Profiles
from penstock.gateway.models.queues import QueueReads
from penstock.gateway.models.registry import ModelRegistry
from penstock.gateway.models.rollouts import Rollouts
from penstock.gateway.openai.batches import OpenAIBatches
from penstock.gateway.openai.embeddings import Embeddings
from penstock.gateway.openai.files import OpenAIFiles
from penstock.gateway.openai.views import as_openai, speaks_openai
from penstock.gateway.openapi import document
from penstock.gateway.options import GatewayOptions
from penstock.gateway.runs.routes import RunRoutes
from penstock.gateway.runs.service import RunService
from penstock.gateway.telemetry.health import PROBES, Health
from penstock.gateway.telemetry.metrics import GatewayMetrics
from penstock.gateway.telemetry.metrics_endpoint import scrape_router
from penstock.gateway.telemetry.scrape import scrape
from penstock.gateway.telemetry.tracing import Tracing

log = structlog.get_logger(__name__)

RETRY_START_S = 0.5
CLIENT_GONE = 499


class Gateway:
    """One gateway process. Holds no request's state but the number of those open."""

    def __init__(
        self,
        options: GatewayOptions,
        *,
        store: AsyncStore,
        blobs: BlobStore,
        lifetime: Lifetime,
        tracing: Tracing | None = None,
    ) -> None:
        self._tracing = tracing
        self._options = options
        self._store = store
        self._lifetime = lifetime
        self._door = KeyAuth(options.keys, rate_per_s=options.rate_per_s, burst=options.burst)
        self.metrics = GatewayMetrics(open_requests=lambda: self._open, torchserve=options.torchserve_metrics)
        self.registry = ModelRegistry(store, options.models)
        results = ResultReader(store, blobs)
        intake = Submitter(options, store=store, blobs=blobs, registry=self.registry, metrics=self.metrics, tracing=tracing)
        self._submit = SubmitEndpoint(intake, store=store, results=results, lifetime=lifetime)
        answer_now = partial(
            PredictEndpoint,
            intake,
            options,
            store=store,
            registry=self.registry,
            results=results,
            metrics=self.metrics,
            lifetime=lifetime,
        )
        self._predict, self._explain = answer_now(), answer_now(route="explanations")
        replays, holds = Replays(intake, store=store, blobs=blobs, registry=self.registry), Holds()
        self._embeddings = Embeddings(intake, options, store=store, registry=self.registry, results=results, lifetime=lifetime)
        self._files = OpenAIFiles(files := FileStore(options.files_dir), options)
        run_service = RunService(AsyncRunStore(store), files, file_ttl_s=options.file_ttl_s)
        self._runs = self._run_routes(run_service)
        self._pages = self._dashboard(blobs, replays, holds, run_service) if options.dashboard else None
        self._routers = self._slow_routes(results, replays, holds)
        self.api = self._build_api()
        self._open = 0
        self._starting: asyncio.Task[None] | None = None

    def _run_routes(self, service: RunService) -> list[APIRouter]:
        kinds = (RunRoutes, OpenAIBatches)
        return [kind(service, registry=self.registry, options=self._options).router() for kind in kinds]

    def _dashboard(self, blobs: BlobStore, replays: Replays, holds: Holds, runs: RunService) -> Pages:
        return Pages(
            self._options,
            store=self._store,
            blobs=blobs,
            door=self._door,
            registry=self.registry,
            replays=replays,
            holds=holds,
            lifetime=self._lifetime,
            document=self._described,
            runs=runs,
        )

    def _slow_routes(self, results: ResultReader, replays: Replays, holds: Holds) -> list[APIRouter]:
        store, options, registry, lifetime = self._store, self._options, self.registry, self._lifetime
        job_log = GatewayJobLog(options.log_jobs)
        return [
            JobReads(store, registry=registry, results=results, lifetime=lifetime, holds=holds, job_log=job_log).router(),
            replays.router(),
            JobEvents(store, lifetime=lifetime, holds=holds, heartbeat_s=options.heartbeat_s).router(),
            self._embeddings.router(),
            self._files.router(),
            *self._runs,
            Rollouts(store, registry).router(),
            Profiles(store, registry).router(),
            QueueReads(store, registry=registry).router(),
            Health(store, registry=registry, lifetime=lifetime).router(),
            *([scrape_router(self.scrape)] if options.metrics else []),
            *([self._pages.router()] if self._pages else []),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._serve(self._below_root(scope) if self._options.root_path else scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)

    def _below_root(self, scope: Scope) -> Scope:
        """Proxies differ in whether they take their prefix off; with it or without, it is the same path."""
        root, path = self._options.root_path, scope["path"]
        return {**scope, "path": path[len(root) :] or "/"} if path == root or path.startswith(root + "/") else scope

    async def start(self) -> None:
        """Never fails for want of a store: the gateway then answers 503 and goes on trying."""
        try:
            await self._store.start()
            await self._store.ping()
            self._lifetime.started = True
        except StoreUnavailable as error:
            log.warning("store_unavailable_at_start", reason=error.message)
            self._starting = asyncio.create_task(self._keep_starting())
        await self.registry.start()
        self._files.start()

    async def scrape(self) -> bytes:
        """What the main port tells."""
        return await scrape(self.metrics, self._store, self.registry, private=False, blob_dir=self._options.blob_dir)

    async def scrape_privately(self) -> bytes:
        """The same with what only the operator may know."""
        return await scrape(self.metrics, self._store, self.registry, private=True, blob_dir=self._options.blob_dir)

    async def close(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
        if self._pages is not None:
            await self._pages.close()
        await self._files.close()
        await self.registry.close()
        await self._store.close()
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)

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
        target = submit_target(scope["path"])
        route, head = target.route if target else "unknown", dict[bytes, bytes]()
        probe = scope["path"] in PROBES
        self._open += not probe
        try:
            head = read_head(scope["headers"])
            self._check(scope, head)
            if target is None and self._pages is not None and is_page(scope["path"]):
                route, status = await self._page(self._pages, scope, receive, send, head)
            elif target is None:
                scope["caller"] = self._admit(scope, head)
                route, status = await self._others(scope, receive, send)
            else:
                scope["caller"] = caller = self._admit(scope, head)
                status = await self._hot(target, scope, receive, send, head, caller)
        except ClientGone:
            status = CLIENT_GONE
        except Exception as error:  # noqa: BLE001 - the last line: every request gets an answer
            status = await self._refuse(error, scope, send, head)
        finally:
            self._open -= not probe
        if not probe:
            self.metrics.count_answer(route, scope["method"], status, time.perf_counter() - started)

    def _check(self, scope: Scope, head: Head) -> None:
        if len(scope["raw_path"]) + len(scope["query_string"]) > MAX_TARGET_BYTES:
            raise HeadersTooLarge(f"the request target exceeds {MAX_TARGET_BYTES} bytes")
        hosts = self._options.hosts
        if hosts and host_name(head.get(b"host", b"")) not in hosts:
            raise WrongHost(
                "this gateway answers to its loopback names only",
                hint="Call it as localhost or 127.0.0.1, or bind another host.",
            )
        if self._open > self._options.max_requests and scope["path"] not in PROBES:
            raise GatewayBusy(f"this gateway process serves {self._options.max_requests} requests at once", retry_after_s=2.0)

    def _admit(self, scope: Scope, head: Head) -> Caller:
        """Before the body is read and the path looked up: a stranger learns neither which routes nor which models there are."""
        authorization = head.get(b"authorization")
        if is_public(scope["path"]):
            return self._door.glance(authorization)
        try:
            return self._door.admit(authorization, (scope.get("client") or ("",))[0])
        except RateLimited as error:
            self.metrics.count_refusal("unknown", error)
            raise

    async def _hot(self, target: SubmitTarget, scope: Scope, receive: Receive, send: Send, head: Head, caller: Caller) -> int:
        if scope["method"] != "POST":
            raise MethodNotAllowed(f"{scope['method'][:20]} is not a method of this path; it takes POST", allow="POST")
        if Role.SUBMIT not in caller.roles:
            need(caller, "POST", target.route)
        return await self._endpoint(target)(scope, receive, send, head, target.model, target.version)

    def _endpoint(self, target: SubmitTarget) -> SubmitEndpoint | PredictEndpoint:
        if target.route.startswith(PREDICT):
            return self._predict
        return self._explain if target.route.startswith(EXPLAIN) else self._submit

    async def _page(self, pages: Pages, scope: Scope, receive: Receive, send: Send, head: Head) -> tuple[str, int]:
        """As any other path, but a browser's session stands for a key, and a stranger is shown the way in."""
        if not self._door.keyed or b"authorization" in head or is_public(scope["path"]):
            scope["caller"] = self._admit(scope, head)
            return await self._others(scope, receive, send)
        request = Request(scope, receive)
        try:
            caller = await pages.caller(request.headers)
            answer = await pages.stranger(request) if caller is None else None
        except PenstockError as error:
            answer = await pages.refusal(request, self._problem(error, scope, head.get(b"x-request-id")), error)
        if answer is not None:
            await answer(scope, receive, send)  # type: ignore[arg-type]
            return "unknown", answer.status_code
        scope["caller"] = caller
        return await self._others(scope, receive, send)

    async def _others(self, scope: Scope, receive: Receive, send: Send) -> tuple[str, int]:
        seen = [CLIENT_GONE]
        if scope["method"] == "HEAD" and scope["path"] in PROBES:
            # As a GET; the server, which has the request as it came, sends no body.
            scope = {**scope, "method": "GET"}

        async def sending(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                seen[0] = message["status"]
            await send(message)

        try:
            await self.api(scope, receive, sending)  # type: ignore[arg-type]
        except Exception:
            # The framework answers a bug through our handler, then raises it once more for servers that log it.
            if seen[0] == CLIENT_GONE:
                raise
        return getattr(scope.get("route"), "path", "unknown"), seen[0]

    async def _refuse(self, error: Exception, scope: Scope, send: Send, head: Head) -> int:
        problem = self._problem(error, scope, head.get(b"x-request-id"))
        try:
            await wire.answer_problem(send, problem, head)
        except RuntimeError:
            # The answer had begun when it failed; the server closes the connection.
            log.warning("answer_broken_off", path=scope["path"][:200])
        return problem.status

    def _problem(self, error: Exception, scope: Scope, given_id: bytes | None) -> problems.ProblemResponse:
        request_id, instance = problems.request_id_of(given_id), scope["path"][:200]
        trace = scope.get("trace") or caller_trace_in(scope["headers"])
        trace_id = trace.trace_id if trace else ""
        told = error if isinstance(error, PenstockError) else problems.bug()
        problem = problems.render(told, request_id=request_id, instance=instance, trace=trace)
        if speaks_openai(instance):
            problem = as_openai(problem, told)
        if isinstance(error, StoreUnavailable):
            log.warning("store_unavailable", request_id=request_id, trace_id=trace_id, path=instance, reason=error.message)
        if problem.status == 500 and not isinstance(error, EndedWithoutOutput):
            log.error("request_failed", request_id=request_id, trace_id=trace_id, path=instance, exc_info=error)
        return problem

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self.start()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    def _build_api(self) -> FastAPI:
        # No pages that load scripts from elsewhere; the document is built from the live registry.
        api = FastAPI(
            title="penstock",
            version="1",
            openapi_url=None,
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
            dependencies=[Depends(allowed)],
        )
        for router in self._routers:
            api.include_router(router)
        api.add_api_route("/openapi.json", self._document, methods=["GET"], include_in_schema=False, response_class=Response)
        for kind in (PenstockError, HTTPException, RequestValidationError, Exception):
            api.add_exception_handler(kind, self._answer_error)
        return api

    async def _document(self) -> Response:
        return Response(orjson.dumps(self._described()), media_type="application/json")

    def _described(self) -> dict[str, Any]:
        return document(self.api, self.registry.models, keyed=self._door.keyed)

    async def _answer_error(self, request: Request, error: Exception) -> Response:
        given = request.headers.get("x-request-id", "").encode("latin-1")
        ours = framework_errors.ours(error, request, self._routers)
        problem = self._problem(ours, request.scope, given or None)  # type: ignore[arg-type]
        if self._pages is not None and is_page(request.scope["path"]):
            return await self._pages.refusal(request, problem, ours)
        response = Response(problem.body, status_code=problem.status)
        response.raw_headers = problem.headers
        return response

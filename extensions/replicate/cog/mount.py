"""/cog/{model}: one model as its container would answer, so that a caller of Cog changes only the base URL (D88)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.broker.records import QueueStats
from penstock.errors import StoreUnavailable
from penstock.extensions.replicate.cog.health import health_view
from penstock.extensions.replicate.cog.predictions import AskedOfCog, CogPredictions
from penstock.extensions.replicate.gateway.catalog import ReplicateCatalog
from penstock.extensions.replicate.gateway.document import COG_VERSION, cog_document
from penstock.extensions.replicate.gateway.predictions import Predictions, base_url
from penstock.gateway.asgi.connection import connection_of
from penstock.gateway.asgi.negotiation import parse_preference
from penstock.gateway.asgi.wire import ClientGone, json_response
from penstock.gateway.auth.keys import Caller
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.auth.rules import ANY, SEE, STOP, SUBMIT, RouteRules
from penstock.gateway.extending import GatewayPart
from penstock.gateway.jobs.events.encoding import SSE
from penstock.gateway.models.queues import stats_of_model
from penstock.gateway.services import Services

PREFIX = "/cog/{model}"
_ONE = "/predictions/{prediction_id}"
_ASYNC = "respond-async"
_BODY = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {"type": "object", "properties": {"input": {"type": "object"}, "id": {"type": "string"}}}
        }
    },
}
Prefer = Annotated[str, Header(description=_ASYNC)]
Accept = Annotated[str, Header(include_in_schema=False)]
_RULES = RouteRules(
    {
        ("POST", "/replicate/v1/predictions"): SUBMIT,
        ("POST", "/replicate/v1/models/{owner}/{name}/predictions"): SUBMIT,
        ("POST", "/replicate/v1/deployments/{owner}/{name}/predictions"): SUBMIT,
        ("GET", "/replicate/v1/predictions"): SEE,
        ("GET", "/replicate/v1/predictions/{job_id}"): SEE,
        ("GET", "/replicate/v1/predictions/{job_id}/stream"): SEE,
        ("POST", "/replicate/v1/predictions/{job_id}/cancel"): STOP,
        ("GET", "/replicate/v1/models/{owner}/{name}"): ANY,
        ("GET", "/replicate/v1/models/{owner}/{name}/versions"): ANY,
        ("GET", "/replicate/v1/models/{owner}/{name}/versions/{version}"): ANY,
        ("POST", "/replicate/v1/files"): SUBMIT,
        ("GET", "/replicate/v1/files"): SEE,
        ("GET", "/replicate/v1/files/{file_id}"): SEE,
        ("DELETE", "/replicate/v1/files/{file_id}"): STOP,
        ("GET", "/cog/{model}"): ANY,
        ("GET", "/cog/{model}/"): ANY,
        ("GET", "/cog/{model}/health-check"): ANY,
        ("GET", "/cog/{model}/openapi.json"): ANY,
        ("POST", "/cog/{model}/predictions"): SUBMIT,
        ("PUT", "/cog/{model}/predictions/{prediction_id}"): SUBMIT,
        ("POST", "/cog/{model}/predictions/{prediction_id}/cancel"): STOP,
    },
    strict=("/replicate/", "/cog/"),
)


class CogMount:
    """The routes of a container, for each model."""

    def __init__(self, services: Services) -> None:
        self._predictions = CogPredictions(services)
        self._root = services.settings.gateway.root_path
        self._store = services.store
        self._registry = services.registry

    def router(self) -> APIRouter:
        router = APIRouter(default_response_class=Response, tags=["cog"])
        add = router.add_api_route
        for name, path in (("root", PREFIX), ("root_slash", f"{PREFIX}/")):
            add(path, self.root, methods=["GET"], summary="The URLs of a model's container", name=name)
        add(f"{PREFIX}/health-check", self.health, methods=["GET"], summary="Whether the model takes predictions")
        add(f"{PREFIX}/openapi.json", self.document, methods=["GET"], summary="The model's schemas as Cog has them")
        made: dict[str, Any] = {"openapi_extra": {"requestBody": _BODY}}
        add(f"{PREFIX}/predictions", self.create, methods=["POST"], summary="Predict", **made)
        add(f"{PREFIX}{_ONE}", self.put, methods=["PUT"], summary="Predict once, however often it is sent", **made)
        add(f"{PREFIX}{_ONE}/cancel", self.cancel, methods=["POST"], summary="Cancel a prediction")
        return router

    async def root(self, model: str, caller: CallerParam) -> Response:
        entry, _ = await self._registry.find(model)
        own = f"{self._root}{PREFIX.format(model=entry.name)}"
        urls = {
            "docs_url": "/openapi.json",
            "openapi_url": "/openapi.json",
            "healthcheck_url": "/health-check",
            "predictions_url": "/predictions",
            "predictions_idempotent_url": _ONE,
            "predictions_cancel_url": f"{_ONE}/cancel",
        }
        return json_response({"cog_version": COG_VERSION} | {name: f"{own}{path}" for name, path in urls.items()})

    async def health(self, model: str, caller: CallerParam) -> Response:
        entry, _ = await self._registry.find(model)
        stats: QueueStats | None = None
        # The check is always answered; its status says what it found.
        with suppress(StoreUnavailable):
            stats = await stats_of_model(self._store, entry)
        return json_response(health_view(entry, self._registry.workers, stats))

    async def document(self, model: str, caller: CallerParam) -> Response:
        entry, _ = await self._registry.find(model)
        return json_response(cog_document(entry.default))

    async def create(
        self, model: str, request: Request, caller: CallerParam, prefer: Prefer = "", accept: Accept = ""
    ) -> Response:
        return await self._create(model, "", request, caller, prefer, accept)

    async def put(
        self,
        model: str,
        prediction_id: str,
        request: Request,
        caller: CallerParam,
        prefer: Prefer = "",
        accept: Accept = "",
    ) -> Response:
        return await self._create(model, prediction_id, request, caller, prefer, accept)

    async def cancel(self, model: str, prediction_id: str, caller: CallerParam) -> Response:
        entry, _ = await self._registry.find(model)
        await self._predictions.cancel(entry, prediction_id, caller)
        return json_response({})

    async def _create(self, model: str, named: str, request: Request, caller: Caller, prefer: str, accept: str) -> Response:
        asked = AskedOfCog(model, named, request, caller, SSE in accept)
        submit, known = await self._predictions.checked(asked)
        base, given = base_url(request, self._root), asked.shown
        if asked.is_stream:
            connection = connection_of(request.scope)
            return StreamedResponse(lambda send: self._predictions.stream(submit, known, send, connection, base))
        if _ASYNC.encode() in parse_preference(prefer.encode("latin-1")).applied:
            job, view = await self._predictions.answer_later(submit, known, base)
            headers = {"preference-applied": _ASYNC, "x-penstock-job": str(job.id), "x-penstock-version": job.version}
            return json_response({**view, "input": given}, status=202, headers=headers)
        job = await self._predictions.answer(submit, known, request)
        view = {**await self._predictions.view(job, base), "input": given}
        return json_response(view, headers={"x-penstock-job": str(job.id), "x-penstock-version": job.version})


class StreamedResponse(Response):
    """Written by `write`, which watches the connection itself."""

    def __init__(self, write: Callable[[Send], Awaitable[None]]) -> None:
        super().__init__(media_type=SSE)
        self._write = write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._write(send)
        except ClientGone:
            # The client has left, and its job is cancelled.
            return


def gateway(services: Services) -> GatewayPart:
    return GatewayPart(routers=[kind(services).router() for kind in (Predictions, ReplicateCatalog, CogMount)], rules=_RULES)

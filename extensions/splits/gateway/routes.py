"""The routes of a model's split. What they do is loaded with the first call, since few models have a split."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from penstock.broker.store.aio import AsyncStore
from penstock.gateway.asgi.wire import json_response
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.auth.rules import MANAGE, SEE, RouteRules
from penstock.gateway.dashboard.parts import DashboardPart, PageQuery, Section
from penstock.gateway.extending import GatewayPart
from penstock.gateway.models.registry import ModelEntry, ModelRegistry
from penstock.gateway.models.rollouts import read_object
from penstock.gateway.services import Services

if TYPE_CHECKING:
    from penstock.extensions.splits.gateway.service import SplitService

_PERCENT = {"type": "number", "minimum": 0, "maximum": 100}
_VERSION = {"type": "string", "description": "The version's name"}
_BODY: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "weights": {
            "type": "object",
            "additionalProperties": _PERCENT,
            "description": "Percent by version, 100 together, without a canary, which has its steps. None: the default",
        },
        "sticky": {"type": "string", "description": "The header whose value decides: the same value gets the same version"},
        "shadow": {
            "type": "object",
            "required": ["version", "share"],
            "additionalProperties": False,
            "properties": {
                "version": _VERSION,
                "share": _PERCENT,
                "tolerance": {"type": "number", "default": 1e-6, "description": "Of numbers in JSON, relative to the larger"},
            },
        },
        "canary": {
            "type": "object",
            "required": ["version"],
            "additionalProperties": False,
            "properties": {
                "version": _VERSION,
                "steps": {"type": "array", "items": _PERCENT, "default": [1, 5, 25, 100]},
                "step_s": {"type": "number", "default": 300, "description": "Seconds that each step lasts at least"},
                "max_errors": {"type": "number", "default": 0.01, "description": "Error rate beyond that of the others"},
                "max_p99": {"type": "number", "default": 1.2, "description": "p99 as a multiple of that of the others"},
                "min_samples": {"type": "integer", "default": 200, "description": "Ended jobs that each step needs"},
            },
        },
    },
}

_SPLIT = "/v1/models/{model}/split"
_RULES = RouteRules(
    {("PUT", _SPLIT): MANAGE, ("GET", _SPLIT): SEE, ("DELETE", _SPLIT): MANAGE},
    acts={("PUT", _SPLIT): "split", ("DELETE", _SPLIT): "end split"},
)


class SplitRoutes:
    """PUT, GET and DELETE /v1/models/{model}/split, and the split on the model's page."""

    def __init__(self, store: AsyncStore, registry: ModelRegistry) -> None:
        self._store = store
        self._registry = registry
        self._loaded: SplitService | None = None

    def router(self) -> APIRouter:
        router = APIRouter(default_response_class=Response)
        path, tags = "/v1/models/{model}/split", list[str | Enum](["models"])
        body = {"requestBody": {"required": True, "content": {"application/json": {"schema": _BODY}}}}
        summary = "Divide the requests that name no version"
        router.add_api_route(path, self.divide, methods=["PUT"], tags=tags, summary=summary, openapi_extra=body)
        router.add_api_route(path, self.show, methods=["GET"], tags=tags, summary="The split of a model")
        router.add_api_route(path, self.end, methods=["DELETE"], tags=tags, summary="End the split of a model")
        return router

    async def divide(self, model: str, request: Request, caller: CallerParam) -> Response:
        """`{"weights": {"1": 90, "2": 10}}` and more. All gateways follow within a second."""
        return json_response(await self._service().divide(model, await read_object(request)))

    async def show(self, model: str, caller: CallerParam) -> Response:
        """The share of each version, what was decided and why, and how the jobs of each version ended."""
        return json_response(await self._service().view(model))

    async def end(self, model: str, caller: CallerParam) -> Response:
        """All requests that name no version go to the default one again."""
        await self._service().end(model)
        return Response(status_code=204)

    async def section(self, entry: ModelEntry, query: PageQuery) -> Section | None:
        return None if entry.chooser is None else Section("splits/_split.html", await self._service().view(entry.name))

    def _service(self) -> SplitService:
        if self._loaded is None:
            from penstock.extensions.splits.gateway.service import SplitService

            self._loaded = SplitService(self._store, self._registry)
        return self._loaded


def gateway(services: Services) -> GatewayPart:
    routes = SplitRoutes(services.store, services.registry)
    page = DashboardPart(templates={"splits": "penstock.extensions.splits.gateway"}, of_model=routes.section)
    return GatewayPart((routes.router(),), rules=_RULES, dashboard=page)

"""GET /v1/history and GET /v1/models/{model}/history."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from penstock.extensions.history.gateway.pages import dashboard
from penstock.extensions.history.gateway.reader import HistoryBeat, HistoryReader
from penstock.extensions.history.gateway.view import view
from penstock.extensions.history.gateway.window import HistoryRange, asked_range
from penstock.extensions.history.settings import HistorySettings
from penstock.extensions.history.store import LONGEST_S, SHORTEST_S
from penstock.gateway.asgi.wire import json_response
from penstock.gateway.auth.rules import SEE, RouteRules
from penstock.gateway.extending import GatewayPart
from penstock.gateway.services import Services

_MOMENT = "RFC 3339 with an offset, or Unix seconds"
RangeParam = Annotated[
    int | None, Query(ge=SHORTEST_S, le=LONGEST_S, description="How far to look back, in seconds; 3600 without it and `from`")
]
FromParam = Annotated[str | None, Query(alias="from", description=f"The start, in place of range_s: {_MOMENT}")]
ToParam = Annotated[str | None, Query(alias="to", description=f"The end: {_MOMENT}. Without it, now")]

_PATHS = ("/v1/history", "/v1/models/{model}/history")
_RULES = RouteRules({("GET", path): SEE for path in (*_PATHS, "/ui/history")})
_SERIES = {"type": "array", "items": {"type": ["number", "null"]}, "description": "One value per moment of `at`"}
_PERCENTILES = {"type": "object", "properties": dict.fromkeys(("p50", "p95", "p99"), _SERIES)}
_HISTORY = {
    "type": "object",
    "required": ["model", "step_s", "percentile_error", "at"],
    "properties": {
        "model": {"type": ["string", "null"], "description": "null: all models together"},
        "step_s": {"type": "integer"},
        "percentile_error": {"type": "number", "description": "How far a percentile may be off, as a share of it"},
        "at": {"type": "array", "items": {"type": "integer"}, "description": "Start of each step in Unix seconds"},
        "total_s": _PERCENTILES,
        "queue_s": _PERCENTILES,
        "releases": {"type": "object", "additionalProperties": _SERIES, "description": "Shares of the batches, by reason"},
        "away": {"type": "array", "items": {"type": "string"}, "description": "Models whose store does not answer"},
    },
    "additionalProperties": _SERIES,
}


class HistoryReads:
    def __init__(self, reader: HistoryReader) -> None:
        self._reader = reader

    def router(self) -> APIRouter:
        router = APIRouter(default_response_class=Response, tags=["queues"])
        router.add_api_route(
            "/v1/history", self.all, methods=["GET"], summary="What happened lately, all models together", name="history"
        )
        router.add_api_route(
            "/v1/models/{model}/history",
            self.one,
            methods=["GET"],
            summary="What happened to a model lately",
            name="model_history",
        )
        return router

    async def all(self, range_s: RangeParam = None, since: FromParam = None, until: ToParam = None) -> Response:
        return await self._answer("", asked_range(range_s, since, until))

    async def one(self, model: str, range_s: RangeParam = None, since: FromParam = None, until: ToParam = None) -> Response:
        return await self._answer(model, asked_range(range_s, since, until))

    async def _answer(self, model: str, asked: HistoryRange) -> Response:
        return json_response(view(await self._reader.read(model, asked)))


def gateway(services: Services) -> GatewayPart:
    """The routes, the charts on pages, and the beat that keeps what happens now."""
    reader = HistoryReader(services.store, services.registry)
    beat = (HistoryBeat(services.store, services.registry),) if services.settings.extension(HistorySettings).enabled else ()
    routers = (HistoryReads(reader).router(),)
    return GatewayPart(routers, rules=_RULES, lifespans=beat, document=_described, dashboard=dashboard(reader))


def _described(document: dict[str, Any], keyed: bool) -> dict[str, Any]:
    for path in _PATHS:
        document["paths"][path]["get"]["responses"]["200"]["content"] = {"application/json": {"schema": _HISTORY}}
    return document

"""GET /v1/history and GET /v1/models/{model}/history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response

from penstock.errors import BadRequest
from penstock.extensions.history.gateway.reader import HistoryBeat, HistoryReader
from penstock.extensions.history.gateway.view import view
from penstock.extensions.history.gateway.window import HistoryRange, asked_range, is_too_old
from penstock.extensions.history.store import SHORTEST_S
from penstock.gateway.asgi.wire import json_response
from penstock.gateway.extending import GatewayPart
from penstock.gateway.services import Services

if TYPE_CHECKING:
    from penstock.extensions.history.gateway.prometheus import PrometheusHistory

Source = Literal["store", "prometheus"]
# As far back as a Prometheus is asked; the store keeps less.
_MOST_S = 366 * 86_400
_MOMENT = "RFC 3339 with an offset, or Unix seconds"
RangeParam = Annotated[
    int | None, Query(ge=SHORTEST_S, le=_MOST_S, description="How far to look back, in seconds; 3600 without it and `from`")
]
FromParam = Annotated[str | None, Query(alias="from", description=f"The begin, in place of range_s: {_MOMENT}")]
ToParam = Annotated[str | None, Query(alias="to", description=f"The end: {_MOMENT}. Without it, now")]


SourceParam = Annotated[Source | None, Query(description="Without it, the store for all that it keeps")]


class HistoryReads:
    def __init__(self, services: Services) -> None:
        self._store = services.store
        self._registry = services.registry
        self._reader = HistoryReader(services.store, services.registry)
        self._options = services.options.history
        self._prometheus: PrometheusHistory | None = None

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

    async def all(
        self, range_s: RangeParam = None, since: FromParam = None, until: ToParam = None, source: SourceParam = None
    ) -> Response:
        return json_response(await self._read("", asked_range(range_s, since, until), source))

    async def one(
        self, model: str, range_s: RangeParam = None, since: FromParam = None, until: ToParam = None, source: SourceParam = None
    ) -> Response:
        return json_response(await self._read(model, asked_range(range_s, since, until), source))

    async def _read(self, model: str, asked: HistoryRange, source: Source | None) -> dict[str, Any]:
        chosen = source or await self._usual_source(asked)
        return view(await self._reader.read(model, asked)) if chosen == "store" else await self._from_prometheus(model, asked)

    async def _usual_source(self, asked: HistoryRange) -> Source:
        """The store for all that it keeps, else Prometheus, if there is one."""
        if not self._options.prometheus_url or (self._options.is_kept and asked.is_usual):
            return "store"
        is_kept = self._options.is_kept and not is_too_old(asked, await self._store.now())
        return "store" if is_kept else "prometheus"

    async def _from_prometheus(self, model: str, asked: HistoryRange) -> dict[str, Any]:
        if not self._options.prometheus_url:
            raise BadRequest("this gateway knows no Prometheus", hint="An operator names it in gateway.prometheus_url.")
        if self._prometheus is None:
            # Loaded here, because few deployments name one.
            from penstock.extensions.history.gateway.prometheus import PrometheusHistory

            self._prometheus = PrometheusHistory(self._options.prometheus_url, self._options.prometheus_labels)
        if model:
            await self._registry.find(model)
        return await self._prometheus.read(model, asked, await self._store.now())


def gateway(services: Services) -> GatewayPart:
    """The routes, and the beat that keeps what happens now."""
    beat = (HistoryBeat(services.store, services.registry),) if services.options.history.is_kept else ()
    return GatewayPart(routers=(HistoryReads(services).router(),), lifespans=beat)

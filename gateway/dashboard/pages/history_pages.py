"""The charts of the last minutes to days, which pages load and load again while they are open."""

from __future__ import annotations

import structlog
from fastapi import APIRouter
from starlette.responses import Response

from penstock.broker.store.aio import AsyncStore
from penstock.errors import BadRequest, StoreUnavailable
from penstock.extensions.history.gateway.reader import HistoryReader
from penstock.extensions.history.gateway.view import view
from penstock.extensions.history.gateway.window import HistoryRange
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.dashboard.render import Renderer
from penstock.gateway.dashboard.rows.charts import DEFAULT_RANGE, RANGES, HistoryCharts, charts_of
from penstock.gateway.models.registry import ModelRegistry

log = structlog.get_logger(__name__)


class HistoryPages:
    """The route /ui/history: the charts as a part of a page, of one model, or of all if none is named."""

    def __init__(self, renderer: Renderer, *, store: AsyncStore, registry: ModelRegistry) -> None:
        self._renderer = renderer
        self._reader = HistoryReader(store, registry)

    def add_routes(self, router: APIRouter) -> None:
        router.add_api_route("/ui/history", self.charts, methods=["GET"])

    async def charts(self, caller: CallerParam, model: str = "", span: str = "") -> Response:
        return await self._renderer.page(
            "_charts.html", caller, {"charts": await self._charts(model, RANGES[checked_span(span)])}
        )

    async def _charts(self, model: str, range_s: int) -> HistoryCharts | None:
        """None while the store does not answer, which the page then says in their place."""
        try:
            history = await self._reader.read(model, HistoryRange(range_s))
        except StoreUnavailable as error:
            log.debug("history_unread", reason=error.message)
            return None
        return charts_of(history, view(history), range_s)


def checked_span(span: str) -> str:
    """The range that the address names, or the usual one. Raises `BadRequest` for another one."""
    if span and span not in RANGES:
        raise BadRequest(f"no chart has the range {span[:16]!r}", hint=f"Ranges: {', '.join(RANGES)}.")
    return span or DEFAULT_RANGE

"""The charts of the last minutes to days, which pages of the dashboard load and load again while they are open."""

from __future__ import annotations

from dataclasses import dataclass

import structlog
from fastapi import APIRouter
from starlette.responses import Response

from penstock.errors import BadRequest, StoreUnavailable
from penstock.extensions.history.gateway.charts import DEFAULT_RANGE, RANGES, HistoryCharts, charts_of
from penstock.extensions.history.gateway.reader import HistoryReader
from penstock.extensions.history.gateway.view import view
from penstock.extensions.history.gateway.window import HistoryRange
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.dashboard.parts import DashboardPart, PageQuery, Section
from penstock.gateway.dashboard.render import Renderer
from penstock.gateway.models.registry import ModelEntry

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ShownHistory:
    """The section that loads the charts of `model`, or of all models if it is empty, into the page at this address."""

    page: str
    model: str
    span: str


class HistoryPages:
    """The route /ui/history: the charts as a part of a page, of one model, or of all if none is named."""

    def __init__(self, renderer: Renderer, reader: HistoryReader) -> None:
        self._renderer = renderer
        self._reader = reader

    def add_routes(self, router: APIRouter) -> None:
        router.add_api_route("/ui/history", self.charts, methods=["GET"])

    async def charts(self, caller: CallerParam, model: str = "", span: str = "") -> Response:
        return await self._renderer.page(
            "history/_charts.html", caller, {"charts": await self._charts(model, RANGES[checked_span(span)])}
        )

    async def _charts(self, model: str, range_s: int) -> HistoryCharts | None:
        """None while the store does not answer, which the page then says in their place."""
        try:
            history = await self._reader.read(model, HistoryRange(range_s))
        except StoreUnavailable as error:
            log.debug("history_unread", reason=error.message)
            return None
        return charts_of(history, view(history), range_s)


async def _of_queues(query: PageQuery) -> Section:
    return _section("/", "", query)


async def _of_model(entry: ModelEntry, query: PageQuery) -> Section:
    return _section(f"/ui/models/{entry.name}", entry.name, query)


def _section(page: str, model: str, query: PageQuery) -> Section:
    return Section("history/_history.html", ShownHistory(page, model, checked_span(query.get("span", ""))))


def checked_span(span: str) -> str:
    """The range that the address names, or the usual one. Raises `BadRequest` for another one."""
    if span and span not in RANGES:
        raise BadRequest(f"no chart has the range {span[:16]!r}", hint=f"Ranges: {', '.join(RANGES)}.")
    return span or DEFAULT_RANGE


def dashboard(reader: HistoryReader) -> DashboardPart:
    return DashboardPart(
        templates={"history": "penstock.extensions.history.gateway"},
        pages=lambda renderer: HistoryPages(renderer, reader),
        of_queues=_of_queues,
        of_model=_of_model,
    )

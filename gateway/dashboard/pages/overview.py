"""The pages about queues, one model, workers and the API, and the live stream of the queues."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from penstock.access import Role
from penstock.gateway.asgi.problems import titles
from penstock.gateway.asgi.wire import json_response
from penstock.gateway.auth.keys import Caller
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.dashboard.parts import DashboardPart, sections
from penstock.gateway.dashboard.poller import Overview, OverviewPoller
from penstock.gateway.dashboard.render import HEADERS, Renderer
from penstock.gateway.dashboard.rows.machine_rows import (
    SLOT_TONES,
    core_map,
    place_of,
    sample_of,
    slowest_call,
    version_rows,
    worker_rows,
)
from penstock.gateway.models.registry import ModelEntry
from penstock.rollout import CHANGEABLE_LIMITS

if TYPE_CHECKING:
    from penstock.gateway.services import Services

# A stream ends after this time. The browser then reconnects, and its session is checked again.
STREAM_S = 300.0
# The interval of heartbeats, which keep proxies from closing a quiet stream.
HEARTBEAT_S = 15.0
RETRY = b"retry: 2000\n\n"
HEARTBEAT = b": still here\n\n"
_STREAM_HEADERS = {**HEADERS, "cache-control": "no-store, no-transform", "x-accel-buffering": "no"}
Document = Callable[[], dict[str, Any]]
DOCS = "/docs"


class OverviewPages:
    """The routes of these pages. `document` gives the OpenAPI document."""

    def __init__(
        self,
        renderer: Renderer,
        poller: OverviewPoller,
        services: Services,
        extensions: Sequence[DashboardPart],
        *,
        document: Document,
    ) -> None:
        self._renderer = renderer
        self._poller = poller
        self._registry = services.registry
        self._waiting = services.waiting
        self._extensions = extensions
        self._document = document
        # Whether /metrics is served beside the API.
        self._scraped = services.shows_metrics
        self._tables: dict[bool, tuple[int, str]] = {}

    def add_routes(self, router: APIRouter) -> None:
        router.add_api_route("/", self.queues, methods=["GET"])
        router.add_api_route("/ui/live", self.live, methods=["GET"])
        router.add_api_route("/ui/models/{model}", self.model, methods=["GET"])
        router.add_api_route("/ui/workers", self.workers, methods=["GET"])
        router.add_api_route("/ui/api", self.api, methods=["GET"])
        router.add_api_route("/ui/openapi.json", self.openapi, methods=["GET"])
        router.add_api_route(DOCS, self.docs, methods=["GET"])

    async def queues(self, request: Request, caller: CallerParam) -> Response:
        overview = await self._poller.overview()
        sample = next(((entry.name, _sample(entry)) for entry in self._registry.models.values()), None)
        more = await sections(part.of_queues(request.query_params) for part in self._extensions if part.of_queues is not None)
        shown = {"here": "queues", "overview": overview, "sample": sample, "sections": more}
        return await self._renderer.page("queues.html", caller, shown)

    async def live(self, caller: CallerParam) -> StreamingResponse:
        """The table of the queues as a server-sent event, whenever it changes."""
        self._waiting.check(caller)
        await self._renderer.load()
        return StreamingResponse(self._stream(caller), media_type="text/event-stream", headers=_STREAM_HEADERS)

    async def _stream(self, caller: Caller) -> AsyncIterator[bytes]:
        began_at = sent_at = time.monotonic()
        manages, shown = Role.MANAGE in caller.roles, ""
        yield RETRY
        with self._waiting.open(caller):
            async for overview in self._poller.changes():
                now, html = time.monotonic(), self._table(overview, manages=manages)
                if html != shown or now - sent_at > HEARTBEAT_S:
                    yield _event("queues", html) if html != shown else HEARTBEAT
                    sent_at, shown = now, html
                if now - began_at > STREAM_S:
                    return

    def _table(self, overview: Overview, *, manages: bool) -> str:
        """The table as HTML, rendered once for all viewers with the same rights."""
        number, html = self._tables.get(manages, (-1, ""))
        if number != overview.number:
            html = self._renderer.html("_queues.html", {"overview": overview, "manages": manages})
            self._tables[manages] = (overview.number, html)
        return html

    async def model(self, model: str, request: Request, caller: CallerParam) -> Response:
        entry, _ = await self._registry.find(model)
        overview = await self._poller.overview()
        row = next((row for row in overview.rows if row.model == model), None)
        query, parts = request.query_params, self._extensions
        more = await sections(part.of_model(entry, query) for part in parts if part.of_model is not None)
        return await self._renderer.page(
            "model.html",
            caller,
            {
                "here": "queues",
                "model": entry,
                "row": row,
                "versions": version_rows(entry, self._registry.workers),
                "sample": _sample(entry),
                "rollout": self._registry.rollouts.get(model),
                "sections": more,
                "limits": CHANGEABLE_LIMITS,
            },
        )

    async def workers(self, caller: CallerParam) -> Response:
        await self._registry.refresh()
        rows = worker_rows(self._registry.workers, await self._registry.now())
        maps = {row.name: core_map(row.slots) for row in rows}
        helpers = {"tones": SLOT_TONES, "place": place_of, "slowest": slowest_call}
        shown = {"here": "workers", "workers": rows, "maps": maps, **helpers}
        return await self._renderer.page("workers.html", caller, shown)

    async def api(self, request: Request, caller: CallerParam) -> Response:
        shown = {
            "here": "api",
            "paths": self._document()["paths"],
            "codes": sorted(titles().items()),
            "scraped": self._scraped,
            "origin": f"{request.url.scheme}://{request.headers.get('host', '')}{self._renderer.url('')}",
        }
        return await self._renderer.page("api.html", caller, shown)

    async def docs(self, caller: CallerParam) -> Response:
        """Swagger UI over the gateway's own document (D120)."""
        return await self._renderer.page("docs.html", caller, {"here": "api"})

    async def openapi(self) -> Response:
        """`GET /openapi.json` for a signed-in browser, whose session the API does not accept."""
        return json_response(self._document(), headers=HEADERS)


def _sample(entry: ModelEntry) -> str:
    info = entry.default.info
    if info is not None and "application/json" not in info.accepts and "*/*" not in info.accepts:
        return "@FILE"
    return sample_of(info.input_schema if info else None)


def _event(name: str, html: str) -> bytes:
    lines = "".join(f"data: {line}\n" for line in html.splitlines() if line.strip())
    return f"event: {name}\n{lines}\n".encode()

"""The probes of Kubernetes, and the page of an error code."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import structlog
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from penstock.broker.protocol import NotAdmitted
from penstock.broker.store.aio import AsyncStore
from penstock.errors import NotFound, StoreUnavailable
from penstock.gateway.asgi.connection import Lifetime
from penstock.gateway.asgi.negotiation import JSON
from penstock.gateway.asgi.problems import STORE_UNREACHABLE, NotReady, titles
from penstock.gateway.asgi.wire import json_response
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.models.registry import ModelEntry, ModelRegistry
from penstock.gateway.models.slots import why_unserved

log = structlog.get_logger(__name__)
LOOK_S = 0.5
Parts = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Missing:
    """Why this gateway cannot take jobs, and which declared models have no worker, so that their jobs would wait."""

    own: Parts = field(default_factory=list)
    unserved: Parts = field(default_factory=list)


class Health:
    """The probe routes of one gateway."""

    def __init__(self, store: AsyncStore, *, registry: ModelRegistry, lifetime: Lifetime) -> None:
        self._store = store
        self._registry = registry
        self._lifetime = lifetime
        self._found = Missing()
        self._look_again_at = 0.0
        self._looking: asyncio.Future[Missing] | None = None

    def router(self) -> APIRouter:
        router = APIRouter(default_response_class=Response, tags=["health"])
        router.add_api_route("/livez", self.live, methods=["GET"], summary="The process answers")
        router.add_api_route("/readyz", self.ready, methods=["GET"], summary="Redis writable, every declared model served")
        router.add_api_route("/startupz", self.started, methods=["GET"], summary="The gateway has reached the store once")
        router.add_api_route("/problems/{code}", self.problem, methods=["GET"], summary="What an error code means")
        return router

    async def live(self) -> Response:
        return json_response({"status": "live"})

    async def started(self) -> Response:
        if not self._lifetime.started:
            raise NotReady("the gateway has not reached its store yet", missing=[_missing_part("store", "not reached yet")])
        return json_response({"status": "started"})

    async def ready(self, caller: CallerParam, workers: bool = True) -> Response:
        """Only callers with a key see the details, because these name models.

        `workers=false` asks only whether jobs are accepted, even if a model has no worker.
        """
        missing_parts = await self._missing()
        missing = missing_parts.own + missing_parts.unserved if workers else missing_parts.own
        if missing and not caller.roles:
            raise NotReady("the gateway is not ready; a request with an API key learns why", missing=[])
        if missing:
            raise NotReady("; ".join(f"{part['pointer']}: {part['detail']}" for part in missing), missing=missing)
        if not caller.roles:
            return json_response({"status": "ready"})
        entries = [self._registry.models[name] for name in self._registry.declared_names()]
        return json_response({"status": "ready", "models": {entry.name: self._served(entry) for entry in entries}})

    async def is_ready(self) -> bool:
        """Whether this gateway can serve every declared model."""
        return await self._missing() == Missing()

    async def problem(self, code: str, request: Request) -> Response:
        """The page behind the `type` of a problem, as text, or as JSON if the client accepts that."""
        if code not in titles():
            raise NotFound("there is no such error code", hint=f"Known codes: {', '.join(sorted(titles()))}.")
        # Imported here: the texts are rarely read.
        from penstock.gateway.telemetry import problem_pages

        if JSON in request.headers.get("accept", ""):
            return json_response(problem_pages.facts_of(code))
        return PlainTextResponse(problem_pages.text_of(code))

    async def _missing(self) -> Missing:
        """The reasons why this gateway cannot serve every declared model."""
        if self._lifetime.is_draining():
            return Missing([_missing_part("gateway", "stopping")])
        if self._looking is None and time.monotonic() >= self._look_again_at:
            self._looking = asyncio.ensure_future(self._look())
        # A probe needs no key but costs a durable write: one check answers all concurrent probes and those of the next LOOK_S.
        return self._found if self._looking is None else await asyncio.shield(self._looking)

    async def _look(self) -> Missing:
        try:
            self._found = await self._missing_now()
            return self._found
        finally:
            self._look_again_at, self._looking = time.monotonic() + LOOK_S, None

    async def _missing_now(self) -> Missing:
        try:
            await self._store.ping()
        except StoreUnavailable as error:
            log.warning("store_unavailable", reason=error.message)
            why = error.message if isinstance(error, NotAdmitted) else STORE_UNREACHABLE
            return Missing([_missing_part("store", why)])
        await self._registry.refresh()
        models = [self._registry.models[name] for name in self._registry.declared_names()]
        # A model that an operator scaled to no slots is off on purpose, and an unloaded one starts with its next job.
        unserved = [entry for entry in models if not (entry.default.capacity.is_served or entry.default.is_off)]
        whys = {entry.name: why_unserved(self._registry.workers, entry.name, entry.default) for entry in unserved}
        return Missing(unserved=[_missing_part(name, why) for name, why in whys.items()])

    def _served(self, entry: ModelEntry) -> dict[str, Any]:
        slots = [slot for worker in self._registry.workers for slot in worker.slots if slot.model == entry.name]
        ready = [slot for slot in slots if slot.state == "ready"]
        return {
            "ready_slots": len(ready),
            "devices": sorted({slot.device for slot in ready}),
            "providers": sorted({slot.provider for slot in ready if slot.provider}),
        }


def _missing_part(pointer: str, why: str) -> dict[str, str]:
    return {"pointer": pointer, "detail": why}

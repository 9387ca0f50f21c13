"""Profiles on demand: on request each slot of a model records its next batch, and a second route shows the results."""

from __future__ import annotations

import secrets
from enum import Enum
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from penstock.broker.store.aio import AsyncStore
from penstock.errors import NotFound
from penstock.gateway.asgi.wire import json_response, rfc3339
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.models.registry import ModelRegistry
from penstock.model_spec import ProfileInfo, ProfileWish, WorkerInfo

_USUAL_S, _MOST_S = 60.0, 3_600.0
Seconds = Annotated[float, Query(gt=0, le=_MOST_S)]


class Profiles:
    """One request for a profile per model at a time: a new one replaces the old one."""

    def __init__(self, store: AsyncStore, registry: ModelRegistry) -> None:
        self._store = store
        self._registry = registry

    def router(self) -> APIRouter:
        router = APIRouter(default_response_class=Response)
        tags: list[str | Enum] = ["models"]
        path, add = "/v1/models/{model}/profile", router.add_api_route
        add(path, self.ask, methods=["POST"], tags=tags, summary="Record the next batch", status_code=202)
        add(path, self.show, methods=["GET"], tags=tags, summary="What was recorded on demand")
        return router

    async def ask(self, model: str, caller: CallerParam, version: str = "", for_s: Seconds = _USUAL_S) -> Response:
        """Each slot of the version, or of the default one, records its next batch if that comes within `for_s` seconds."""
        _, entry = await self._registry.find(model, version)
        wish = ProfileWish(secrets.token_hex(8), entry.name, await self._store.now() + for_s)
        await self._store.wish_profile(model, wish)
        return json_response(profile_view(model, wish, self._registry.workers), status=202)

    async def show(self, model: str, caller: CallerParam) -> Response:
        """The last request for a profile, and the state of each slot."""
        await self._registry.find(model)
        wish = await self._store.profile_wish(model)
        if wish is None:
            raise NotFound(f"no profile of {model!r} was requested", hint=f"POST /v1/models/{model}/profile asks for one.")
        await self._registry.look_again()
        return json_response(profile_view(model, wish, self._registry.workers), status=200)


def profile_view(model: str, wish: ProfileWish, workers: list[WorkerInfo]) -> dict[str, Any]:
    slots = [
        {"worker": worker.name, "host": worker.host, **_slot_view(slot.profile)}
        for worker in workers
        for slot in worker.slots
        if slot.model == model and slot.profile is not None and slot.profile.wish == wish.id
    ]
    return {"id": wish.id, "model": model, "version": wish.version, "expires_at": rfc3339(wish.until), "slots": slots}


def _slot_view(info: ProfileInfo) -> dict[str, Any]:
    return {
        "state": info.state,
        "batch": info.batch or None,
        "folder": info.folder or None,
        "kind": info.kind or None,
        "note": info.note or None,
        "batches": info.batches,
        "stages_s": {name: round(seconds, 6) for name, seconds in info.stages_s.items()},
    }

"""The routes that change models while they run: load, switch, scale, unload, undo, and the state of unloaded versions."""

from __future__ import annotations

from enum import Enum
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from penstock.errors import BadRequest, TooLarge
from penstock.gateway.asgi.bodies import parse_json
from penstock.gateway.asgi.negotiation import read_head, refuse_encoded, require_json
from penstock.gateway.asgi.wire import json_response
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.models.changes import ModelChanges, checked_name, invalid
from penstock.gateway.models.registry import ModelRegistry
from penstock.gateway.models.views import model_view
from penstock.job import MODEL_NAME
from penstock.rollout import AUTO, MOST_SLOTS

MAX_BODY_BYTES = 64 * 1024
MAX_DEPTH = 16
_NAME = {"type": "string", "pattern": MODEL_NAME.pattern}
_SOURCE = {"type": "string", "description": "A path below the workers' model_dir; a model of stages has none"}
_STAGES = {
    "type": "array",
    "items": {"type": "object"},
    "description": "Of a model without a source",
}
LOAD = {
    "type": "object",
    "required": ["version"],
    "properties": {
        "version": _NAME,
        "source": _SOURCE,
        "stages": _STAGES,
        "slots": {"type": "integer", "minimum": 0, "description": "0: nothing is loaded before the version is scaled up"},
    },
    "additionalProperties": {"description": "Any key of a version's settings"},
}
SWITCH = {"type": "object", "required": ["version"], "properties": {"version": _NAME}}
SCALE = {
    "type": "object",
    "required": ["workers"],
    "properties": {
        "workers": {
            "oneOf": [{"type": "integer", "minimum": 0, "maximum": MOST_SLOTS}, {"const": AUTO}],
            "description": "Slots per worker process; auto: as the settings say, or the work needs",
        },
        "version": {**_NAME, "description": "Without it the default version"},
    },
    "additionalProperties": False,
}


class Rollouts:
    """The routes of `ModelChanges`."""

    def __init__(self, changes: ModelChanges, registry: ModelRegistry) -> None:
        self._changes = changes
        self._registry = registry

    def router(self) -> APIRouter:
        router = APIRouter(default_response_class=Response)
        tags: list[str | Enum] = ["models"]
        add, model = router.add_api_route, "/v1/models/{model}"
        version = f"{model}/versions/{{version}}"
        post: dict[str, Any] = {"methods": ["POST"], "tags": tags, "status_code": 202, "openapi_extra": _body_of(LOAD)}
        add(f"{model}/versions", self.load, summary="Load a version", **post)
        add(version, self.unload, methods=["DELETE"], tags=tags, summary="Unload a version", status_code=202)
        put: dict[str, Any] = {"methods": ["PUT"], "tags": tags}
        add(f"{model}/default", self.switch, summary="Switch the default version", openapi_extra=_body_of(SWITCH), **put)
        add(f"{model}/workers", self.scale, summary="Set the slots", status_code=202, openapi_extra=_body_of(SCALE), **put)
        add(model, self.unload_all, methods=["DELETE"], tags=tags, summary="Unload a model", status_code=202)
        add(f"{model}/rollout", self.show, methods=["GET"], tags=tags, summary="The changes made at run time")
        add(f"{model}/rollout", self.reset, methods=["DELETE"], tags=tags, summary="Undo the changes made at run time")
        return router

    async def load(self, model: str, request: Request, caller: CallerParam) -> Response:
        """`{"version": "2", "source": "path in worker.model_dir", ...}` and any key of a version's settings.

        An unknown model is created. With `"slots": 0` the version is loaded when it is scaled up.
        """
        await self._changes.load_version(model, await read_object(request))
        return self._answer(model, status=202)

    async def switch(self, model: str, request: Request, caller: CallerParam) -> Response:
        """`{"version": "2"}`: the version for callers that name none. All gateways apply the change within a second."""
        await self._registry.find(model)
        await self._changes.switch_version(model, checked_name((await read_object(request)).get("version"), "version"))
        return self._answer(model, status=200)

    async def scale(self, model: str, request: Request, caller: CallerParam) -> Response:
        """`{"workers": 2, "version": "1"}`: the version's number of slots in each worker process; without `version`, the
        default one's. With 0 its jobs wait. With `"auto"` the settings, or the work, decide again. A slot that is removed
        finishes its batch.
        """
        await self._registry.find(model)
        body = await read_object(request)
        if unknown := body.keys() - {"workers", "version"}:
            raise invalid(f"/{sorted(unknown)[0][:60]}", "is not a setting here; there are workers and version")
        version = checked_name(body["version"], "version") if "version" in body else ""
        await self._changes.scale(model, body.get("workers"), version=version)
        return self._answer(model, status=202)

    async def unload(self, model: str, version: str, caller: CallerParam) -> Response:
        """The version gets no new jobs; waiting jobs still run, then its workers unload it."""
        await self._changes.unload_version(model, version)
        return self._answer(model, status=202)

    async def unload_all(self, model: str, caller: CallerParam) -> Response:
        """The model gets no new jobs; waiting jobs still run, then its workers unload it.

        `GET /v1/models/{model}/rollout` shows what is left. A model of the settings comes back with a reset.
        """
        await self._changes.unload_model(model)
        return self._answer(model, status=202)

    async def show(self, model: str, caller: CallerParam) -> Response:
        """The operators' changes, and for each unloaded version its waiting and running jobs and its slots."""
        return json_response(await self._changes.view(model))

    async def reset(self, model: str, caller: CallerParam) -> Response:
        """Undo all changes: the model is served as the settings of gateways and workers say.

        Versions that no settings name get no new jobs; their waiting jobs still run, then the versions are forgotten.
        """
        await self._changes.reset(model)
        return self._answer(model, status=200)

    def _answer(self, model: str, *, status: int) -> Response:
        entry = self._registry.models.get(model)
        view: dict[str, Any] = model_view(entry, self._registry.workers) if entry else {"name": model, "versions": {}}
        headers = {"location": f"/v1/models/{model}"} if status == 202 else {}
        return json_response(view, status=status, headers=headers)


def _body_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


async def read_object(request: Request) -> dict[str, Any]:
    """The body's JSON object; raises `TooLarge` as soon as the limit is passed."""
    head = read_head(request.headers.raw)
    refuse_encoded(head)
    require_json(head)
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY_BYTES:
            raise TooLarge(f"the body has more than {MAX_BODY_BYTES} bytes")
    value = parse_json(bytes(data), max_depth=MAX_DEPTH)
    if not isinstance(value, dict):
        raise BadRequest("the body must be a JSON object")
    # For the audit log.
    request.scope["said"] = value
    return value

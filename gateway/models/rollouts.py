"""Changes of a running model: load a version beside the others, switch the default, unload the old one, undo everything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from pathlib import PurePosixPath
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.registry import StoredModel, StoredRollout
from penstock.errors import BadRequest, ConfigError, Conflict, InvalidInput, TooLarge
from penstock.gateway.asgi.bodies import parse_json
from penstock.gateway.asgi.negotiation import read_head, refuse_encoded, require_json
from penstock.gateway.asgi.wire import json_response
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.models.registry import ModelRegistry, unknown_model
from penstock.gateway.models.views import model_view
from penstock.job import MODEL_NAME
from penstock.model_spec import ModelInfo
from penstock.rollout import Rollout, check_load, check_switch, check_unload
from penstock.settings.models import checked_version, refuse_local

MAX_BODY_BYTES = 64 * 1024
MAX_DEPTH = 16
_TRIES = 5
Change = Callable[[Rollout], Rollout]


class Rollouts:
    """The routes that change models. Each change is one compare-and-set in the store (D23); workers apply it within a beat."""

    def __init__(self, store: AsyncStore, registry: ModelRegistry) -> None:
        self._store = store
        self._registry = registry

    def router(self) -> APIRouter:
        router = APIRouter(default_response_class=Response)
        tags: list[str | Enum] = ["models"]
        add = router.add_api_route
        version = "/v1/models/{model}/versions/{version}"
        add("/v1/models/{model}/versions", self.load, methods=["POST"], tags=tags, summary="Load a version", status_code=202)
        add(version, self.unload, methods=["DELETE"], tags=tags, summary="Unload a version", status_code=202)
        add("/v1/models/{model}/default", self.switch, methods=["PUT"], tags=tags, summary="Switch the default version")
        add(
            "/v1/models/{model}/rollout", self.reset, methods=["DELETE"], tags=tags, summary="Undo the changes made at run time"
        )
        return router

    async def load(self, model: str, request: Request, caller: CallerParam) -> Response:
        """`{"version": "2", "source": "path in worker.model_dir", ...}` and any key of a version's settings."""
        await self.load_version(model, await _body(request))
        return await self._answer(model, status=202)

    async def load_version(self, model: str, body: dict[str, Any]) -> None:
        """Have workers load the version that the body names, from its source. Raises `InvalidInput`, `Conflict`."""
        if not MODEL_NAME.fullmatch(model):
            raise unknown_model(model, self._registry.models)
        version = _name(body.pop("version", None), "version")
        checked_source(body.get("source"))
        _check_table(body)
        info = self._info(model)

        def change(rollout: Rollout) -> Rollout:
            check_load(info, rollout, version)
            return rollout.load(version, body)

        await self._change(model, change)
        if info is None:
            await self._announce(model, version)

    async def switch(self, model: str, request: Request, caller: CallerParam) -> Response:
        """`{"version": "2"}`: the version for callers that name none. All gateways apply the change within a second."""
        await self._registry.refresh()
        entry, _ = await self._registry.find(model)
        version = _name((await _body(request)).get("version"), "version")
        found = entry.versions.get(version)
        check_switch(entry.info, version, ready_slots=found.capacity.ready_slots if found else 0)
        await self._change(model, lambda rollout: rollout.switch(version))
        return await self._answer(model, status=200)

    async def unload(self, model: str, version: str, caller: CallerParam) -> Response:
        """The version gets no new jobs from now on; those that wait for it still run, then its workers unload it."""
        await self.unload_version(model, version)
        return await self._answer(model, status=202)

    async def unload_version(self, model: str, version: str) -> None:
        """Raises `Conflict` for the default version, `NotFound` for an unknown one."""
        await self._registry.refresh()
        entry, _ = await self._registry.find(model)
        check_unload(entry.info, version)
        now = await self._store.now()
        await self._change(model, lambda rollout: rollout.unload(version, now))

    async def reset(self, model: str, caller: CallerParam) -> Response:
        """Undo all changes: the model is served as the settings of gateways and workers say.

        Versions that no settings name get no new jobs from now on; jobs that wait for them still run, then they are forgotten.
        """
        await self._registry.refresh()
        if model not in self._registry.rollouts and model not in self._registry.models:
            raise unknown_model(model, self._registry.models)
        known, named = self._registry.known_versions(model), self._registry.named_versions(model)
        now = await self._store.now()
        await self._change(model, lambda rollout: rollout.reset(known, named, now))
        return await self._answer(model, status=200)

    def _info(self, model: str) -> ModelInfo | None:
        entry = self._registry.models.get(model)
        return entry.info if entry else None

    async def _change(self, model: str, change: Change) -> None:
        for _ in range(_TRIES):
            found = (await self._store.rollouts()).get(model) or StoredRollout()
            if await self._store.swap_rollout(model, found, change(found.rollout)):
                return
        raise _changed_by_others(model)

    async def _announce(self, model: str, version: str) -> None:
        """Announce the version before a worker has loaded it, so that a new model is listed at once."""
        for _ in range(_TRIES):
            found = (await self._store.models()).get(model, StoredModel())
            if await self._store.swap_model(found, _with_version(found.info or ModelInfo(model), version)):
                return
        raise _changed_by_others(model)

    async def _answer(self, model: str, *, status: int) -> Response:
        await self._registry.refresh()
        entry = self._registry.models.get(model)
        view: dict[str, Any] = model_view(entry, self._registry.workers) if entry else {"name": model, "versions": {}}
        headers = {"location": f"/v1/models/{model}"} if status == 202 else {}
        return json_response(view, status=status, headers=headers)


def _with_version(info: ModelInfo, version: str) -> ModelInfo:
    default = info.default_version if info.default_version in info.versions else version
    return replace(info, default_version=default, versions={**info.versions, version: None})


def _changed_by_others(model: str) -> Conflict:
    return Conflict(f"others are changing model {model!r} at the same time", hint="Read the model, then try again.")


def checked_source(source: Any) -> str:
    """The relative path of a file below the workers' `model_dir`; raises `InvalidInput` for everything else.

    A module's name could import any installed package, and an absolute path could load any file on the worker's disk.
    """
    text = source if isinstance(source, str) else ""
    path = PurePosixPath(text.partition(".py:")[0] + (".py" if ".py:" in text else ""))
    foreign = any(mark in text for mark in ("\\", "\0", "://"))
    if not text or foreign or path.is_absolute() or ".." in path.parts or not path.suffix:
        raise _invalid("/source", "must be the relative path of a model file below worker.model_dir, such as square/2.py")
    return text


def _check_table(table: dict[str, Any]) -> None:
    try:
        refuse_local(table)
        checked_version(table)
    except ConfigError as error:
        faults = [{"pointer": "", "detail": fault} for fault in error.faults]
        raise InvalidInput("the settings of this version cannot be used", errors=faults) from None


def _name(name: Any, what: str) -> str:
    if not isinstance(name, str) or not MODEL_NAME.fullmatch(name):
        raise _invalid(f"/{what}", f"must be a {what} name: 1 to 64 letters, digits, '_', '.' or '-'")
    return name


def _invalid(pointer: str, detail: str) -> InvalidInput:
    return InvalidInput(f"{pointer.removeprefix('/')} {detail}", errors=[{"pointer": pointer, "detail": detail}])


async def _body(request: Request) -> dict[str, Any]:
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
    return value

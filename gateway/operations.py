"""Operations on models and workers that serve: pause, resume, change limits, purge, drain. Each is safe to repeat."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from penstock.broker.partitions import queues_of_model
from penstock.broker.store import ops, registry
from penstock.broker.store.aio import AsyncStore
from penstock.errors import Conflict, NotFound
from penstock.gateway.asgi.wire import json_response
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.models.changes import change_rollout
from penstock.gateway.models.registry import ModelRegistry
from penstock.gateway.models.rollouts import read_object
from penstock.gateway.models.views import model_view
from penstock.rollout import CHANGEABLE_LIMITS, check_limits

# One request cancels at most this many jobs, so that it is short; clients repeat it for more.
PURGE_JOBS = 500
_PURGE_CALL = 100
# Includes workers that are gone: a worker that comes back under its name is still drained.
MOST_DRAINED = 1_000
_LIMITS: dict[str, Any] = {
    "type": "object",
    "minProperties": 1,
    "additionalProperties": False,
    "properties": {name: {"type": ["number", "null"], "exclusiveMinimum": 0} for name in CHANGEABLE_LIMITS},
}


class Operations:
    """Used by the routes and the dashboard. After a change of a model, the registry is refreshed."""

    def __init__(self, store: AsyncStore, models: ModelRegistry) -> None:
        self._store = store
        self._models = models

    async def pause(self, model: str, *, is_paused: bool) -> dict[str, Any]:
        """Pause and return the model. Its jobs are accepted and wait; jobs that workers hold still run. Raises `NotFound`."""
        await self._models.find(model)
        await change_rollout(self._store, model, lambda rollout: rollout.pause(is_paused=is_paused))
        return await self._view(model)

    async def limit(self, model: str, limits: Mapping[str, Any]) -> dict[str, Any]:
        """Set these limits for future jobs and return the model. Raises `NotFound`, `InvalidInput`."""
        await self._models.find(model)
        checked = check_limits(limits)
        await change_rollout(self._store, model, lambda rollout: rollout.limited(checked))
        return await self._view(model)

    async def purge(self, model: str) -> tuple[int, bool]:
        """Cancel up to `PURGE_JOBS` waiting jobs; returns how many, and whether there may be more. Raises `NotFound`."""
        entry, _ = await self._models.find(model)
        cancelled, has_more = 0, False
        for queue in queues_of_model(entry.info):
            has_more = True
            while has_more and cancelled < PURGE_JOBS:
                count, has_more = await self._store.run(ops.purge(queue, limit=min(_PURGE_CALL, PURGE_JOBS - cancelled)))
                cancelled += count
            if has_more:
                break
        return cancelled, has_more

    async def drain(self, worker: str, *, is_drained: bool) -> None:
        """Have a worker stop or resume taking jobs. Raises `NotFound`, `Conflict`."""
        drains = await self._store.send(registry.drains())
        alive = {one.name for one in await self._store.workers()}
        if worker not in (alive if is_drained else alive | drains.keys()):
            named = ", ".join(sorted(alive)[:20]) or "none"
            raise NotFound(f"no live worker is named {worker[:100]!r}", hint=f"Live workers: {named}.")
        if is_drained and worker not in drains and len(drains) >= MOST_DRAINED:
            await self._forget(drains, alive)
        at = await self._store.now() if is_drained else None
        if not await self._store.run(registry.swap_drain(worker, drains.get(worker, b""), at)):
            raise Conflict(f"somebody else has just changed worker {worker[:100]!r}", hint="Look at it, then try again.")

    async def _forget(self, drains: Mapping[str, bytes], alive: set[str]) -> None:
        """Remove drained workers that are gone, to make room."""
        gone = [name for name in drains if name not in alive]
        if not gone:
            raise Conflict(f"{len(drains)} workers are drained already", hint="Resume or stop some of them first.")
        for name in gone:
            await self._store.run(registry.swap_drain(name, drains[name], None))

    async def _view(self, model: str) -> dict[str, Any]:
        await self._models.refresh()
        entry, _ = await self._models.find(model)
        return model_view(entry, self._models.workers)


class OperationRoutes:
    """The routes of `Operations`."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    def router(self) -> APIRouter:
        router = APIRouter(default_response_class=Response)
        models: list[str | Enum] = ["models"]
        workers: list[str | Enum] = ["workers"]
        add, model, worker = router.add_api_route, "/v1/models/{model}", "/v1/workers/{worker}"
        post: dict[str, Any] = {"methods": ["POST"], "status_code": 202}
        body = {"requestBody": {"required": True, "content": {"application/json": {"schema": _LIMITS}}}}
        add(f"{model}/pause", self.pause, tags=models, summary="Let the model's jobs wait", **post)
        add(f"{model}/resume", self.resume, tags=models, summary="Run the model's jobs again", **post)
        add(f"{model}/purge", self.purge, tags=models, summary="Cancel the jobs that wait", **post)
        add(f"{model}/limits", self.limit, methods=["PUT"], tags=models, summary="Change limits", openapi_extra=body)
        add(f"{worker}/drain", self.drain, tags=workers, summary="Have a worker take no more jobs", **post)
        add(f"{worker}/resume", self.resume_worker, tags=workers, summary="Have a worker take jobs again", **post)
        return router

    async def pause(self, model: str, caller: CallerParam) -> Response:
        """Jobs are accepted and wait; workers keep the model loaded and claim none. Answer-now requests get a 503."""
        return json_response(await self._operations.pause(model, is_paused=True), status=202)

    async def resume(self, model: str, caller: CallerParam) -> Response:
        """Workers claim the jobs that wait."""
        return json_response(await self._operations.pause(model, is_paused=False), status=202)

    async def limit(self, model: str, request: Request, caller: CallerParam) -> Response:
        """`{"max_queue_depth": 500}`: for jobs that come from now on; `null` is what the settings say."""
        return json_response(await self._operations.limit(model, await read_object(request)))

    async def purge(self, model: str, caller: CallerParam) -> Response:
        """Cancels up to 500 jobs that wait, those with a later start included; ask again while `has_more`. Runs keep theirs."""
        cancelled, has_more = await self._operations.purge(model)
        return json_response({"cancelled": cancelled, "has_more": has_more}, status=202)

    async def drain(self, worker: str, caller: CallerParam) -> Response:
        """The worker ends what it holds and takes nothing more, also after a restart under its name, until it is resumed."""
        await self._operations.drain(worker, is_drained=True)
        return json_response({"name": worker, "drained": True}, status=202)

    async def resume_worker(self, worker: str, caller: CallerParam) -> Response:
        await self._operations.drain(worker, is_drained=False)
        return json_response({"name": worker, "drained": False}, status=202)

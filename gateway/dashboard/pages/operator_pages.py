"""The pages of operators: acts on models and workers, and the audit log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from penstock.broker.store.audit import read_acts
from penstock.errors import InvalidInput
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.dashboard.render import Renderer
from penstock.gateway.dashboard.sessions import form
from penstock.rollout import AUTO, CHANGEABLE_LIMITS

if TYPE_CHECKING:
    from penstock.gateway.services import Services

PAGE_ACTS = 100


class OperatorPages:
    """The acts below /ui/models and /ui/workers, and /ui/audit."""

    def __init__(self, renderer: Renderer, services: Services) -> None:
        self._renderer = renderer
        self._store = services.store
        self._operations = services.operations
        self._changes = services.changes

    def add_routes(self, router: APIRouter) -> None:
        add, model, worker = router.add_api_route, "/ui/models/{model}", "/ui/workers/{worker}"
        add("/ui/audit", self.audit, methods=["GET"])
        add(f"{model}/pause", self.pause, methods=["POST"])
        add(f"{model}/resume", self.resume, methods=["POST"])
        add(f"{model}/scale", self.scale, methods=["POST"])
        add(f"{model}/limits", self.limit, methods=["POST"])
        add(f"{model}/purge", self.purge, methods=["POST"])
        add(f"{worker}/drain", self.drain, methods=["POST"])
        add(f"{worker}/resume", self.resume_worker, methods=["POST"])

    async def audit(self, caller: CallerParam, before: Annotated[int | None, Query(ge=1)] = None) -> Response:
        acts = await self._store.run(read_acts(before=before, limit=PAGE_ACTS))
        has_more = len(acts) == PAGE_ACTS and acts[-1].number > 1
        shown = {"here": "audit", "acts": acts, "first": before is None, "older": acts[-1].number if has_more else None}
        return await self._renderer.page("audit.html", caller, shown)

    async def pause(self, model: str, caller: CallerParam) -> Response:
        await self._operations.pause(model, is_paused=True)
        return self._model(model)

    async def resume(self, model: str, caller: CallerParam) -> Response:
        await self._operations.pause(model, is_paused=False)
        return self._model(model)

    async def scale(self, model: str, request: Request, caller: CallerParam) -> Response:
        """An empty number undoes the operator's: the settings, or the work, decide again."""
        fields = await form(request)
        await self._changes.scale(model, _slots(fields.get("workers", "")), version=fields.get("version", ""))
        return self._model(model)

    async def limit(self, model: str, request: Request, caller: CallerParam) -> Response:
        """Empty fields stay unchanged; `-` resets a field to the settings."""
        fields = await form(request)
        given = {name: fields[name].strip() for name in CHANGEABLE_LIMITS if fields.get(name, "").strip()}
        await self._operations.limit(model, {name: _number(name, text) for name, text in given.items()})
        return self._model(model)

    async def purge(self, model: str, request: Request, caller: CallerParam) -> Response:
        """Cancel the next waiting jobs. The returned page requests the following ones, until none are left."""
        done = (await form(request)).get("done", "")
        before = int(done[:9]) if done.isascii() and done.isdecimal() else 0
        cancelled, has_more = await self._operations.purge(model)
        shown = {"model": model, "done": before + cancelled, "has_more": has_more}
        return await self._renderer.page("_purge.html", caller, shown)

    async def drain(self, worker: str, caller: CallerParam) -> Response:
        await self._operations.drain(worker, is_drained=True)
        return self._renderer.redirect("/ui/workers")

    async def resume_worker(self, worker: str, caller: CallerParam) -> Response:
        await self._operations.drain(worker, is_drained=False)
        return self._renderer.redirect("/ui/workers")

    def _model(self, model: str) -> Response:
        return self._renderer.redirect(f"/ui/models/{model}")


def _slots(text: str) -> int | str:
    return int(text[:9]) if text.strip().isascii() and text.strip().isdecimal() else text.strip() or AUTO


def _number(name: str, text: str) -> float | None:
    """Raises `InvalidInput`."""
    if text == "-":
        return None
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise InvalidInput(f"{name} is not a number: {text[:20]!r}") from None

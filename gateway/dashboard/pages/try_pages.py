"""The page to try a model: a form made from its schema, with files, and the same call for a shell and for Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from starlette.responses import Response

from penstock.access import Role
from penstock.gateway.asgi.negotiation import read_head
from penstock.gateway.asgi.wire import Receive
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.dashboard.render import Renderer
from penstock.gateway.dashboard.rows.try_form import curl_of, python_of, try_fields
from penstock.job import new_job_id

if TYPE_CHECKING:
    from penstock.gateway.services import Services


class TryPages:
    """The routes below /ui/models/{model}/try."""

    def __init__(self, renderer: Renderer, services: Services) -> None:
        self._renderer = renderer
        self._registry = services.registry
        self._submitter = services.submitter
        self._keyed = services.auth.keyed

    def add_routes(self, router: APIRouter) -> None:
        router.add_api_route("/ui/models/{model}/try/{version}", self.show, methods=["GET"])
        router.add_api_route("/ui/models/{model}/try/{version}", self.submit, methods=["POST"])

    async def show(self, model: str, version: str, request: Request, caller: CallerParam) -> Response:
        entry, chosen = await self._registry.find(model, version)
        fields = try_fields(chosen.input_schema, chosen.accepts)
        origin = f"{request.url.scheme}://{request.headers.get('host', '')}{self._renderer.url('')}"
        named = f"/{version}" if chosen is not entry.default else ""
        shown = {
            "here": "queues",
            "model": entry,
            "version": chosen,
            "fields": fields,
            "submits": Role.SUBMIT in caller.roles,
            "curl": curl_of(f"{origin}/predictions/{model}{named}", fields, keyed=self._keyed),
            "python": python_of(origin, model, fields, keyed=self._keyed),
        }
        return await self._renderer.page("try.html", caller, shown)

    async def submit(self, model: str, version: str, request: Request, caller: CallerParam) -> Response:
        """The form is the body of a submit and is checked like every other."""
        head = read_head(request.headers.raw)
        scope = {**request.scope, "caller": caller}
        receive: Receive = request.receive  # type: ignore[assignment]
        draft = self._submitter.inputs.draft(scope, receive, head, model, version, kind="jobs", is_awaited=False)
        prepared = await self._submitter.prepare(draft)
        submitted = await self._submitter.submit(prepared, new_job_id(prepared.model.name))
        return self._renderer.redirect(f"/ui/jobs/{submitted.id}")

"""The page of events that could not be delivered to their webhooks, with their replay and their dismissal."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from penstock.access import Role
from penstock.extensions.webhooks.gateway.deliveries import Deliveries
from penstock.gateway.auth.audit import note_changes
from penstock.gateway.auth.keys import Caller
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.dashboard.parts import DashboardPart
from penstock.gateway.dashboard.render import MenuEntry, Renderer
from penstock.gateway.dashboard.sessions import form

_SHOWN = 100
# How many events one press of a button for all handles.
_AT_ONCE = 200


class EventPages:
    """The routes below /ui/webhooks."""

    def __init__(self, renderer: Renderer, deliveries: Deliveries) -> None:
        self._renderer = renderer
        self._deliveries = deliveries

    def add_routes(self, router: APIRouter) -> None:
        router.add_api_route("/ui/webhooks", self.undelivered, methods=["GET"])
        router.add_api_route("/ui/webhooks/replay", self.replay, methods=["POST"])
        router.add_api_route("/ui/webhooks/dismiss", self.dismiss, methods=["POST"])

    async def undelivered(self, caller: CallerParam, after: str = "") -> Response:
        page = await self._deliveries.undelivered(caller, after=after, limit=_SHOWN)
        shown = {
            "here": "webhooks",
            "events": page.events,
            "first": not after,
            "next_after": page.next_after,
            "changes": not caller.roles.isdisjoint({Role.SUBMIT, Role.MANAGE}),
        }
        return await self._renderer.page("webhooks/undelivered.html", caller, shown)

    async def replay(self, request: Request, caller: CallerParam) -> Response:
        ids = await self._chosen(request, caller)
        note_changes(request, await self._deliveries.send_again(ids, caller) if ids else 0)
        return self._renderer.redirect("/ui/webhooks")

    async def dismiss(self, request: Request, caller: CallerParam) -> Response:
        ids = await self._chosen(request, caller)
        note_changes(request, await self._deliveries.dismiss(ids, caller) if ids else 0)
        return self._renderer.redirect("/ui/webhooks")

    async def _chosen(self, request: Request, caller: Caller) -> list[str]:
        """The event that the form names, or without a name the newest ones."""
        named = (await form(request)).get("id", "")
        if named:
            return [named]
        return [event.id for event in (await self._deliveries.undelivered(caller, limit=_AT_ONCE)).events]


def dashboard(deliveries: Deliveries) -> DashboardPart:
    return DashboardPart(
        templates={"webhooks": "penstock.extensions.webhooks.gateway"},
        pages=lambda renderer: EventPages(renderer, deliveries),
        menu=(MenuEntry("webhooks", "/ui/webhooks", "Webhooks"),),
    )

"""/v1/webhooks and the delivery logs: the secret to verify events with, events that were given up, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from msgspec import Struct
from starlette.responses import Response

from penstock.access import Key
from penstock.broker.store.aio import AsyncStore
from penstock.errors import NotFound
from penstock.extensions.webhooks.gateway.deliveries import MAX_IDS, MAX_PAGE, Deliveries, log_view
from penstock.extensions.webhooks.gateway.metrics import DeliveryCounts, scrape
from penstock.extensions.webhooks.gateway.pages import dashboard
from penstock.extensions.webhooks.gateway.requested import check_defaults, run_members
from penstock.extensions.webhooks.settings import WebhooksSettings, url_of_key, url_of_model
from penstock.extensions.webhooks.webhook import owner_secret
from penstock.gateway.asgi.wire import json_body, json_response
from penstock.gateway.auth.audit import note_changes
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.auth.rules import SEE, STOP, SUBMIT, RouteRules
from penstock.gateway.extending import GatewayPart
from penstock.gateway.runs.request import read_body
from penstock.gateway.services import Services
from penstock.settings.tables import Settings

_IDS = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_IDS}
_BODY = {
    "required": True,
    "content": {
        "application/json": {"schema": {"type": "object", "required": ["ids"], "properties": {"ids": _IDS}}},
    },
}

_RULES = RouteRules(
    {
        ("GET", "/v1/jobs/{job_id}/deliveries"): SEE,
        ("GET", "/v1/runs/{run_id}/deliveries"): SEE,
        ("GET", "/v1/webhooks/secret"): SUBMIT,
        ("GET", "/v1/webhooks/undelivered"): SEE,
        ("POST", "/v1/webhooks/replay"): STOP,
        ("POST", "/v1/webhooks/dismiss"): STOP,
        ("GET", "/replicate/v1/webhooks/default/secret"): SUBMIT,
        ("GET", "/ui/webhooks"): SEE,
        ("POST", "/ui/webhooks/replay"): STOP,
        ("POST", "/ui/webhooks/dismiss"): STOP,
    },
    acts={
        ("POST", f"{area}/{act}"): f"{act} events" for area in ("/v1/webhooks", "/ui/webhooks") for act in ("replay", "dismiss")
    },
)


class ChosenEvents(Struct, forbid_unknown_fields=True):
    """The body of a replay and of a dismissal: `ids` of jobs and runs."""

    ids: list[str]


class WebhookRoutes:
    def __init__(self, services: Services, deliveries: Deliveries) -> None:
        self._deliveries = deliveries
        self._limits = services.settings.gateway
        self._signing_keys = services.settings.extension(WebhooksSettings).signing_keys
        self._uploads = services.uploads

    def router(self) -> APIRouter:
        router = APIRouter(default_response_class=Response)
        tags: list[str | Enum] = ["webhooks"]
        add = router.add_api_route
        add("/v1/webhooks/secret", self.secret, methods=["GET"], tags=tags, summary="What receivers verify events with")
        add("/v1/webhooks/undelivered", self.undelivered, methods=["GET"], tags=tags, summary="Events that were given up")
        chosen: dict[str, Any] = {"methods": ["POST"], "tags": tags, "openapi_extra": {"requestBody": _BODY}}
        add("/v1/webhooks/replay", self.replay, summary="Send events once more", **chosen)
        add("/v1/webhooks/dismiss", self.dismiss, summary="Take events off the list of those given up", **chosen)
        for kind, endpoint in (("job", self.of_job), ("run", self.of_run)):
            path, summary = f"/v1/{kind}s/{{{kind}_id}}/deliveries", f"What became of the events of a {kind}"
            add(path, endpoint, methods=["GET"], tags=tags, summary=summary)
        # Replicate's clients ask here.
        add("/replicate/v1/webhooks/default/secret", self.secret, methods=["GET"], tags=["replicate"], summary="The same")
        return router

    async def secret(self, caller: CallerParam) -> Response:
        if not self._signing_keys:
            raise NotFound("webhooks are off on this gateway", hint="The operator sets webhooks.signing_keys.")
        keys = [owner_secret(key, caller.owner) for key in self._signing_keys]
        return json_response({"key": keys[0], "keys": keys}, headers={"cache-control": "no-store"})

    async def of_job(self, job_id: str, caller: CallerParam) -> Response:
        return json_response(log_view(await self._deliveries.of_job(job_id, caller)))

    async def of_run(self, run_id: str, caller: CallerParam) -> Response:
        return json_response(log_view(await self._deliveries.of_run(run_id, caller)))

    async def undelivered(
        self,
        caller: CallerParam,
        after: Annotated[str, Query(max_length=128, description="The last id of the previous page.")] = "",
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    ) -> Response:
        page = await self._deliveries.undelivered(caller, after=after, limit=limit)
        view = {"data": [log_view(event) for event in page.events], "has_more": bool(page.next_after)}
        if page.next_after:
            view["next_after"] = page.next_after
        return json_response(view)

    async def replay(self, request: Request, caller: CallerParam) -> Response:
        count = await self._deliveries.send_again(await self._chosen(request), caller)
        note_changes(request, count)
        return json_response({"replayed": count})

    async def dismiss(self, request: Request, caller: CallerParam) -> Response:
        count = await self._deliveries.dismiss(await self._chosen(request), caller)
        note_changes(request, count)
        return json_response({"dismissed": count})

    async def _chosen(self, request: Request) -> list[str]:
        return read_body(await json_body(request, self._limits, self._uploads), ChosenEvents).ids


def gateway(services: Services) -> GatewayPart:
    """Raises `ConfigError` for a default URL that may not be called, or where webhooks are off."""
    settings, counts = services.settings, DeliveryCounts(services.metrics.registry)
    _check_defaults(settings)
    deliveries = Deliveries(services.store, services.registry, services.runs)
    routers, check = (WebhookRoutes(services, deliveries).router(),), partial(_check_key, settings)
    part = GatewayPart(routers, rules=_RULES, run=run_members(settings), check_key=check)
    if not settings.extension(WebhooksSettings).is_on:
        return part

    def deliver(open_store: Callable[[], AsyncStore]) -> AbstractContextManager[None]:
        # The thread is started once per process, with modules that only it needs.
        from penstock.extensions.webhooks.gateway.thread import delivering

        return delivering(settings, open_store=open_store, blobs=services.blobs, count=counts.count)

    counted = partial(scrape, services.store, services.registry)
    return replace(part, beside=deliver, scrape=counted, dashboard=dashboard(deliveries))


def _check_key(settings: Settings, key: Key) -> None:
    """Raises `ConfigError` for a key with a URL to which no event may be sent."""
    if url := url_of_key(key.extension_settings):
        check_defaults({"webhook": url}, settings.extension(WebhooksSettings))


def _check_defaults(settings: Settings) -> None:
    defaults = {f"models.{name}.webhook": url for name in settings.models if (url := url_of_model(settings, name))}
    keys = {key.id: url_of_key(key.extension_settings) for key in settings.access_keys()}
    defaults |= {f"webhook of the key {name}": url for name, url in keys.items() if url}
    check_defaults(defaults, settings.extension(WebhooksSettings))

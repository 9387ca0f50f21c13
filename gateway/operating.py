"""The routes of operators: models, profiles and queues, keys, and the audit log at `GET /v1/audit`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.audit import MOST_READ, Act, read_acts
from penstock.gateway.asgi.wire import json_response, rfc3339
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.extending import GatewayPart
from penstock.gateway.key_routes import KeyRoutes
from penstock.gateway.models.profiles import Profiles
from penstock.gateway.models.queues import QueueReads
from penstock.gateway.models.rollouts import Rollouts
from penstock.gateway.operations import OperationRoutes
from penstock.gateway.services import Services

Limit = Annotated[int, Query(ge=1, le=MOST_READ)]


def operator_routers(services: Services, extensions: Sequence[GatewayPart]) -> list[APIRouter]:
    store, registry = services.store, services.registry
    return [
        Rollouts(services.changes, registry).router(),
        OperationRoutes(services.operations).router(),
        Profiles(store, registry).router(),
        QueueReads(store, registry=registry).router(),
        KeyRoutes(services, [part.check_key for part in extensions if part.check_key is not None]).router(),
        AuditRoutes(store).router(),
    ]


class AuditRoutes:
    def __init__(self, store: AsyncStore) -> None:
        self._store = store

    def router(self) -> APIRouter:
        router = APIRouter(default_response_class=Response, tags=["audit"])
        router.add_api_route("/v1/audit", self.show, methods=["GET"], summary="What operators did, newest first")
        return router

    async def show(
        self, caller: CallerParam, before: Annotated[int | None, Query(ge=1)] = None, limit: Limit = 100
    ) -> Response:
        """10,000 acts of keys that manage are kept, and as many of others. Give the last `number` back as `before`."""
        acts = await self._store.run(read_acts(before=before, limit=limit))
        has_more = len(acts) == limit and acts[-1].number > 1
        return json_response({"data": [act_view(act) for act in acts], "has_more": has_more})


def act_view(act: Act) -> dict[str, Any]:
    """`outcome` null: unknown, because the gateway or the store was lost during the act."""
    return {
        "number": act.number,
        "at": rfc3339(act.at),
        "by": act.by or None,
        "address": act.address,
        "act": act.act,
        "on": act.on,
        "said": act.said,
        "outcome": act.outcome or None,
    }

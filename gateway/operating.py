"""The routes of operators: models, their splits, profiles and queues, keys, and `GET /v1/audit`, which says who did what."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.audit import MOST_READ, Act, read_acts
from penstock.extensions.history.gateway.routes import HistoryReads
from penstock.extensions.splits.gateway.routes import SplitRoutes
from penstock.gateway.asgi.wire import BodyMemory, json_response, rfc3339
from penstock.gateway.auth.key_beat import KeyBeat
from penstock.gateway.auth.keys import KeyAuth
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.key_routes import KeyRoutes
from penstock.gateway.models.changes import ModelChanges
from penstock.gateway.models.profiles import Profiles
from penstock.gateway.models.queues import QueueReads
from penstock.gateway.models.registry import ModelRegistry
from penstock.gateway.models.rollouts import Rollouts
from penstock.gateway.operations import OperationRoutes, Operations
from penstock.gateway.options import GatewayOptions

Limit = Annotated[int, Query(ge=1, le=MOST_READ)]


def operator_routers(
    options: GatewayOptions,
    *,
    store: AsyncStore,
    registry: ModelRegistry,
    changes: ModelChanges,
    operations: Operations,
    key_beat: KeyBeat,
    auth: KeyAuth,
    uploads: BodyMemory,
) -> list[APIRouter]:
    return [
        Rollouts(changes, registry).router(),
        OperationRoutes(operations).router(),
        *(kind(store, registry).router() for kind in (SplitRoutes, Profiles)),
        HistoryReads(store, registry, options.history).router(),
        QueueReads(store, registry=registry).router(),
        KeyRoutes(key_beat, auth, store=store, options=options, uploads=uploads).router(),
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
        """The newest 10,000 acts are kept. Give the last `number` back as `before`."""
        acts = await self._store.run(read_acts(before=before, limit=limit))
        has_more = len(acts) == limit and acts[-1].number > 1
        return json_response({"data": [act_view(act) for act in acts], "has_more": has_more})


def act_view(act: Act) -> dict[str, Any]:
    """`outcome` null: not known, because the gateway or the store went away while the act was under way."""
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

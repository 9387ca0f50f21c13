"""The stores, where there are several: which models have queues in each, and how each is."""

# D117: docs/design/store.md

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from fastapi import APIRouter
from starlette.responses import Response

from penstock.broker.partitions import open_numbers, queues_of_model
from penstock.broker.records import QueueStats
from penstock.broker.server.health import StoreHealth
from penstock.broker.store.aio import AsyncStore
from penstock.errors import StoreUnavailable
from penstock.gateway.asgi.wire import json_response
from penstock.gateway.models.registry import ModelRegistry
from penstock.job import partition_of
from penstock.model_spec import ModelInfo
from penstock.settings.store_url import MAIN_STORE

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StoreShare:
    """The queues of one model that lie in one store. `depth`: jobs that wait there. `is_home`: new jobs go there."""

    store: str
    depth: int
    is_home: bool


@dataclass(frozen=True, slots=True)
class StoreState:
    """One store. `is_up`: it answers and takes writes. `health` None: it does not answer, or says nothing of itself."""

    name: str
    is_up: bool
    is_replicated: bool
    health: StoreHealth | None
    models: tuple[str, ...]


def shares_of(store: AsyncStore, info: ModelInfo, stats: Sequence[QueueStats]) -> tuple[StoreShare, ...]:
    """By store, those that get new jobs first. `stats`: of each of the model's queues."""
    found: dict[str, StoreShare] = {}
    for queue, one in zip(queues_of_model(info), stats, strict=True):
        name = store.store_of(queue)
        before = found.get(name, StoreShare(name, 0, is_home=False))
        is_home = before.is_home or partition_of(queue) in open_numbers(info)
        found[name] = StoreShare(name, before.depth + one.depth, is_home)
    return tuple(sorted(found.values(), key=lambda share: not share.is_home))


def share_views(shares: Iterable[StoreShare]) -> list[dict[str, Any]]:
    return [{"store": share.store, "depth": share.depth, "new_jobs": share.is_home} for share in shares]


def homes_view(store: AsyncStore, info: ModelInfo) -> list[dict[str, Any]]:
    """As `share_views`, without asking a store how many jobs wait."""
    shares = shares_of(store, info, [QueueStats(queue, 0.0) for queue in queues_of_model(info)])
    return [{"store": share.store, "new_jobs": share.is_home} for share in shares]


async def stores_away(store: AsyncStore) -> frozenset[str]:
    """The names of the stores that cannot be reached or refuse writes. One that is known not to answer is not waited for."""
    absent = frozenset(store.absent)
    asked = {name: one for name, one in store.stores().items() if name not in absent}
    found = await asyncio.gather(*(one.ping() for one in asked.values()), return_exceptions=True)
    for name, error in zip(asked, found, strict=True):
        if isinstance(error, StoreUnavailable):
            log.warning("store_unavailable", reason=error.message, **({"store": name} if name else {}))
            store.note_failure(name, error)
        elif error is not None:
            raise error
    return absent | {name for name, error in zip(asked, found, strict=True) if error is not None}


async def read_stores(store: AsyncStore, infos: Iterable[ModelInfo]) -> list[StoreState]:
    """How each store is, the main one first."""
    away, stores = await stores_away(store), store.stores()
    healths = await asyncio.gather(*(_health(store, name, one) for name, one in stores.items()))
    models: dict[str, set[str]] = {}
    for info in infos:
        for queue in queues_of_model(info):
            models.setdefault(store.store_of(queue), set()).add(info.name)
    return [
        StoreState(
            name or MAIN_STORE, name not in away, one.is_replicated, health, tuple(sorted(models.get(name or MAIN_STORE, ())))
        )
        for (name, one), health in zip(stores.items(), healths, strict=True)
    ]


async def _health(store: AsyncStore, name: str, one: AsyncStore) -> StoreHealth | None:
    if name in store.absent:
        return None
    try:
        return await one.health()
    except StoreUnavailable:
        return None


class StoreReads:
    """GET /v1/stores."""

    def __init__(self, store: AsyncStore, *, registry: ModelRegistry) -> None:
        self._store = store
        self._registry = registry

    def router(self) -> APIRouter:
        router = APIRouter(default_response_class=Response, tags=["queues"])
        router.add_api_route("/v1/stores", self.stores, methods=["GET"], summary="The stores of this deployment", name="stores")
        return router

    async def stores(self) -> Response:
        found = await read_stores(self._store, [entry.info for entry in self._registry.models.values()])
        return json_response({"data": [store_view(one) for one in found]})


def store_view(state: StoreState) -> dict[str, Any]:
    health = state.health
    return {
        "name": state.name,
        "state": "up" if state.is_up else "away",
        "durability": "replicated" if state.is_replicated else "local",
        "memory_used_bytes": health.memory_used_bytes if health else None,
        "memory_limit_bytes": (health.memory_limit_bytes or None) if health else None,
        "persistence_ok": health.persistence_ok if health else None,
        "models": list(state.models),
    }

"""The care for the model store: downloaded archives that no model names any more are removed."""

# D103: docs/design/protocols.md
from __future__ import annotations

import asyncio

import structlog

from penstock.broker.store.aio import AsyncStore
from penstock.errors import StoreUnavailable
from penstock.extensions.torchserve.management.model_store import ModelStore, SeenUnused

log = structlog.get_logger(__name__)

_LOOK_S = 60.0
NOT_KEPT = "model_store_not_kept"


class StoreKeeper:
    """Removes downloaded archives that no model names any more, every minute."""

    def __init__(self, models: ModelStore, store: AsyncStore) -> None:
        self._models = models
        self._store = store
        self._seen: dict[str, SeenUnused] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def look(self) -> None:
        """Raises `StoreUnavailable`, and then removes nothing."""
        rollouts = await self._store.rollouts()
        sources = [str(table.get("source", "")) for found in rollouts.values() for table in found.rollout.added.values()]
        await asyncio.to_thread(self._models.remove_unused, sources, self._seen)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                await self.look()
            except StoreUnavailable as error:
                log.debug(NOT_KEPT, reason=error.message)
            except OSError as error:
                log.warning(NOT_KEPT, reason=str(error))

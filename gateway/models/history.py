"""The history of models: noted by every gateway that runs, and read for GET /v1/history and the dashboard's charts."""

# D118: docs/design/store.md

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Annotated

import structlog
from fastapi import APIRouter, Query
from starlette.responses import Response

from penstock.broker.history import (
    LENGTHS_S,
    LONGEST_S,
    SHORTEST_S,
    ReadHistory,
    all_queues,
    in_steps,
    level_for,
    note_history,
    read_history,
)
from penstock.broker.partitions import queues_of_model
from penstock.broker.store.aio import AsyncStore
from penstock.errors import StoreUnavailable
from penstock.gateway.asgi.wire import json_response
from penstock.gateway.models.history_view import ModelHistory, history_of, view
from penstock.gateway.models.registry import ModelEntry, ModelRegistry

log = structlog.get_logger(__name__)
NOTE_S = 5.0
# So many calls are under way at once, so that many models are no burst.
_AT_ONCE = 32
# Viewers of the same charts share what was read.
_FRESH_S = 2.0
_KEPT_READS = 64
DEFAULT_S = 3_600
Range = Annotated[int, Query(ge=SHORTEST_S, le=LONGEST_S, description="How far to look back, in seconds")]


class HistoryBeat:
    """Has the store note what it counts itself, so that the history goes on while no worker runs and nobody looks."""

    def __init__(self, store: AsyncStore, registry: ModelRegistry) -> None:
        self._store = store
        self._registry = registry
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._note_for_ever())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def note(self) -> None:
        """A queue whose store is away is left out."""
        queues = [queue for entry in self._registry.models.values() for queue in queues_of_model(entry.info)]
        for first in range(0, len(queues), _AT_ONCE):
            notes = (self._store.run(note_history(queue)) for queue in queues[first : first + _AT_ONCE])
            for failure in await asyncio.gather(*notes, return_exceptions=True):
                if isinstance(failure, BaseException) and not isinstance(failure, StoreUnavailable):
                    raise failure

    async def _note_for_ever(self) -> None:
        while True:
            await asyncio.sleep(NOTE_S)
            try:
                await self.note()
            except Exception:
                # The task must outlive a bug, or the charts would stand still.
                log.exception("history_unwritten")


class HistoryReader:
    """Reads histories; what was read is shared for a moment."""

    def __init__(self, store: AsyncStore, registry: ModelRegistry) -> None:
        self._store = store
        self._registry = registry
        self._reads: dict[tuple[str, int], tuple[float, ModelHistory]] = {}

    async def read(self, model: str, range_s: int) -> ModelHistory:
        """Of all models if `model` is empty. Raises `UnknownModel`, or `StoreUnavailable` if no store answers."""
        entries = [(await self._registry.find(model))[0]] if model else list(self._registry.models.values())
        at, found = self._reads.get((model, range_s), (float("-inf"), None))
        if found is not None and time.monotonic() - at < _FRESH_S:
            return found
        history = await self._read(model, entries, range_s)
        if len(self._reads) >= _KEPT_READS:
            self._reads.clear()
        self._reads[model, range_s] = time.monotonic(), history
        return history

    async def _read(self, model: str, entries: Sequence[ModelEntry], range_s: int) -> ModelHistory:
        level = level_for(range_s)
        reads = await asyncio.gather(*(self._of(entry, level) for entry in entries), return_exceptions=True)
        failures = {entry.name: read for entry, read in zip(entries, reads, strict=True) if isinstance(read, BaseException)}
        there = [read for read in reads if not isinstance(read, BaseException)]
        for failure in failures.values():
            if not there or not isinstance(failure, StoreUnavailable):
                raise failure
        now = max((one.now for read in there for one in read), default=0.0) or await self._store.now()
        return await asyncio.to_thread(
            _history, there, model=model, level=level, range_s=range_s, now=now, away=sorted(failures)
        )

    async def _of(self, entry: ModelEntry, level: int) -> list[ReadHistory]:
        return list(
            await asyncio.gather(*(self._store.run(read_history(queue, level)) for queue in queues_of_model(entry.info)))
        )


def _history(
    reads: Sequence[Sequence[ReadHistory]], *, model: str, level: int, range_s: int, now: float, away: Sequence[str]
) -> ModelHistory:
    steps = (in_steps(one.steps, LENGTHS_S[level]) for read in reads for one in read)
    return history_of(all_queues(steps), model=model, level=level, range_s=range_s, now=now, away=away)


class HistoryReads:
    """GET /v1/history and /v1/models/{model}/history."""

    def __init__(self, store: AsyncStore, registry: ModelRegistry) -> None:
        self._reader = HistoryReader(store, registry)

    def router(self) -> APIRouter:
        router = APIRouter(default_response_class=Response, tags=["queues"])
        router.add_api_route(
            "/v1/history", self.all, methods=["GET"], summary="What happened lately, all models together", name="history"
        )
        router.add_api_route(
            "/v1/models/{model}/history",
            self.one,
            methods=["GET"],
            summary="What happened to a model lately",
            name="model_history",
        )
        return router

    async def all(self, range_s: Range = DEFAULT_S) -> Response:
        return json_response(view(await self._reader.read("", range_s)))

    async def one(self, model: str, range_s: Range = DEFAULT_S) -> Response:
        return json_response(view(await self._reader.read(model, range_s)))

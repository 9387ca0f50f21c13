"""Notes what the store counts of the models, and reads their histories."""

# D118: docs/design/store.md

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

import structlog

from penstock.broker.partitions import queues_of_model
from penstock.broker.store.aio import AsyncStore
from penstock.errors import StoreUnavailable
from penstock.extensions.history.gateway.view import ModelHistory, history_of
from penstock.extensions.history.gateway.window import HistoryRange, level_of, window_of
from penstock.extensions.history.store import (
    LENGTHS_S,
    HistoryStep,
    ReadHistory,
    all_queues,
    in_steps,
    note_history,
    read_history,
)
from penstock.gateway.models.registry import ModelEntry, ModelRegistry

log = structlog.get_logger(__name__)
NOTE_S = 5.0
# At most this many calls are under way at once, so that many models cause no burst.
_AT_ONCE = 32
# Viewers of the same charts share what was read.
_FRESH_S = 2.0
_KEPT_READS = 64


class HistoryBeat:
    """Makes the store record its own counts, so that the history goes on while no worker runs and no page is open."""

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
    """Reads histories; what was read, or is being read, is shared for a moment."""

    def __init__(self, store: AsyncStore, registry: ModelRegistry) -> None:
        self._store = store
        self._registry = registry
        self._reads: dict[tuple[str, HistoryRange], tuple[float, asyncio.Task[ModelHistory]]] = {}

    async def read(self, model: str, asked: HistoryRange) -> ModelHistory:
        """Of all models if `model` is empty. Raises `UnknownModel`, `BadRequest`, or `StoreUnavailable` if no store answers."""
        entries = [(await self._registry.find(model))[0]] if model else list(self._registry.models.values())
        at, task = self._reads.get((model, asked), (float("-inf"), None))
        if task is None or time.monotonic() - at >= _FRESH_S or _has_failed(task):
            if len(self._reads) >= _KEPT_READS:
                self._reads.clear()
            task = asyncio.create_task(self._read(model, entries, asked))
            self._reads[model, asked] = time.monotonic(), task
        # One caller may leave while others wait for the same read.
        return await asyncio.shield(task)

    async def _read(self, model: str, entries: Sequence[ModelEntry], asked: HistoryRange) -> ModelHistory:
        level = level_of(asked, 0.0 if asked.is_usual else await self._store.now())
        now, steps, away = 0.0, dict[int, HistoryStep](), dict[str, StoreUnavailable]()
        places = [(entry.name, queue) for entry in entries for queue in queues_of_model(entry.info)]
        # A few queues at a time, whose steps become one history before the next are read: many models need no more memory.
        for first in range(0, len(places), _AT_ONCE):
            some = places[first : first + _AT_ONCE]
            reads = (self._store.run(read_history(queue, level)) for _, queue in some)
            for (name, _), read in zip(some, await asyncio.gather(*reads, return_exceptions=True), strict=True):
                if isinstance(read, StoreUnavailable):
                    away[name] = read
                elif isinstance(read, BaseException):
                    raise read
                else:
                    now, steps = max(now, read.now), await asyncio.to_thread(_add, steps, read, level)
        if away and len(away) == len(entries):
            raise next(iter(away.values()))
        window = window_of(asked, LENGTHS_S[level], now or await self._store.now())
        return history_of(steps, model=model, window=window, away=sorted(away))


def _has_failed(task: asyncio.Task[ModelHistory]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _add(steps: Mapping[int, HistoryStep], read: ReadHistory, level: int) -> dict[int, HistoryStep]:
    return all_queues([steps, in_steps(read.steps, LENGTHS_S[level])])

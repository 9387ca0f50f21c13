"""Reads the queues once a second for all viewers of the overview, and stops while there are none (D36)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import structlog

from penstock.broker.store.aio import AsyncStore
from penstock.errors import StoreUnavailable
from penstock.gateway.dashboard.rows.queue_rows import QueueRow, Totals, queue_rows, totals
from penstock.gateway.dashboard.rows.series import QueueSamples, Sample
from penstock.gateway.models.queues import QueueView, read_queues
from penstock.gateway.models.registry import ModelRegistry

log = structlog.get_logger(__name__)
TICK_S = 1.0
# Polling continues for a while after the last request, so that the samples survive a change of page.
LINGER_S = 60.0


@dataclass(frozen=True, slots=True)
class Overview:
    """The queues at one moment. `number` grows with each poll. `away`: the store did not answer, and `rows` are old."""

    number: int = 0
    rows: list[QueueRow] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)
    away: bool = False


class OverviewPoller:
    """Polls every `tick_s`, until `linger_s` after the last call of `overview`, or until `is_stopping`. One per process."""

    def __init__(
        self,
        store: AsyncStore,
        registry: ModelRegistry,
        *,
        is_stopping: Callable[[], bool],
        tick_s: float = TICK_S,
        linger_s: float = LINGER_S,
    ) -> None:
        self._store = store
        self._registry = registry
        self._is_stopping = is_stopping
        self._tick_s = tick_s
        self._linger_s = linger_s
        self._samples: dict[str, QueueSamples] = {}
        self._overview = Overview()
        self._next_poll = asyncio.Event()
        self._polling: asyncio.Task[None] | None = None
        self._is_fresh = False
        self._wanted_until = 0.0

    async def overview(self) -> Overview:
        """The queues, at most one `tick_s` old. Each call keeps the polling alive for `linger_s`."""
        self._wanted_until = time.monotonic() + self._linger_s
        next_poll = self._next_poll
        if self._polling is None:
            self._polling = asyncio.create_task(self._keep_polling())
        if not self._is_fresh:
            await next_poll.wait()
        return self._overview

    async def changes(self) -> AsyncIterator[Overview]:
        """Each new overview, until the gateway stops."""
        overview = await self.overview()
        while not self._is_stopping():
            next_poll = self._next_poll
            yield overview
            await next_poll.wait()
            overview = self._overview if self._is_stopping() else await self.overview()

    async def close(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)

    async def _keep_polling(self) -> None:
        try:
            while time.monotonic() < self._wanted_until and not self._is_stopping():
                await self._poll()
                await asyncio.sleep(self._tick_s)
        finally:
            # After a gap, the old samples would look like an idle time.
            self._samples.clear()
            self._polling, self._is_fresh = None, False
            self._wake_waiters()

    async def _poll(self) -> None:
        entries = dict(self._registry.models)
        try:
            queues = await read_queues(self._store, list(entries.values()))
        except StoreUnavailable as error:
            log.debug("overview_blind", reason=error.message)
            self._overview = Overview(self._overview.number + 1, self._overview.rows, self._overview.totals, away=True)
        else:
            self._add_samples(queues)
            rows = queue_rows(queues, entries, self._samples, self._registry.workers)
            self._overview = Overview(self._overview.number + 1, rows, totals(rows))
        self._is_fresh = True
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        """Wake the waiting callers. Callers that come later wait for the next poll."""
        next_poll, self._next_poll = self._next_poll, asyncio.Event()
        next_poll.set()

    def _add_samples(self, queues: list[QueueView]) -> None:
        for model in self._samples.keys() - {queue.model for queue in queues}:
            del self._samples[model]
        for queue in queues:
            stats = queue.stats
            sample = Sample(stats.now, queue.depth, stats.accepted, sum(stats.ended.values()))
            self._samples.setdefault(queue.model, QueueSamples()).add(sample)

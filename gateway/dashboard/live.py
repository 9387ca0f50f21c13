"""What the overview shows, looked up once a second for all who look, and not at all while nobody does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import structlog

from penstock.broker.store.aio import AsyncStore
from penstock.errors import StoreUnavailable
from penstock.gateway.dashboard.queue_rows import QueueRow, Totals, queue_rows, totals
from penstock.gateway.dashboard.series import History, Sample
from penstock.gateway.models.queues import QueueView, read_queues
from penstock.gateway.models.registry import ModelRegistry

log = structlog.get_logger(__name__)
TICK_S = 1.0
# The memory of the last minutes outlives the way from one page to the next.
LINGER_S = 60.0


@dataclass(frozen=True, slots=True)
class View:
    """`number` ascends with every look. `away`: the store could not be asked, and `rows` are the last ones known."""

    number: int = 0
    rows: list[QueueRow] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)
    away: bool = False


class OverviewPoller:
    """Of one gateway process. `stop` says that it is to end. A look every `tick_s`, until `linger_s` after the last asked."""

    def __init__(
        self,
        store: AsyncStore,
        registry: ModelRegistry,
        *,
        stop: Callable[[], bool],
        tick_s: float = TICK_S,
        linger_s: float = LINGER_S,
    ) -> None:
        self._store = store
        self._registry = registry
        self._stop = stop
        self._tick_s = tick_s
        self._linger_s = linger_s
        self._histories: dict[str, History] = {}
        self._view = View()
        self._turned = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._fresh = False
        self._wanted_until = 0.0

    async def view(self) -> View:
        """As it is now, at most a second old. Whoever asks keeps the looks going for a while."""
        self._wanted_until = time.monotonic() + self._linger_s
        turned = self._turned
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_on())
        if not self._fresh:
            await turned.wait()
        return self._view

    async def changes(self) -> AsyncIterator[View]:
        """Every new view, until the gateway ends."""
        view = await self.view()
        while not self._stop():
            turned = self._turned
            yield view
            await turned.wait()
            view = self._view if self._stop() else await self.view()

    def history(self, model: str) -> History:
        return self._histories.get(model, History())

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _look_on(self) -> None:
        try:
            while time.monotonic() < self._wanted_until and not self._stop():
                await self._look()
                await asyncio.sleep(self._tick_s)
        finally:
            # A gap of unknown length would look like a quiet time.
            self._histories.clear()
            self._looking, self._fresh = None, False
            self._turn()

    async def _look(self) -> None:
        entries = dict(self._registry.models)
        try:
            queues = await read_queues(self._store, list(entries.values()))
        except StoreUnavailable as error:
            log.debug("overview_blind", reason=error.message)
            self._view = View(self._view.number + 1, self._view.rows, self._view.totals, away=True)
        else:
            self._remember(queues)
            rows = queue_rows(queues, entries, self._histories, self._registry.workers)
            self._view = View(self._view.number + 1, rows, totals(rows))
        self._fresh = True
        self._turn()

    def _turn(self) -> None:
        """Wake those who wait; who comes later waits for the next."""
        turned, self._turned = self._turned, asyncio.Event()
        turned.set()

    def _remember(self, queues: list[QueueView]) -> None:
        for model in self._histories.keys() - {queue.model for queue in queues}:
            del self._histories[model]
        for queue in queues:
            stats = queue.stats
            sample = Sample(stats.now, queue.depth, stats.accepted, sum(stats.ended.values()))
            self._histories.setdefault(queue.model, History()).add(sample)

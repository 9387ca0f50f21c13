"""The store of runs over the connection of a job store: one class that blocks, one for an event loop."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from penstock.broker.contract import CancelStatus
from penstock.broker.run_contract import KEEP_S, CreatedRun, DropStatus, ReopenStatus, RunChange, TakenRun, UpdateStatus
from penstock.broker.store import run_ops
from penstock.run import Run, RunCounts, RunPart, RunSpec, RunState

if TYPE_CHECKING:
    from penstock.broker.store.aio import AsyncStore
    from penstock.broker.store.sync import RedisStore
    from penstock.extensions.webhooks.webhook import Webhook


class RunStore:
    """See `Runs`; thread-safe only as far as `store` is."""

    def __init__(self, store: RedisStore) -> None:
        self.store = store

    def now(self) -> float:
        return self.store.now()

    def create(
        self, run_id: str, spec: RunSpec, *, owner: str = "", keep_s: float = KEEP_S, webhook: Webhook | None = None
    ) -> CreatedRun:
        return self.store.run(run_ops.create(run_id, spec, owner=owner, keep_s=keep_s, webhook=webhook))

    def take(self, run_id: str, driver: str, *, lease_s: float, dead: str = "") -> TakenRun:
        return self.store.run(run_ops.take(run_id, driver, lease_s=lease_s, dead=dead))

    def look(self, limit: int, *, without: Collection[str] = ()) -> list[Run]:
        return self.store.run(run_ops.look(limit, without=without))

    def next_of(self, run_id: str) -> Run | None:
        return self.store.run(run_ops.next_of(run_id))

    def split(self, run_id: str, driver: str, parts: Sequence[RunPart], counts: RunCounts) -> UpdateStatus:
        return self.store.run(run_ops.split(run_id, driver, parts, counts))

    def parts(self, run_id: str) -> list[Run]:
        return self.store.run(run_ops.parts(run_id))

    def update(self, run_id: str, driver: str, change: RunChange, *, lease_s: float) -> UpdateStatus:
        return self.store.run(run_ops.update(run_id, driver, change, lease_s=lease_s))

    def reopen(self, run_id: str, spec: RunSpec | None = None) -> ReopenStatus:
        return self.store.run(run_ops.reopen(run_id, spec))

    def ask_cancel(self, run_id: str, *, owner: str | None = None) -> CancelStatus:
        return self.store.run(run_ops.ask_cancel(run_id, owner=owner))

    def read(self, run_id: str) -> Run | None:
        return self.store.run(run_ops.read(run_id))

    def runs(
        self,
        *,
        owner: str | None = None,
        states: Collection[RunState] = (),
        after: str = "",
        limit: int = 20,
        keep_s: float = KEEP_S,
    ) -> list[Run]:
        return self.store.run(run_ops.runs(owner=owner, states=states, after=after, limit=limit, keep_s=keep_s))

    def drop(self, run_id: str, *, owner: str | None = None) -> DropStatus:
        return self.store.run(run_ops.drop(run_id, owner=owner))


class AsyncRunStore:
    """The part of `Runs` that callers need, without the driver's part, for a gateway's event loop."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store

    async def now(self) -> float:
        return await self._store.now()

    async def create(
        self, run_id: str, spec: RunSpec, *, owner: str = "", keep_s: float = KEEP_S, webhook: Webhook | None = None
    ) -> CreatedRun:
        return await self._store.run(run_ops.create(run_id, spec, owner=owner, keep_s=keep_s, webhook=webhook))

    async def ask_cancel(self, run_id: str, *, owner: str | None = None) -> CancelStatus:
        return await self._store.run(run_ops.ask_cancel(run_id, owner=owner))

    async def read(self, run_id: str) -> Run | None:
        return await self._store.run(run_ops.read(run_id))

    async def parts(self, run_id: str) -> list[Run]:
        return await self._store.run(run_ops.parts(run_id))

    async def runs(
        self,
        *,
        owner: str | None = None,
        states: Collection[RunState] = (),
        after: str = "",
        limit: int = 20,
        keep_s: float = KEEP_S,
    ) -> list[Run]:
        return await self._store.run(run_ops.runs(owner=owner, states=states, after=after, limit=limit, keep_s=keep_s))

    async def drop(self, run_id: str, *, owner: str | None = None) -> DropStatus:
        return await self._store.run(run_ops.drop(run_id, owner=owner))

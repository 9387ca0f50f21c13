"""The store of runs over the connection of a job store: one class that blocks, one for an event loop."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from penstock.broker.contract import CancelStatus, DropStatus, ReopenStatus, UpdateStatus
from penstock.broker.run_contract import KEEP_S, CreatedRun, RunChange, TakenRun
from penstock.broker.store import run_ops
from penstock.run import Run, RunCounts, RunPart, RunSpec, RunState

if TYPE_CHECKING:
    from penstock.broker.store.aio import AsyncStore
    from penstock.broker.store.sync import RedisStore
    from penstock.extensions.webhooks.webhook import Webhook


class RunStore:
    """Who works on a run, how far it is, and what callers asked of it; thread-safe only as far as `store` is.

    Every call is one atomic, durable step, and may be repeated after a lost reply; raises `StoreUnavailable`. `driver` is a
    name that no other process ever has. With `owner` None the run may be anybody's. Moments are by Redis' clock.
    """

    def __init__(self, store: RedisStore) -> None:
        self.store = store

    def now(self) -> float:
        """Redis' clock, as Unix seconds: what a run's moments are compared with."""
        return self.store.now()

    def create(
        self, run_id: str, spec: RunSpec, *, owner: str = "", keep_s: float = KEEP_S, webhook: Webhook | None = None
    ) -> CreatedRun:
        """Store a run. Its `webhook` hears of its end; if the run is opened again before that, only of the end that follows."""
        return self.store.run(run_ops.create(run_id, spec, owner=owner, keep_s=keep_s, webhook=webhook))

    def take(self, run_id: str, driver: str, *, lease_s: float, dead: str = "") -> TakenRun:
        """Become the run's driver, unless the run has ended or another driver's lease lasts. `dead`: a driver that is known to
        have died, whose lease does not count.

        A run of which three drivers in a row died without getting any further ends `failed`.
        """
        return self.store.run(run_ops.take(run_id, driver, lease_s=lease_s, dead=dead))

    def look(self, limit: int, *, without: Collection[str] = ()) -> list[Run]:
        """Runs that a runner may take: at most one per owner, the oldest, and first of the owner who waits for longest.

        Of a run with parts, the first part that nobody drives, or the run itself once all have ended. `without`: runs to pass
        over.

        Ends the queued runs whose deadline has passed.
        """
        return self.store.run(run_ops.look(limit, without=without))

    def next_of(self, run_id: str) -> Run | None:
        """What a driver may take of one run: a part of it, or the run itself. None while others drive all there is, or if the
        run has ended.
        """
        return self.store.run(run_ops.next_of(run_id))

    def split(self, run_id: str, driver: str, parts: Sequence[RunPart], counts: RunCounts) -> UpdateStatus:
        """Give a run its parts, which are then driven like runs, under ids of their own (`part_id`); `driver` has the run.

        A run that has parts keeps them. Its counts begin at `counts`. A part that does not reach its end ends its run.
        """
        return self.store.run(run_ops.split(run_id, driver, parts, counts))

    def parts(self, run_id: str) -> list[Run]:
        """The parts of a run in their order; none of a run that was not split."""
        return self.store.run(run_ops.parts(run_id))

    def update(self, run_id: str, driver: str, change: RunChange, *, lease_s: float) -> UpdateStatus:
        """Write what changed and hold the run for another `lease_s`; 0 gives it up. The counts of a part count for its run.

        The first final state stands until `reopen`.
        """
        return self.store.run(run_ops.update(run_id, driver, change, lease_s=lease_s))

    def reopen(self, run_id: str, spec: RunSpec | None = None) -> ReopenStatus:
        """Queue a run again that ended failed, cancelled or expired, because a caller wants it resumed; its completed parts
        stay completed. With a `spec` the run goes on with that one, also if it has not ended.
        """
        return self.store.run(run_ops.reopen(run_id, spec))

    def ask_cancel(self, run_id: str, *, owner: str | None = None) -> CancelStatus:
        """End a queued run without a driver at once, and a run with parts unless one puts them together; another run's driver
        learns of the request at its next `update`.
        """
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
        """Runs in any of `states` (empty: in all), newest first, starting behind `after`; none if `after` is not known.

        Forgets runs that ended `keep_s` ago, as `create` does.
        """
        """Runs in any of `states` (empty: in all), newest first, starting behind `after`; none if `after` is not known.

        Forgets runs that ended `keep_s` ago, as `create` does.
        """
        return self.store.run(run_ops.runs(owner=owner, states=states, after=after, limit=limit, keep_s=keep_s))

    def drop(self, run_id: str, *, owner: str | None = None) -> DropStatus:
        """Forget an ended run."""
        return self.store.run(run_ops.drop(run_id, owner=owner))


class AsyncRunStore:
    """The part of `RunStore` that callers need, without the driver's part, for a gateway's event loop."""

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

"""Several stores for an event loop: sends each call to the store that holds its queue."""

# D109: docs/design/store.md

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import TypeVar

from penstock.broker.records import NewJob, SubmitStatus, Submitted
from penstock.broker.store import ops
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.links.refusals import is_unreachable
from penstock.broker.store.notifications import Waiter
from penstock.broker.store.ops import Command, Operation
from penstock.broker.store.registry import StoredModel, clock
from penstock.broker.stores.absences import StoreAbsences
from penstock.broker.stores.model_queues import MoveStep, has_jobs, model_queues, swap_queues
from penstock.broker.stores.places import StoreMap
from penstock.broker.stores.plan import (
    LOOK_AGAIN_S,
    PLACE_TRIES,
    StorePlan,
    of_store,
    queue_of_command,
    queue_of_operation,
    shown,
    unknown_place,
    unnamed_store,
)
from penstock.errors import StoreUnavailable
from penstock.job import JobId, model_of, queue_of
from penstock.settings.store_url import MAIN_STORE

Reply = TypeVar("Reply")


class AsyncStores(AsyncStore):
    """As `AsyncStore`, over all stores of `places`; its own connections lead to the main store. A store that cannot be reached
    fails the calls on its own queues, and the error names it.
    """

    def __init__(self, places: StoreMap) -> None:
        main = places.places.main
        super().__init__(main.url, replicated=main.replicated)
        self._map = places
        self._others = {
            store: AsyncStore(address.url, replicated=address.replicated, channel=self.channel)
            for store, address in places.places.others.items()
        }
        self._looked_at = float("-inf")
        self._absences = StoreAbsences(self._asked)

    async def start(self) -> None:
        await asyncio.gather(super().start(), *(store.start() for store in self._others.values()))
        await self._learn_if_there()

    async def close(self) -> None:
        await self._absences.close()
        await asyncio.gather(super().close(), *(store.close() for store in self._others.values()))

    def stores(self) -> Mapping[str, AsyncStore]:
        return {MAIN_STORE: self, **self._others}

    def homes_of(self, model: str) -> Sequence[str]:
        return self._plan.homes_of(model)

    def store_of(self, queue: str) -> str:
        return self._plan.store_of(queue)

    @property
    def absent(self) -> Set[str]:
        return self._absences

    def note_failure(self, store: str, error: StoreUnavailable) -> None:
        if is_unreachable(error) and store in self.stores():
            self._absences.note(store)

    async def _asked(self, store: str) -> float:
        """Any answer will do."""
        return await (AsyncStore.send(self, clock()) if store == MAIN_STORE else self._others[store].send(clock()))

    async def run(self, operation: Operation[Reply]) -> Reply:
        store = await self._home(queue_of_operation(operation))
        with self._naming(store):
            return await (super().run(operation) if store == MAIN_STORE else self._others[store].run(operation))

    async def send(self, command: Command[Reply]) -> Reply:
        store = await self._home(queue_of_command(command))
        with self._naming(store):
            return await (super().send(command) if store == MAIN_STORE else self._others[store].send(command))

    async def submit(self, job: NewJob, *, max_depth: int = 10_000) -> Submitted:
        await self._place(job.id.queue)
        if self._plan.is_forgotten(job.id.queue):
            return Submitted(SubmitStatus.CLOSED, job.id, 0)
        store = await self._home(job.id.queue)
        with self._naming(store):
            if store == MAIN_STORE:
                return await super().submit(job, max_depth=max_depth)
            return await self._others[store].submit(job, max_depth=max_depth)

    async def there(self, queues: Sequence[str], ask: Callable[[str], Awaitable[Reply]]) -> list[Reply | None]:
        return list(await asyncio.gather(*(self._if_there(queue, ask) for queue in queues)))

    async def _if_there(self, queue: str, ask: Callable[[str], Awaitable[Reply]]) -> Reply | None:
        if self.store_of(queue) in self._absences:
            return None
        try:
            return await ask(queue)
        except StoreUnavailable:
            return None

    async def models(self) -> dict[str, StoredModel]:
        """As `AsyncStore.models`, each with the numbers of its queues. This process learns the places of these queues first."""
        await self.learn_places()
        found = await super().models()
        return {name: shown(stored, self._plan) for name, stored in found.items()}

    def waiter(self, *jobs: JobId) -> AbstractContextManager[Waiter]:
        by_store: dict[str, list[JobId]] = {}
        for job in jobs:
            by_store.setdefault(self._plan.store_of(job.queue), []).append(job)
        return self._waiting(by_store)

    @contextmanager
    def _waiting(self, by_store: Mapping[str, list[JobId]]) -> Iterator[Waiter]:
        waiter = Waiter()
        with ExitStack() as waiting:
            for store, jobs in by_store.items():
                listening = self._others.get(store, self)
                waiting.enter_context(listening._router.waiter(*jobs, also=waiter))
            yield waiter

    def wake_waiters(self) -> None:
        super().wake_waiters()
        for store in self._others.values():
            store.wake_waiters()

    async def learn_places(self) -> None:
        """Read which store holds which queue, for this process. Raises `StoreUnavailable`."""
        records = await self._ask_main(model_queues())
        self._map.plan = self._plan.following(records)

    async def finish_move(self, model: str, partitions: int) -> None:
        """Do what the mover does next, who may have died between closing the queues and sending new jobs elsewhere."""
        await self.learn_places()
        found = self._plan.found(model)
        if found.queues.step(found.queues.newest_store, partitions) is not MoveStep.SWITCH:
            return
        for number in found.queues.closing(partitions):
            await self.run(ops.close_queue(queue_of(model, number)))
        await self.run(swap_queues(model, found, found.queues.switched(partitions, await self.now())))

    async def _ask_main(self, command: Command[Reply]) -> Reply:
        with self._naming(MAIN_STORE):
            return await super().send(command)

    @contextmanager
    def _naming(self, store: str) -> Iterator[None]:
        try:
            yield
        except StoreUnavailable as error:
            self.note_failure(store, error)
            raise of_store(error, store) from error

    @property
    def _plan(self) -> StorePlan:
        assert self._map.plan is not None
        return self._map.plan

    async def _learn_if_there(self) -> None:
        self._looked_at = time.monotonic()
        # Without an answer, what is known holds.
        with suppress(StoreUnavailable):
            await self.learn_places()

    async def _home(self, queue: str) -> str:
        """The store that holds the queue. Raises `StoreUnavailable` if the settings do not name it, or nobody knows it yet."""
        if not self._plan.knows(queue) and time.monotonic() - self._looked_at > LOOK_AGAIN_S:
            await self._learn_if_there()
        if self._plan.records is None and queue:
            raise unknown_place(queue)
        store = self._plan.store_of(queue)
        if store != MAIN_STORE and store not in self._others:
            raise unnamed_store(store, queue)
        return store

    async def _place(self, queue: str) -> None:
        """Note where a queue lies before its first job: settings that change later must not part it from its jobs."""
        for _ in range(PLACE_TRIES):
            if self._plan.knows(queue):
                return
            await self.learn_places()
            found = self._plan.found(model_of(queue))
            wanted = self._plan.placed(queue, is_in_main=await self._ask_main(has_jobs(queue)))
            if wanted == found.queues or await self.run(swap_queues(model_of(queue), found, wanted)):
                await self.learn_places()

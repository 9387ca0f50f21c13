"""Several stores for one thread: sends each call to the store that holds its queue."""

# D108: docs/design/store.md

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from penstock.broker.records import NewJob, Submitted
from penstock.broker.store.ops import Command, Operation, prefix
from penstock.broker.store.sync import RedisStore
from penstock.broker.stores.places import StoreMap
from penstock.broker.stores.plan import StorePlan, of_store, queue_in, queue_of_command, queue_of_operation, unnamed_store
from penstock.broker.stores.queue_records import has_jobs, model_queues, swap_queues
from penstock.errors import StoreUnavailable
from penstock.job import model_of, queue_of
from penstock.settings.stores import MAIN_STORE

Reply = TypeVar("Reply")
# A queue that the registry did not have is looked for there again, but not more often than this.
LOOK_AGAIN_S = 0.5
_TRIES = 5


class RedisStores(RedisStore):
    """As `RedisStore`, over all stores of `places`; its own connection leads to the main store. A store that cannot be reached
    fails the calls on its own queues, and the error names it.
    """

    def __init__(self, places: StoreMap, *, name: str = "") -> None:
        super().__init__(places.places.main.url, name=name)
        self._map = places
        self._others = {store: RedisStore(address.url, name=name) for store, address in places.places.others.items()}
        self._looked_at = float("-inf")

    def close(self) -> None:
        super().close()
        for store in self._others.values():
            store.close()

    def load_functions(self) -> None:
        super().load_functions()
        for store in self._others.values():
            store.load_functions()

    def send(self, command: Command[Reply]) -> Reply:
        store = self._home(queue_of_command(command))
        if store == MAIN_STORE:
            return self._named(store, lambda: super(RedisStores, self).send(command))
        return self._named(store, lambda: self._others[store].send(command))

    def submit(self, jobs: Sequence[NewJob], *, max_depth: int = 10_000) -> list[Submitted]:
        for queue in {job.id.queue for job in jobs}:
            self._place(queue)
        return super().submit(jobs, max_depth=max_depth)

    def known(self, serials: Sequence[str]) -> set[str]:
        """As `RedisStore.known`; raises `StoreUnavailable` if any store cannot be asked, for a blob may be one of its jobs'."""
        self.follow()
        found: set[str] = set()
        for store in (super(), *self._others.values()):
            found |= store.known_in(serials, self.queues())
        return found

    def follow(self) -> None:
        """Read from the registry which store holds which queue, for this process. Raises `StoreUnavailable`."""
        assert self._map.plan is not None
        self._map.plan = self._map.plan.following(self.send(model_queues()))
        self._looked_at = time.monotonic()

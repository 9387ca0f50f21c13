"""Several stores for one thread: sends each call to the store that holds its queue."""

# D109: docs/design/store.md

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from penstock.broker.records import NewJob, Submitted
from penstock.broker.store.ops import Command, Operation
from penstock.broker.store.sync import RedisStore
from penstock.broker.stores.model_queues import has_jobs, model_queues, swap_queues
from penstock.broker.stores.places import StoreMap
from penstock.broker.stores.plan import (
    LOOK_AGAIN_S,
    PLACE_TRIES,
    StorePlan,
    of_store,
    queue_in,
    queue_of_command,
    queue_of_operation,
    unknown_place,
    unnamed_store,
)
from penstock.errors import StoreUnavailable
from penstock.job import model_of, queue_of
from penstock.settings.store_url import MAIN_STORE

Reply = TypeVar("Reply")


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
        send: Callable[[Command[Reply]], Reply] = super().send if store == MAIN_STORE else self._others[store].send
        return self._in(store, send, command)

    def submit(self, jobs: Sequence[NewJob], *, max_depth: int = 10_000) -> list[Submitted]:
        for queue in {job.id.queue for job in jobs}:
            self._place(queue)
        return super().submit(jobs, max_depth=max_depth)

    def learn_places(self) -> None:
        """Read which store holds which queue, for this process. Raises `StoreUnavailable`."""
        records = self._in(MAIN_STORE, super().send, model_queues())
        self._map.plan = self._plan.following(records)

    @property
    def _plan(self) -> StorePlan:
        assert self._map.plan is not None
        return self._map.plan

    def _home(self, queue: str) -> str:
        """The store that holds the queue. Raises `StoreUnavailable` if the settings do not name it, or nobody knows it yet."""
        if not self._plan.knows(queue) and time.monotonic() - self._looked_at > LOOK_AGAIN_S:
            self._looked_at = time.monotonic()
            # Without an answer, what is known holds.
            with suppress(StoreUnavailable):
                self.learn_places()
        if self._plan.records is None and queue:
            raise unknown_place(queue)
        store = self._plan.store_of(queue)
        if store != MAIN_STORE and store not in self._others:
            raise unnamed_store(store, queue)
        return store

    def _place(self, queue: str) -> None:
        """Note where a queue lies before its first job: settings that change later must not part it from its jobs."""
        for _ in range(PLACE_TRIES):
            if self._plan.knows(queue):
                return
            self.learn_places()
            model = model_of(queue)
            found = self._plan.found(model)
            names = [queue_of(model, number) for number in found.queues.numbers]
            in_main = frozenset(name for name in names if super(RedisStores, self).send(has_jobs(name)))
            wanted = self._plan.placed(model, found.queues, in_main)
            if self.run(swap_queues(model, found, wanted)):
                self.learn_places()

    def _replies(self, operations: Sequence[Operation[Any]]) -> list[Any]:
        homes = [self._home(queue_of_operation(operation)) for operation in operations]
        replies: list[Any] = [None] * len(operations)
        for store in in_order(homes):
            places = [place for place, home in enumerate(homes) if home == store]
            asked = [operations[place] for place in places]
            ask = super()._replies if store == MAIN_STORE else self._others[store]._replies
            for place, reply in zip(places, self._in(store, ask, asked), strict=True):
                replies[place] = reply
        return replies

    def _exist(self, keys: Sequence[str]) -> list[int]:
        homes = [self._home(queue_in(key)) for key in keys]
        found: dict[str, int] = {}
        for store in set(homes):
            own = [key for key, home in zip(keys, homes, strict=True) if home == store]
            ask = super()._exist if store == MAIN_STORE else self._others[store]._exist
            found.update(zip(own, self._in(store, ask, own), strict=True))
        return [found[key] for key in keys]

    def _in(self, store: str, call: Callable[[Any], Reply], asked: Any) -> Reply:
        try:
            return call(asked)
        except StoreUnavailable as error:
            raise of_store(error, store) from error


def in_order(homes: Sequence[str]) -> list[str]:
    """Each store once; last the one of the last call, which may be a claim: it is made only when all others were answered."""
    return [*dict.fromkeys(home for home in homes if home != homes[-1]), homes[-1]]

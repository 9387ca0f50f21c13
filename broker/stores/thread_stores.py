"""Several stores for one thread: sends each call to the store that holds its queue."""

# D109: docs/design/store.md

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from penstock.broker.records import Absent, NewJob, SubmitStatus, Submitted
from penstock.broker.store.connection import READ_TIMEOUT_S
from penstock.broker.store.links.refusals import is_unreachable
from penstock.broker.store.ops import Operation
from penstock.broker.store.registry import StoredModel
from penstock.broker.store.sync import RedisStore
from penstock.broker.stores.model_queues import MoveStep, has_jobs, model_queues, swap_queues
from penstock.broker.stores.places import StoreMap
from penstock.broker.stores.plan import (
    LOOK_AGAIN_S,
    PLACE_TRIES,
    StorePlan,
    of_store,
    queue_in,
    queue_of_operation,
    shown,
    unknown_place,
    unnamed_store,
)
from penstock.errors import StoreUnavailable
from penstock.job import model_of, queue_of
from penstock.settings.store_url import MAIN_STORE

# How long a thread of the main store waits for another one, and for how long it then leaves that one alone.
_BESIDE_S = 1.0
_REST_S = 10.0
Reply = TypeVar("Reply")
Asked = TypeVar("Asked")


class NamedStore(RedisStore):
    """One of several stores: its errors name it. `rest_s`: for so long after it did not answer, calls fail at once."""

    def __init__(self, url: str, store: str, *, name: str = "", within_s: float = READ_TIMEOUT_S, rest_s: float = 0.0) -> None:
        super().__init__(url, name=name, within_s=within_s)
        self._store = store
        self._rest_s = rest_s
        self._away: tuple[float, StoreUnavailable] | None = None

    def _replies(self, operations: Sequence[Operation[Any]]) -> list[Any]:
        return self._naming(super()._replies, operations)

    def _asked(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        return self._naming(super()._asked, commands)

    def _naming(self, call: Callable[[Asked], Reply], asked: Asked) -> Reply:
        if self._away is not None and time.monotonic() - self._away[0] < self._rest_s:
            raise self._away[1]
        try:
            return call(asked)
        except StoreUnavailable as error:
            found = of_store(error, self._store)
            self._away = (time.monotonic(), found) if self._rest_s and is_unreachable(error) else None
            raise found from error


class RedisStores(NamedStore):
    """As `RedisStore`, over all stores of `places`; its own connection leads to the main store. A store that cannot be reached
    fails the calls on its own queues, and the error names it.
    """

    def __init__(self, places: StoreMap, *, name: str = "", is_of_main: bool = False) -> None:
        """`is_of_main`: the thread works for the main store, and asks another one now and then: it does not wait for that one
        as it does for its own.
        """
        super().__init__(places.places.main.url, MAIN_STORE, name=name)
        self._map = places
        within_s, rest_s = (_BESIDE_S, _REST_S) if is_of_main else (READ_TIMEOUT_S, 0.0)
        self._others = {
            store: NamedStore(place.url, store, name=name, within_s=within_s, rest_s=rest_s)
            for store, place in places.places.others.items()
        }
        self._looked_at = float("-inf")

    def close(self) -> None:
        super().close()
        for store in self._others.values():
            store.close()

    def load_functions(self) -> None:
        super().load_functions()
        for store in self._others.values():
            store.load_functions()

    def submit(self, jobs: Sequence[NewJob], *, max_depth: int = 10_000) -> list[Submitted]:
        for queue in {job.id.queue for job in jobs}:
            self.place(queue)
        forgotten = {job.id for job in jobs if self.plan.is_forgotten(job.id.queue)}
        answers = iter(super().submit([job for job in jobs if job.id not in forgotten], max_depth=max_depth))
        return [Submitted(SubmitStatus.CLOSED, job.id, 0) if job.id in forgotten else next(answers) for job in jobs]

    def absent(self, queue: str, *, sweeper: str, pace_s: float, again_s: float) -> Absent:
        """As the queue's own store has it, whose slots may have moved to other nodes a moment ago."""
        home = self._others.get(self._home(queue))
        look = super().absent if home is None else home.absent
        return look(queue, sweeper=sweeper, pace_s=pace_s, again_s=again_s)

    def stored_models(self) -> dict[str, StoredModel]:
        """As `RedisStore.stored_models`, each with the numbers of its queues. This process learns the places of these queues
        first.
        """
        self.learn_places()
        return {name: shown(stored, self.plan) for name, stored in super().stored_models().items()}

    def first_of(self, model: str) -> int:
        """The number of the first queue for the model's new jobs, once a move that is under way has come that far."""
        found = self.stored_models().get(model, StoredModel()).info
        if found is None:
            return 0
        self.finish_move(model, found.partitions)
        return self.plan.found(model).queues.first

    def finish_move(self, model: str, partitions: int) -> None:
        """Do what the mover does next, who may have died between closing the queues and sending new jobs elsewhere."""
        found = self.plan.found(model)
        if found.queues.step(found.queues.newest_store, partitions) is not MoveStep.SWITCH:
            return
        for number in found.queues.closing(partitions):
            self.close_queue(queue_of(model, number))
        self.run(swap_queues(model, found, found.queues.switched(partitions, self.now())))
        self.learn_places()

    def forget_closed(self, model: str, *, closed_before: float) -> list[int]:
        self.learn_places()
        found, gone = self.plan.found(model), list[int]()
        for number in found.queues.leaving:
            if found.queues.closed.get(number, closed_before) >= closed_before or self.newest(queue_of(model, number), limit=1):
                break
            gone.append(number)
        if not gone or not self.run(swap_queues(model, found, found.queues.forgotten(gone))):
            return []
        self.learn_places()
        return gone

    def learn_places(self) -> None:
        """Read which store holds which queue, for this process. Raises `StoreUnavailable`."""
        records = super().send(model_queues())
        self._map.plan = self.plan.following(records)

    @property
    def plan(self) -> StorePlan:
        assert self._map.plan is not None
        return self._map.plan

    def _home(self, queue: str) -> str:
        """The store that holds the queue. Raises `StoreUnavailable` if the settings do not name it, or nobody knows it yet."""
        if not self.plan.knows(queue) and time.monotonic() - self._looked_at > LOOK_AGAIN_S:
            self._looked_at = time.monotonic()
            # Without an answer, what is known holds.
            with suppress(StoreUnavailable):
                self.learn_places()
        if self.plan.records is None and queue:
            raise unknown_place(queue)
        store = self.plan.store_of(queue)
        if store != MAIN_STORE and store not in self._others:
            raise unnamed_store(store, queue)
        return store

    def place(self, queue: str) -> None:
        """Note where a queue lies before its first job: settings that change later must not part it from its jobs."""
        for _ in range(PLACE_TRIES):
            if self.plan.knows(queue):
                return
            self.learn_places()
            found = self.plan.found(model_of(queue))
            # Of the main store, wherever the settings would have the queue.
            [jobs] = super()._asked([has_jobs(queue).words])
            wanted = self.plan.placed(queue, is_in_main=bool(jobs))
            if wanted == found.queues or self.run(swap_queues(model_of(queue), found, wanted)):
                self.learn_places()

    def _replies(self, operations: Sequence[Operation[Any]]) -> list[Any]:
        homes = [self._home(queue_of_operation(operation)) for operation in operations]
        main = super()._replies
        return _spread(homes, operations, lambda store: self._others[store]._replies if store in self._others else main)

    def _asked(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        homes = [self._home(queue_in(words[1])) if len(words) > 1 else MAIN_STORE for words in commands]
        main = super()._asked
        return _spread(homes, commands, lambda store: self._others[store]._asked if store in self._others else main)


def _spread(homes: Sequence[str], asked: Sequence[Any], ask_of: Callable[[str], Callable[[Any], list[Any]]]) -> list[Any]:
    """The replies, in order, of the stores in which the calls belong."""
    if not asked:
        return []
    replies: list[Any] = [None] * len(asked)
    for store in in_order(homes):
        places = [place for place, home in enumerate(homes) if home == store]
        for place, reply in zip(places, ask_of(store)([asked[place] for place in places]), strict=True):
            replies[place] = reply
    return replies


def in_order(homes: Sequence[str]) -> list[str]:
    """Each store once; last the one of the last call, which may be a claim: it is made only when all others were answered."""
    return [*dict.fromkeys(home for home in homes if home != homes[-1]), homes[-1]]

"""A mistake that the Lua functions must not have, and the contract test that notices the mistake."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from penstock.broker.store.library import body
from penstock.broker.store.runs import RunStore
from penstock.broker.store.sync import RedisStore
from tests.contract import test_store_hand_over as handing
from tests.contract import test_store_settle as settling
from tests.contract.model_queue import ModelQueue


@dataclass(frozen=True)
class Mutant:
    """`text`, or the line that ends with `text` as its guard mark, becomes `instead`; then `notices` must fail."""

    name: str
    text: str
    instead: str
    notices: Callable[[ModelQueue], None]

    def source(self) -> str:
        library = body()
        found = [line for line in library.splitlines() if line.endswith(f"-- {self.text}")] or [self.text]
        places = library.count(found[0])
        assert places == 1, f"mutant {self.name!r}: {places} times {self.text!r}; adapt the mutant to the library"
        return library.replace(found[0], self.instead)


def by_finish(test: Callable[[ModelQueue, settling.Settling], None]) -> Callable[[ModelQueue], None]:
    return lambda queue: test(queue, ModelQueue.finish)


def by_slot(test: Callable[[ModelQueue, handing.Listener], None]) -> Callable[[ModelQueue], None]:
    def check(queue: ModelQueue) -> None:
        with closing(handing.Listener(queue, "w1")) as slot:
            test(queue, slot)

    return check


def by_store(test: Callable[[RedisStore], None]) -> Callable[[ModelQueue], None]:
    def check(queue: ModelQueue) -> None:
        assert isinstance(queue.store, RedisStore)
        test(queue.store)

    return check


def by_run(test: Callable[[RunStore], None]) -> Callable[[ModelQueue], None]:
    def check(queue: ModelQueue) -> None:
        assert isinstance(queue.store, RedisStore)
        test(RunStore(queue.store))

    return check

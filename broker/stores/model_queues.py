"""Which queues a model has: where its new jobs go, which drain, and in which store each lies; as the registry keeps it. Pure.

A queue is one partition of a model. Its number is in the ids of its jobs, so a queue stays where it is: a model that moves to
another store, or gets fewer queues, closes some and opens others.
"""

# D109: docs/design/store.md

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from penstock.broker.store.ops import Command, Operation, prefix
from penstock.broker.store.registry import REGISTRY
from penstock.job import queue_of

QUEUES_KEY = f"{REGISTRY}queues"


@dataclass(frozen=True, slots=True)
class ModelQueues:
    """By number. `open`: those that new jobs go to. `closed`: those that take none and still have jobs, results or idempotency
    keys, each with the moment of its closing by the main store's clock. `stores`: where a queue lies; one without an entry lies
    where the settings say. `next`: the number of the next queue, for no number is used twice.
    """

    open: tuple[int, ...] = (0,)
    closed: Mapping[int, float] = field(default_factory=dict)
    stores: Mapping[int, str] = field(default_factory=dict)
    next: int = 1

    @property
    def numbers(self) -> tuple[int, ...]:
        """All, first those that are open."""
        return (*self.open, *self.closed)

    def store_of(self, number: int) -> str:
        """Empty if the settings say it."""
        return self.stores.get(number, "")

    def homes(self, model: str) -> dict[str, str]:
        """The store of each queue, by the queue's name, where it is recorded."""
        return {queue_of(model, number): store for number, store in self.stores.items()}

    def placed(self, stores: Mapping[int, str]) -> ModelQueues:
        """With these stores for the queues that had none."""
        return replace(self, stores=dict(stores) | dict(self.stores))

    def moved(self, store: str, *, now: float) -> ModelQueues:
        """As many open queues as before, all of them in this store; those elsewhere are closed."""
        staying = tuple(number for number in self.open if self.stores.get(number) == store)
        leaving = [number for number in self.open if number not in staying]
        return replace(self, open=staying)._opened(len(leaving), store)._closing(leaving, now)

    def resized(self, count: int, *, now: float) -> ModelQueues:
        """With this number of open queues: the last ones are closed; new ones lie where the settings say."""
        if count < len(self.open):
            kept, leaving = self.open[:count], self.open[count:]
            return replace(self, open=kept)._closing(leaving, now)
        return self._opened(count - len(self.open), "")

    def without(self, number: int) -> ModelQueues:
        """Without a closed queue, of which nothing is left."""
        return replace(
            self,
            closed={one: at for one, at in self.closed.items() if one != number},
            stores={one: store for one, store in self.stores.items() if one != number},
        )

    def _opened(self, count: int, store: str) -> ModelQueues:
        new = tuple(range(self.next, self.next + count))
        stores = dict(self.stores) | (dict.fromkeys(new, store) if store else {})
        return replace(self, open=(*self.open, *new), stores=stores, next=self.next + count)

    def _closing(self, numbers: tuple[int, ...] | list[int], now: float) -> ModelQueues:
        return replace(self, closed=dict(self.closed) | dict.fromkeys(numbers, now))


_QUEUES = msgspec.json.Decoder(ModelQueues)


@dataclass(frozen=True, slots=True)
class StoredQueues:
    """A model's queues and their exact text in the registry, which a change must find unchanged; empty where nothing ever
    changed.
    """

    queues: ModelQueues = field(default_factory=ModelQueues)
    text: bytes = b""


def model_queues() -> Command[dict[str, StoredQueues]]:
    """By model; without those whose queues are as the settings say."""
    return Command(("HGETALL", QUEUES_KEY), _read)


def swap_queues(model: str, found: StoredQueues, wanted: ModelQueues) -> Operation[bool]:
    """Replace `found` by `wanted`; False if another process changed it first."""
    return Operation("swap", QUEUES_KEY, [model, found.text, msgspec.json.encode(wanted)], bool)


def has_jobs(queue: str) -> Command[bool]:
    """Whether any job of the queue is known, also an ended one."""
    return Command(("ZCARD", f"{prefix(queue)}index"), bool)


def _read(entries: Mapping[bytes, bytes]) -> dict[str, StoredQueues]:
    return {model.decode(): StoredQueues(_QUEUES.decode(text), text) for model, text in entries.items()}

"""Where the queues of a model lie, which of them get its new jobs, and which drain; as the registry keeps it. Pure.

A queue is one partition of a model. Its number is in the ids of its jobs, so a queue stays where it is: a model that moves to
another store gets other queues, and those that it had drain.
"""

# D109: docs/design/store.md

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

import msgspec

from penstock.broker.store.ops import Command, Operation, prefix
from penstock.broker.store.registry import REGISTRY
from penstock.job import queue_of
from penstock.model_spec import ModelInfo

QUEUES_KEY = f"{REGISTRY}queues"


class MoveStep(Enum):
    """What a move does next. Whoever repeats it finds the same step, so a move that was broken off goes on."""

    PREPARE = "prepare"  # new queues in the other store, of which workers learn before jobs go there
    SWITCH = "switch"  # the queues of before take no new jobs any more; those go to the new ones
    DRAIN = "drain"  # their jobs run, and their results are read, until there are none


@dataclass(frozen=True, slots=True)
class ModelQueues:
    """The queues of one model by number, as far as their places were noted. New jobs go to `first` and those behind it, as many
    as the model has partitions; those before `since` are gone. `stores`: where each lies. `closed`: when those between the two
    were closed, by the main store's clock.
    """

    first: int = 0
    since: int = 0
    stores: Mapping[int, str] = field(default_factory=dict)
    closed: Mapping[int, float] = field(default_factory=dict)

    @property
    def next(self) -> int:
        """A number that no queue has had."""
        return max(self.stores, default=-1) + 1

    def homes(self, model: str) -> dict[str, str]:
        """The store of each queue, by the queue's name."""
        return {queue_of(model, number): store for number, store in self.stores.items()}

    def shown(self, info: ModelInfo) -> ModelInfo:
        """The model with the numbers of its queues."""
        return replace(info, first=self.first, since=self.since, held=max(info.held, self.next))

    def placed(self, number: int, store: str) -> ModelQueues:
        return self if number in self.stores else replace(self, stores={**self.stores, number: store})

    def step(self, store: str, partitions: int) -> MoveStep:
        """What brings all new jobs into this store next."""
        if self._is_in(store, self.first, partitions):
            return MoveStep.DRAIN
        start = self.next - partitions
        return MoveStep.SWITCH if start > self.first and self._is_in(store, start, partitions) else MoveStep.PREPARE

    @property
    def newest_store(self) -> str:
        """Where a move that is under way goes to."""
        return self.stores.get(self.next - 1, "")

    def prepared(self, store: str, partitions: int, held: int) -> ModelQueues:
        """With queues in this store, to which no job goes yet. `held`: no queue has had this number, nor a higher one."""
        start = max(self.next, held, self.first + partitions)
        return replace(self, stores={**self.stores, **dict.fromkeys(range(start, start + partitions), store)})

    def switched(self, partitions: int, now: float) -> ModelQueues:
        """New jobs go to the last queues. Those of before must be closed by then: no two stores ever take the same new key."""
        there = replace(self, first=self.next - partitions)
        return replace(there, closed={**dict.fromkeys(there.leaving, now), **self.closed})

    def closing(self, partitions: int) -> range:
        """Those that a switch closes first."""
        return range(self.since, self.next - partitions)

    @property
    def leaving(self) -> list[int]:
        """Those to which no new jobs go any more."""
        return [number for number in sorted(self.stores) if self.since <= number < self.first]

    def forgotten(self, gone: Collection[int]) -> ModelQueues:
        """Without the first of the queues, as far as they are `gone`: closed, and nothing is left of them."""
        since = self.since
        while since < self.first and (since in gone or since not in self.stores):
            since += 1
        kept = {number: store for number, store in self.stores.items() if number >= since}
        return replace(self, since=since, stores=kept, closed={one: at for one, at in self.closed.items() if one >= since})

    def _is_in(self, store: str, start: int, count: int) -> bool:
        return all(self.stores.get(number) == store for number in range(start, start + count))


_QUEUES = msgspec.json.Decoder(ModelQueues)


@dataclass(frozen=True, slots=True)
class StoredQueues:
    """A model's queues and their exact text in the registry, which a change must find unchanged; empty where none was noted."""

    queues: ModelQueues = field(default_factory=ModelQueues)
    text: bytes = b""


def left_behind(found: Mapping[str, StoredQueues], known: Collection[str], stores: Collection[str]) -> dict[str, list[str]]:
    """The models that have queues in other stores than these, by store. Nothing is kept of a model that is not `known`."""
    left: dict[str, list[str]] = {}
    for model in sorted(found.keys() & set(known)):
        queues = found[model].queues
        for store in sorted({store for number, store in queues.stores.items() if number >= queues.since} - set(stores)):
            left.setdefault(store, []).append(model)
    return left


def model_queues() -> Command[dict[str, StoredQueues]]:
    """By model, as far as their queues were placed."""
    return Command(("HGETALL", QUEUES_KEY), _read)


def swap_queues(model: str, found: StoredQueues, wanted: ModelQueues) -> Operation[bool]:
    """Replace `found` by `wanted`; False if another process changed it first."""
    return Operation("swap", QUEUES_KEY, [model, found.text, msgspec.json.encode(wanted)], bool)


def has_jobs(queue: str) -> Command[bool]:
    """Whether any job of the queue is known, also an ended one."""
    return Command(("ZCARD", f"{prefix(queue)}index"), bool)


def _read(entries: Mapping[bytes, bytes]) -> dict[str, StoredQueues]:
    return {model.decode(): StoredQueues(_QUEUES.decode(text), text) for model, text in entries.items()}

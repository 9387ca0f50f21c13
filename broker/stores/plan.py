"""Which store holds a queue: what the registry says of it, else what the settings say. Pure.

A queue lies in one store for ever, so the id of a job, which names the queue, also says where the job lies. A model that moves
gets other queues.
"""

# D109: docs/design/store.md

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.broker.store.ops import Command, Operation, prefix
from penstock.broker.store.registry import REGISTRY, StoredModel
from penstock.broker.stores.model_queues import ModelQueues, StoredQueues
from penstock.broker.stores.places import StorePlace, StorePlaces
from penstock.errors import StoreUnavailable
from penstock.job import model_of, partition_of, queue_of
from penstock.settings.store_url import MAIN_STORE, store_by_pattern

# A queue that the registry did not have is looked for there again, but not more often than this.
LOOK_AGAIN_S = 0.5
# Others may place the same model at the same moment.
PLACE_TRIES = 5
# The keys of a queue, as `prefix` makes them. No model is called `*`, which stands for the door of Celery's clients.
_QUEUE = re.compile(r"ps:\{([A-Za-z0-9][A-Za-z0-9_.-]{0,63}(?::[0-9]{1,9})?)\}:")


def queue_in(key: object) -> str:
    """The queue whose key this is; empty for keys of the registry, of runs, and for all else that the main store holds."""
    found = _QUEUE.match(key) if isinstance(key, str) and not key.startswith(REGISTRY) else None
    return found.group(1) if found else ""


def queue_of_command(command: Command[Any]) -> str:
    """Every plain command on a queue names its key first."""
    return queue_in(command.words[1]) if len(command.words) > 1 else ""


def queue_of_operation(operation: Operation[Any]) -> str:
    return queue_in(operation.key)


@dataclass(frozen=True, slots=True)
class StorePlan:
    """`patterns`: those of each store beside the main one. `records`: the queues of models as the registry has them; None
    before it was read for the first time. `homes`: the store of each queue in them.
    """

    patterns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    records: Mapping[str, StoredQueues] | None = None
    homes: Mapping[str, str] = field(default_factory=dict)

    def knows(self, queue: str) -> bool:
        """Whether the registry says where this queue lies, or that it is gone."""
        return not queue or queue in self.homes or self.is_forgotten(queue)

    def is_forgotten(self, queue: str) -> bool:
        """Whether the model was moved away from this queue, and nothing of it is kept any more."""
        return partition_of(queue) < self.found(model_of(queue)).queues.since

    def store_of(self, queue: str) -> str:
        if (home := self.homes.get(queue)) is not None:
            return home
        # The keys of a model of that name cannot be told from those of the registry.
        if not queue or prefix(queue) == REGISTRY or self.is_forgotten(queue):
            return MAIN_STORE
        return store_by_pattern(queue, self.patterns)

    def found(self, model: str) -> StoredQueues:
        return (self.records or {}).get(model, StoredQueues())

    def following(self, records: Mapping[str, StoredQueues]) -> StorePlan:
        homes = {queue: store for model, found in records.items() for queue, store in found.queues.homes(model).items()}
        return replace(self, records=records, homes=homes)

    def placed(self, queue: str, *, is_in_main: bool) -> ModelQueues:
        """The model's queues with a place for this one. `is_in_main`: it has jobs in the main store, and stays there."""
        model, number = model_of(queue), partition_of(queue)
        queues = self.found(model).queues
        # A model that was moved gets more queues where it is, whatever the settings said when it was new.
        moved = queues.stores.get(queues.first, "") if queues.first else ""
        store = MAIN_STORE if is_in_main else moved or store_by_pattern(queue, self.patterns)
        return queues.placed(number, store)

    def homes_of(self, model: str) -> tuple[str, ...]:
        """The stores that take the model's new jobs."""
        queues = self.found(model).queues
        return tuple(dict.fromkeys(store for number, store in sorted(queues.stores.items()) if number >= queues.first)) or (
            self.store_of(queue_of(model, queues.first)),
        )

    def beyond_celery(self, model: str) -> str:
        """A message becomes a job in the model's first queue of all, in the main store, or not at all."""
        home = self.homes_of(model)[0]
        return "" if home == MAIN_STORE and self.found(model).queues.first == 0 else home

    def models_in(self, store: str) -> list[str]:
        """Those of which a queue lies there, be it open or closed."""
        recorded = (self.records or {}).items()
        return [model for model, found in recorded if store in found.queues.stores.values()]

    def misplaced(self) -> dict[str, tuple[str, str]]:
        """Queues for new jobs that lie in another store than the settings say, with both, first where they lie: they were
        moved, or the settings have changed. A registry that came back empty would place them as the settings say.
        """
        found = {}
        for model, stored in (self.records or {}).items():
            for number in (one for one in stored.queues.stores if one >= stored.queues.first):
                # A moved model's queues have other numbers than those that a pattern would name.
                queue = queue_of(model, number - stored.queues.first)
                here, wanted = stored.queues.stores[number], store_by_pattern(queue, self.patterns)
                if here != wanted:
                    found[queue] = (here, wanted)
        return found


def shown(stored: StoredModel, plan: StorePlan) -> StoredModel:
    """The model's entry with the numbers of its queues; its text is the registry's."""
    return stored if stored.info is None else replace(stored, info=plan.found(stored.info.name).queues.shown(stored.info))


def named_address(places: StorePlaces, store: str, queue: str) -> StorePlace:
    """Raises `StoreUnavailable` for a store that the settings do not name."""
    found = places.all().get(store)
    if found is None:
        raise unnamed_store(store, queue)
    return found


def unknown_place(queue: str) -> StoreUnavailable:
    found = StoreUnavailable(
        f"nobody knows yet which store holds {queue}: the main store has not answered since this process started",
        hint="see `penstock doctor`",
    )
    found.store = MAIN_STORE
    return found


def unnamed_store(store: str, queue: str) -> StoreUnavailable:
    found = StoreUnavailable(
        f"{queue.partition(':')[0]} lies in the store {store!r}, which the settings of this process do not name",
        hint=f"add [stores.{store}] with its url to penstock.toml here, as the other gateways and workers have it",
    )
    found.store = store
    return found


def of_store(error: StoreUnavailable, store: str) -> StoreUnavailable:
    """The same error, which names the store."""
    named = type(error)(f"store {store!r}: {error.message}", hint=error.hint)
    named.store, named.__cause__ = store, error.__cause__
    return named

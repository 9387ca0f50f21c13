"""Where the stores are, and what opens them: a plain store where there is one, else one that sends calls to several."""

# D109: docs/design/store.md

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.errors import ConfigError, StoreUnavailable
from penstock.settings.store_url import MAIN_STORE

if TYPE_CHECKING:
    from penstock.broker.store.aio import AsyncStore
    from penstock.broker.store.sync import RedisStore
    from penstock.broker.stores.plan import StorePlan
    from penstock.settings.stores import OtherStoreSettings
    from penstock.settings.tables import Settings


@dataclass(frozen=True, slots=True)
class StorePlace:
    """`replicated`: a submit is answered once a replica has it on its disk."""

    url: str = field(repr=False)
    replicated: bool = False


@dataclass(frozen=True, slots=True)
class StorePlaces:
    """`main` holds the registry, runs and sessions, and the queues that no other store takes. `others` and `patterns` are by
    the names of the other stores, in their order in the settings.
    """

    main: StorePlace
    others: Mapping[str, StorePlace] = field(default_factory=dict)
    patterns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def all(self) -> dict[str, StorePlace]:
        """By name, the main one first."""
        return {MAIN_STORE: self.main, **self.others}


def places_of(main: StorePlace, stores: Mapping[str, OtherStoreSettings]) -> StorePlaces:
    others = {name: StorePlace(table.url, table.durability == "replicated") for name, table in stores.items()}
    return StorePlaces(main, others, {name: table.models for name, table in stores.items()})


def is_of_another(error: StoreUnavailable) -> bool:
    """Whether the store that failed is one beside the main store."""
    return error.store not in ("", MAIN_STORE)


class StoreMap:
    """Which store holds which queue, as this process knows it. Its threads share it; each opens stores of its own."""

    def __init__(self, places: StorePlaces) -> None:
        self.places = places
        self.plan: StorePlan | None = None
        if places.others:
            # Few deployments have several stores, and the others do without this import.
            from penstock.broker.stores.plan import StorePlan

            self.plan = StorePlan(places.patterns)

    @classmethod
    def of_one(cls, url: str) -> StoreMap:
        return cls(StorePlaces(StorePlace(url)))

    @classmethod
    def of(cls, settings: Settings) -> StoreMap:
        """The stores that the settings name; raises `ConfigError` if they name no main one."""
        url = settings.store.url
        if url is None:
            raise ConfigError(
                "no job store is named", hint="Set PENSTOCK_REDIS_URL (or store.url), or run `penstock up`, which starts one."
            )
        return cls(places_of(StorePlace(url, settings.store.durability == "replicated"), settings.stores))

    def open(self, *, name: str = "", is_of_main: bool = False) -> RedisStore:
        """For one thread. `name`: what the servers show of its connections. `is_of_main`: the thread works for the main store,
        and waits for another one only for a moment.
        """
        if self.plan is not None:
            from penstock.broker.stores.thread_stores import RedisStores

            return RedisStores(self, name=name, is_of_main=is_of_main)
        from penstock.broker.store.sync import RedisStore

        return RedisStore(self.places.main.url, name=name)

    def open_one(self, store: str, *, name: str = "") -> RedisStore:
        """The store of this name alone, for one thread. Empty: all of them, as `open` has it."""
        if not store or self.plan is None:
            return self.open(name=name)
        from penstock.broker.stores.thread_stores import NamedStore

        return NamedStore(self.places.all()[store].url, store, name=name)

    def open_async(self) -> AsyncStore:
        """For one event loop."""
        if self.plan is not None:
            from penstock.broker.stores.loop_stores import AsyncStores

            return AsyncStores(self)
        from penstock.broker.store.aio import AsyncStore

        return AsyncStore(self.places.main.url, replicated=self.places.main.replicated)

    def store_of(self, queue: str) -> str:
        """The name of the store that holds the queue; empty where there is only one."""
        return "" if self.plan is None else self.plan.store_of(queue)

    def beyond_celery(self, model: str) -> str:
        """The store in which the model lies, if Celery's clients, who know the main store, do not reach it; else empty."""
        return "" if self.plan is None else self.plan.beyond_celery(model)

    def urls_of(self, queues: Iterable[str]) -> list[str]:
        """Where these queues lie, each place once; all places, as far as it is not known."""
        if self.plan is None or self.plan.records is None:
            return [place.url for place in self.places.all().values()]
        return list(dict.fromkeys(map(self.url_of, queues)))

    def url_of(self, queue: str) -> str:
        """Raises `StoreUnavailable` for a queue in a store that the settings do not name."""
        if self.plan is None:
            return self.places.main.url
        from penstock.broker.stores.plan import named_address

        return named_address(self.places, self.plan.store_of(queue), queue).url

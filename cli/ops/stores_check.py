"""The part of `penstock doctor` for several stores: each of them, that they differ, and which models lie where."""

from __future__ import annotations

from contextlib import closing

from penstock.broker.store.sync import RedisStore
from penstock.broker.stores.model_queues import model_queues
from penstock.broker.stores.places import StorePlace, StorePlaces, places_of
from penstock.broker.stores.plan import StorePlan
from penstock.cli.ops.checks import Finding, Level
from penstock.cli.ops.store_check import reachable
from penstock.errors import StoreUnavailable
from penstock.settings.stores import idle_patterns
from penstock.settings.tables import Settings


def others(settings: Settings) -> list[Finding]:
    """One finding for each store beside the main one."""
    return [reachable(table.url, table, f"stores.{name}") for name, table in settings.stores.items()]


def places(settings: Settings, url: str | None) -> list[Finding]:
    """Which models lie in which store, and what about it may surprise. `url`: that of the main store, if it runs."""
    idle = idle_patterns(settings.stores, settings.served_names)
    if url is None:
        return [_judged("no model has been placed yet", idle)]
    chosen = places_of(StorePlace(url), settings.stores)
    try:
        return [_twice(chosen) or _judged(*_found(chosen, idle))]
    except StoreUnavailable as away:
        return [Finding("places", Level.WARN, f"not known while a store is away: {away.message}")]


def _twice(chosen: StorePlaces) -> Finding | None:
    """Settings tell two addresses apart, and only the stores themselves know whether they are one."""
    names: dict[str, str] = {}
    for store, place in chosen.all().items():
        with closing(RedisStore(place.url, name="penstock-doctor")) as opened:
            first = names.setdefault(opened.identity(), store)
        if first != store:
            text = f"{store!r} and {first!r} are the same store under two addresses: its jobs would be counted twice"
            return Finding("places", Level.FAIL, text, f"correct stores.{store}.url")
    return None


def _found(chosen: StorePlaces, faults: list[str]) -> tuple[str, list[str]]:
    with closing(RedisStore(chosen.main.url, name="penstock-doctor")) as main:
        records = main.send(model_queues())
    plan = StorePlan(chosen.patterns).following(records)
    text = "; ".join(f"{store}: {', '.join(sorted(plan.models_in(store))) or 'no model'}" for store in chosen.all())
    moved = [f"{queue} lies in {here!r}, and the settings say {said!r}" for queue, (here, said) in plan.misplaced().items()]
    return text, [*faults, *moved]


def _judged(text: str, faults: list[str]) -> Finding:
    if not faults:
        return Finding("places", Level.OK, text)
    hint = "have `models` of [stores.NAME] say where the models lie"
    return Finding("places", Level.WARN, "; ".join([text, *faults]), hint)

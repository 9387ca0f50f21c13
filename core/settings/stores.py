"""Stores beside the main one: `[stores.NAME]` names a Redis or Valkey, and the models whose jobs lie there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from penstock.settings.keys import Table
from penstock.settings.store_url import MAIN_STORE, StoreRequirement, parse_store_url, store_by_pattern, store_url

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
# What a queue's name has, and what a pattern of fnmatch has beside it.
_PATTERN = re.compile(r"[A-Za-z0-9_.:*?\[\]!-]{1,100}")


def _store_name(name: str) -> str:
    if name == MAIN_STORE:
        raise ValueError(f"{MAIN_STORE!r} is the name of the store of [store]; choose another")
    if not _NAME.fullmatch(name):
        raise ValueError("stores are named by 1 to 32 lower-case letters, digits, '_' or '-', and start with a letter or digit")
    return name


def _pattern(text: str) -> str:
    if not _PATTERN.fullmatch(text):
        raise ValueError("write the name of a model, or a pattern such as vision-* or *")
    return text


StoreName = Annotated[str, AfterValidator(_store_name)]
QueuePattern = Annotated[str, AfterValidator(_pattern)]


class OtherStoreSettings(Table):
    """One `[stores.NAME]` table. `models`: names of models, or patterns with `*`, `?` and `[...]`. A new model's jobs lie in
    the first store, in the order of the file, of which a pattern matches; without any, in the main store. `require` and
    `durability` are as in `[store]`.
    """

    url: Annotated[str, AfterValidator(store_url)] = Field(repr=False)
    models: tuple[QueuePattern, ...] = ()
    require: StoreRequirement = StoreRequirement.NO_EVICTION
    durability: Literal["local", "replicated"] = "local"


Stores = dict[StoreName, OtherStoreSettings]


def stores_faults(main_url: str | None, stores: Mapping[str, OtherStoreSettings]) -> list[str]:
    """One sentence for each pair of names that lead to the same store: its jobs would be swept and counted twice."""
    seen: dict[tuple[object, ...], str] = {_address(main_url): "store.url"} if main_url else {}
    faults = []
    for name, table in stores.items():
        address, setting = _address(table.url), f"stores.{name}.url"
        if address in seen:
            faults.append(
                f"{setting}: is the same store as {seen[address]}; give each store a server, or a database, of its own"
            )
        seen.setdefault(address, setting)
    return faults


def _address(url: str) -> tuple[object, ...]:
    """What tells one store from another: neither the user and password, nor whether it speaks TLS."""
    parts = parse_store_url(url)
    hosts = tuple((host.lower(), port) for host, port in parts.hosts)
    return hosts, parts.path, parts.service, parts.database


def idle_patterns(stores: Mapping[str, OtherStoreSettings], models: Iterable[str]) -> list[str]:
    """One sentence for each pattern that decides for none of these models."""
    patterns = {name: table.models for name, table in stores.items()}
    names = list(models)
    found = []
    for store, wanted in patterns.items():
        for pattern in wanted:
            matched = [name for name in names if fnmatchcase(name, pattern) or fnmatchcase(name, pattern.partition(":")[0])]
            if not matched:
                found.append(f"stores.{store}.models: {pattern!r} matches no model of these settings")
            elif all(":" not in pattern and store_by_pattern(name, patterns) != store for name in matched):
                first = store_by_pattern(matched[0], patterns)
                found.append(
                    f"stores.{store}.models: what {pattern!r} matches lies in {first!r} already, which stands before it"
                )
    return found

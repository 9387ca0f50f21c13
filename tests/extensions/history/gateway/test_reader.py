"""Many who read histories at once, of many models: how much is under way, and what they share."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.ops import Operation
from penstock.errors import StoreUnavailable
from penstock.extensions.history.gateway.reader import HistoryReader
from penstock.extensions.history.gateway.window import HistoryRange
from penstock.extensions.history.store import ACCEPTED, ReadHistory
from penstock.gateway.models.registry import ModelRegistry
from penstock.model_spec import ModelInfo, VersionInfo

MODELS = 200
NOW = 1_795_475_785.0
LAST = HistoryRange(300)


class CountingStore:
    """A store with one accepted job per model, in the step that is open. It counts its calls, and may be away."""

    def __init__(self) -> None:
        self.calls = self.open = self.most_open = 0
        self.is_away = False

    async def run(self, operation: Operation[Any]) -> ReadHistory:
        self.calls, self.open = self.calls + 1, self.open + 1
        self.most_open = max(self.most_open, self.open)
        await asyncio.sleep(0)
        self.open -= 1
        if self.is_away:
            raise StoreUnavailable("away")
        step = b"\x96" + b"\xce" + (1_795_475_780).to_bytes(4, "big") + bytes([0x81, ACCEPTED, 1]) + b"\x80\x80\x80\x00"
        return ReadHistory(NOW, [step])


def reader(store: CountingStore, models: int = MODELS) -> HistoryReader:
    names = [f"m{number}" for number in range(models)]
    entries = {name: SimpleNamespace(name=name, info=ModelInfo(name, versions={"1": VersionInfo()})) for name in names}
    return HistoryReader(cast("AsyncStore", store), cast("ModelRegistry", SimpleNamespace(models=entries)))


async def test_the_history_of_many_models_is_read_a_few_at_a_time() -> None:
    store = CountingStore()
    found = await reader(store).read("", LAST)
    assert (store.calls, store.most_open) == (MODELS, 32)
    last = found.steps[-1]
    assert last is not None
    assert last.sums[ACCEPTED] == MODELS


async def test_those_who_ask_for_the_same_at_once_share_one_read_though_the_first_leaves() -> None:
    store = CountingStore()
    shared = reader(store, 3)
    first, *others = (asyncio.create_task(shared.read("", LAST)) for _ in range(10))
    await asyncio.sleep(0)
    first.cancel()
    found = await asyncio.gather(*others)
    assert store.calls == 3
    assert all(one is found[0] for one in found)


async def test_a_failure_is_not_shared_with_those_who_come_later() -> None:
    store = CountingStore()
    shared = reader(store, 1)
    store.is_away = True
    with pytest.raises(StoreUnavailable):
        await shared.read("", LAST)
    store.is_away = False
    assert (await shared.read("", LAST)).away == []

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

import pytest

from penstock.broker.backlog import SlotCapacity
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.registry import StoredModel, StoredRollout
from penstock.gateway.models import registry as registry_module
from penstock.gateway.models.finding import merged
from penstock.gateway.models.registry import ModelRegistry, VersionEntry
from penstock.gateway.models.slots import why_unserved
from penstock.model_spec import BatchPolicy, Limits, ModelInfo, SlotInfo, VersionInfo, WorkerInfo

DECLARED = ModelInfo("m", limits=Limits(max_queue_depth=7), versions={"1": None})
LOADED = VersionInfo(description="squares")
FIRST = VersionEntry("1", None, None, SlotCapacity())


def test_limits_are_the_gateways_own_and_versions_what_the_workers_loaded() -> None:
    stored = ModelInfo("m", limits=Limits(max_queue_depth=9), versions={"1": LOADED, "2": LOADED})
    found = merged(DECLARED, stored)
    assert (found.limits.max_queue_depth, found.versions) == (7, {"1": LOADED, "2": LOADED})


def test_the_batch_policy_is_the_one_in_force_once_a_worker_has_loaded_the_model() -> None:
    # Regression: a handler that declares max_batch_size = 4 was listed by `penstock models` with the default of 8.
    policy = BatchPolicy(max_batch_size=4)
    assert merged(DECLARED, ModelInfo("m", policy=policy, versions={"1": LOADED})).policy == policy
    assert merged(DECLARED, ModelInfo("m", policy=policy, versions={"1": None})).policy == DECLARED.policy


def test_new_jobs_go_to_as_many_partitions_as_the_store_says_whatever_the_gateways_settings_are() -> None:
    # Regression: two gateways with other settings placed one key in two partitions.
    def known(declared: int, stored: int, held: int) -> tuple[int, int]:
        found = merged(ModelInfo("m", partitions=declared, held=declared), ModelInfo("m", partitions=stored, held=held))
        return found.partitions, found.held

    assert known(1, 1, 1) == (1, 1)
    assert known(1, 4, 4) == known(2, 4, 4) == (4, 4)
    assert known(4, 2, 2) == (2, 2)
    assert known(4, 2, 8) == (2, 8)


def test_a_model_known_to_one_side_only_is_taken_as_it_is() -> None:
    assert merged(None, DECLARED) == DECLARED
    assert merged(DECLARED, None) == replace(DECLARED, placing=-1), "no key is placed by settings"


@pytest.mark.parametrize(
    ("slots", "why"),
    [
        ([], "no live worker serves it"),
        ([SlotInfo("m", "2", "ready"), SlotInfo("other", "1", "loading")], "no live worker serves it"),
        ([SlotInfo("m", "1", "loading")], "still loading"),
        ([SlotInfo("m", "1", "loading"), SlotInfo("m", "1", "failed", error="no weights")], "could not be loaded: no weights"),
        ([SlotInfo("m", "1", "failed")], "could not be loaded: the log of its worker says why"),
    ],
)
def test_a_version_without_a_ready_slot_is_told_to_load_to_have_failed_or_to_have_none(slots: list[SlotInfo], why: str) -> None:
    assert why_unserved([WorkerInfo("w", "here", 1, 0.0, tuple(slots))], "m", FIRST) == why


def test_a_long_load_error_keeps_both_ends_and_shows_the_cut() -> None:
    """Regression: the error was cut at 200 characters without a mark, although its advice stands at its end."""
    error = f"torch cannot load net.pt2: {'and so on ' * 100}; compile it again with this version of torch"
    why = why_unserved([WorkerInfo("w", "here", 1, 0.0, (SlotInfo("m", "1", "failed", error=error),))], "m", FIRST)
    assert why.startswith("could not be loaded: torch cannot load net.pt2: and so on")
    assert " … " in why
    assert why.endswith("; compile it again with this version of torch")
    assert len(why) < 650
    # This error is just short enough to stay whole.
    whole = WorkerInfo("w", "here", 1, 0.0, (SlotInfo("m", "1", "failed", error="x" * 600),))
    assert why_unserved([whole], "m", FIRST) == f"could not be loaded: {'x' * 600}"


class SlowFirstStore:
    """Knows one model more at each read; the answer to the first read arrives last."""

    def __init__(self) -> None:
        self.reads = 0
        self.asked, self.first = asyncio.Event(), asyncio.Event()

    async def models(self) -> dict[str, StoredModel]:
        self.reads += 1
        known = {f"m{number}": StoredModel(ModelInfo(f"m{number}", versions={"1": None})) for number in range(self.reads)}
        self.asked.set()
        if self.reads == 1:
            await self.first.wait()
        return known

    async def workers(self) -> list[WorkerInfo]:
        return []

    async def rollouts(self) -> dict[str, StoredRollout]:
        return {}


async def test_a_refresh_that_began_before_another_and_ends_after_it_changes_nothing() -> None:
    # A former bug: on a busy machine, a gateway that had just loaded and listed a model answered 404 for it.
    store = SlowFirstStore()
    registry = ModelRegistry(cast("AsyncStore", store), [])
    late = asyncio.create_task(registry.refresh())
    await store.asked.wait()
    await registry.refresh()
    assert sorted(registry.models) == ["m0", "m1"]
    store.first.set()
    await late
    assert sorted(registry.models) == ["m0", "m1"]


class BrokenOnceStore(SlowFirstStore):
    """Its workers cannot be read at the first refresh in the background."""

    def __init__(self) -> None:
        super().__init__()
        self.first.set()
        self.refreshes, self.went_on = 0, asyncio.Event()

    async def workers(self) -> list[WorkerInfo]:
        self.refreshes += 1
        if self.refreshes == 2:
            raise ValueError("an entry of a worker makes no sense")
        if self.refreshes == 4:
            self.went_on.set()
        return [WorkerInfo("w", "here", 1, 0.0)] if self.refreshes > 2 else []


async def test_an_entry_that_cannot_be_read_does_not_end_the_refreshes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the task ended, and from then on this gateway saw no worker come or go."""
    monkeypatch.setattr(registry_module, "REFRESH_S", 0.001)
    store = BrokenOnceStore()
    registry = ModelRegistry(cast("AsyncStore", store), [])
    await registry.start()
    await asyncio.wait_for(store.went_on.wait(), 30.0)
    assert [worker.name for worker in registry.workers] == ["w"]
    await registry.close()


class MonthOfDeployments:
    """A registry that has another model, of another version, at each look."""

    def __init__(self) -> None:
        self.looks = 0

    async def models(self) -> dict[str, StoredModel]:
        self.looks += 1
        loaded = VersionInfo(input_schema={"type": "integer"})
        return {f"m{self.looks}": StoredModel(ModelInfo(f"m{self.looks}", "v", versions={"v": loaded}))}

    async def workers(self) -> list[WorkerInfo]:
        return []

    async def rollouts(self) -> dict[str, StoredRollout]:
        return {}


def test_of_models_that_come_and_go_a_gateway_keeps_nothing() -> None:
    # Regression: the compiled schema of every version that there ever was stayed in memory.
    async def looks() -> None:
        registry = ModelRegistry(cast("AsyncStore", MonthOfDeployments()), [])
        for _ in range(50):
            await registry.refresh()
        assert set(registry.models) == {"m50"}
        assert set(registry._validators._known) == set(registry._starts._seen) == {("m50", "v")}
        assert set(registry._backlogs) == {"m50"}

    asyncio.run(looks())

"""What operators may change at run time, on a real store: refusals, waits, and names that become free again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import replace

import msgspec
import pytest

from penstock.broker.records import BatchStamp, ClaimRequest, Ending, NewJob
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.registry import StoredRollout
from penstock.broker.store.sync import RedisStore
from penstock.errors import Conflict, InvalidInput, NotFound
from penstock.gateway.models.changes import ModelChanges
from penstock.gateway.models.registry import ModelRegistry
from penstock.gateway.models.slots import SlotsState
from penstock.gateway.models.waits import await_gone, await_slots
from penstock.job import JobState, Payload, new_job_id
from penstock.model_spec import ModelInfo, SlotInfo, WorkerInfo
from penstock.rollout import SETTLED_AFTER_S, Rollout

SQUARE = {"version": "1", "source": "square.py"}


class Operator:
    """A gateway's changes, and a worker that the test announces by hand."""

    def __init__(self, store: RedisStore, registry: ModelRegistry, changes: ModelChanges, model: str) -> None:
        self.store = store
        self.registry = registry
        self.changes = changes
        self.model = model
        self.worker = WorkerInfo(f"w-{model}", "here", 1, 0.0, wanted={})

    async def announce(self, *states: str, version: str = "1", wanted: int | None = None, is_behind: bool = False) -> None:
        """The worker has slots in these states, and has taken up the present rollout."""
        slots = tuple(SlotInfo(self.model, version, state, error="no weights" * (state == "failed")) for state in states)
        mark = self.store.stored_rollouts().get(self.model, StoredRollout()).mark
        self.worker = replace(
            self.worker,
            slots=slots,
            wanted={self.model: {version: len(states) if wanted is None else wanted}},
            followed={self.model: "another" if is_behind else mark},
        )
        self.store.announce_worker(self.worker, ttl_s=600.0)
        await self.registry.refresh()

    def rollout(self) -> Rollout:
        return self.store.rollouts().get(self.model, Rollout())

    def removed_earlier(self) -> None:
        """As if what was removed had been removed long ago."""
        found = self.store.stored_rollouts()[self.model]
        past = {version: at - SETTLED_AFTER_S for version, at in found.rollout.removed.items()}
        assert self.store.swap_rollout(self.model, found, replace(found.rollout, removed=past))

    def run_one(self) -> None:
        [job] = self.store.claim(ClaimRequest(self.model, "1", "w.0", "n1", 1)).jobs
        ending = Ending(job.id, job.token, JobState.SUCCEEDED, job.input)
        self.store.finish([ending], worker="w.0", stamp=BatchStamp("b", 1, "idle"))


@pytest.fixture
def sync_store(fresh_redis: str) -> Iterator[RedisStore]:
    with closing(RedisStore(fresh_redis)) as store:
        yield store


@pytest.fixture
async def operator(fresh_redis: str, sync_store: RedisStore, model: str) -> AsyncIterator[Operator]:
    """An operator at a gateway whose settings name no model."""
    store = AsyncStore(fresh_redis)
    await store.start()
    registry = ModelRegistry(store, [])
    yield Operator(sync_store, registry, ModelChanges(store, registry), model)
    await store.close()


@pytest.fixture
async def declared(fresh_redis: str, sync_store: RedisStore, model: str) -> AsyncIterator[Operator]:
    """An operator at a gateway whose settings name version 1 of the model."""
    store = AsyncStore(fresh_redis)
    await store.start()
    registry = ModelRegistry(store, [ModelInfo(model, versions={"1": None})])
    sync_store.announce_model(ModelInfo(model, versions={"1": None}))
    yield Operator(sync_store, registry, ModelChanges(store, registry), model)
    await store.close()


async def test_a_new_model_comes_into_being_with_the_limits_of_its_table(operator: Operator) -> None:
    await operator.changes.load_version(operator.model, {**SQUARE, "max_queue_depth": 7, "max_batch_size": 3})
    info = operator.registry.models[operator.model].info
    assert (info.limits.max_queue_depth, info.policy.max_batch_size, info.default_version) == (7, 3, "1")
    await operator.changes.load_version(operator.model, {"version": "2", "source": "b.py"})
    entry = operator.registry.models[operator.model]
    assert (sorted(entry.versions), entry.default.name) == (["1", "2"], "1"), "a further version is not the default"


async def test_a_version_may_be_loaded_without_slots(operator: Operator) -> None:
    await operator.changes.load_version(operator.model, {**SQUARE, "slots": 0})
    assert operator.rollout().scale == {"1": 0}
    assert "slots" not in operator.rollout().added["1"]
    version = operator.registry.models[operator.model].default
    assert (version.scale, version.is_off) == (0, True)


async def test_the_release_before_reads_and_writes_the_slots_of_a_version_in_the_store(operator: Operator) -> None:
    own = {"source": "square.py", "slots": 2, "slots_per_device": 3, "min_slots": 1, "max_slots": 4, "threads": 1}
    kept = {"source": "square.py", "workers": 2, "workers_per_device": 3, "min_workers": 1, "max_workers": 4, "threads": 1}
    await operator.changes.load_version(operator.model, {**own, "version": "1"})
    assert operator.rollout().added == {"1": own}
    text = operator.store.stored_rollouts()[operator.model].text
    assert msgspec.json.decode(text)["added"] == {"1": kept}


async def test_nothing_is_loaded_where_no_worker_has_a_folder_of_models(operator: Operator) -> None:
    operator.store.announce_worker(WorkerInfo("bare", "here", 1, 0.0, wanted={}, loads=False), ttl_s=600.0)
    with pytest.raises(Conflict, match=r"none of the 1 live workers has a worker\.model_dir"):
        await operator.changes.load_version(operator.model, dict(SQUARE))
    assert operator.rollout() == Rollout()
    await operator.announce()
    await operator.changes.load_version(operator.model, dict(SQUARE))


@pytest.mark.parametrize("slots", [-1, 2_000, "two", True, None, 1.5])
async def test_what_is_no_number_of_slots_changes_nothing(declared: Operator, slots: object) -> None:
    with pytest.raises(InvalidInput, match="whole number of slots"):
        await declared.changes.scale(declared.model, slots)
    assert declared.rollout() == Rollout()


async def test_the_default_version_is_scaled_if_none_is_named(declared: Operator) -> None:
    assert await declared.changes.scale(declared.model, 2) == "1"
    assert declared.registry.models[declared.model].default.scale == 2
    with pytest.raises(NotFound, match="no version '9'"):
        await declared.changes.scale(declared.model, 2, version="9")
    with pytest.raises(NotFound, match="no model is named"):
        await declared.changes.scale("nobody", 2)


async def test_a_version_that_is_off_may_become_the_default_and_one_that_merely_loads_may_not(operator: Operator) -> None:
    changes, model = operator.changes, operator.model
    await changes.load_version(model, dict(SQUARE))
    await changes.load_version(model, {"version": "2", "source": "b.py"})
    with pytest.raises(Conflict, match="not ready"):
        await changes.switch_version(model, "2")
    await changes.scale(model, 0, version="2")
    await changes.switch_version(model, "2")
    assert operator.registry.models[model].default.name == "2"


async def test_a_wait_ends_when_the_slots_are_as_wanted_or_cannot_be_and_says_which(declared: Operator) -> None:
    registry, model = declared.registry, declared.model
    await declared.changes.scale(model, 2)
    await declared.announce("ready", "ready", is_behind=True)
    assert (await await_slots(registry, model, timeout_s=0.0)).state is SlotsState.PENDING
    await declared.announce("ready", "loading")
    assert (await await_slots(registry, model, timeout_s=0.0)).state is SlotsState.PENDING
    await declared.announce("ready", "ready")
    assert (await await_slots(registry, model, timeout_s=60.0)).state is SlotsState.REACHED
    await declared.announce("ready", "failed")
    slots = await await_slots(registry, model, timeout_s=60.0)
    assert (slots.state, slots.failed, slots.ready) == (SlotsState.FAILED, ("no weights",), 1)
    with pytest.raises(NotFound):
        await await_slots(registry, "nobody", timeout_s=60.0)


async def test_a_model_that_is_unloaded_is_unknown_at_once_and_gone_when_its_last_job_has_ended(operator: Operator) -> None:
    changes, model = operator.changes, operator.model
    await operator.announce("ready")
    await changes.load_version(model, dict(SQUARE))
    await operator.announce("ready")
    operator.store.submit([NewJob(new_job_id(model), "1", Payload("application/json", b"1"))])
    await changes.unload_model(model)
    with pytest.raises(NotFound):
        await operator.registry.find(model)
    left = (await changes.view(model))["unloading"]["1"]
    assert (left["waiting"], left["slots"], left["gone"]) == (1, 1, False)
    operator.run_one()
    assert not await await_gone(changes, model, timeout_s=0.0)
    with pytest.raises(Conflict, match="may still end its jobs"):
        await changes.load_version(model, dict(SQUARE))


async def test_a_version_of_the_settings_can_be_loaded_anew_once_nothing_is_left_of_it(declared: Operator) -> None:
    changes, model = declared.changes, declared.model
    await declared.announce("ready")
    await changes.unload_model(model)
    await declared.announce(wanted=0)
    assert not await await_gone(changes, model, timeout_s=0.0), "a gateway may not know yet"
    declared.removed_earlier()
    assert not await await_gone(changes, model, timeout_s=0.0), "the worker has not taken that up"
    await declared.announce("ready", wanted=0)
    assert not await await_gone(changes, model, timeout_s=0.0), "its slot is still there"
    await declared.announce(wanted=0)
    assert await await_gone(changes, model, timeout_s=60.0)
    await changes.load_version(model, dict(SQUARE))
    assert operator_sees(declared) == ["1"]
    await changes.reset(model)
    assert operator_sees(declared) == ["1"]


def operator_sees(operator: Operator) -> list[str]:
    return sorted(operator.registry.models[operator.model].versions)


async def test_nothing_is_left_of_what_never_was(operator: Operator) -> None:
    assert await await_gone(operator.changes, "nobody", timeout_s=0.0)
    with pytest.raises(NotFound):
        await operator.changes.view("nobody")


async def test_a_policy_for_a_version_that_somebody_takes_away_meanwhile_is_a_conflict(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a fault of ours: the version was looked up before the change, and missing in the rollout that is changed."""
    await operator.changes.load_version(operator.model, SQUARE)
    await operator.announce("ready")
    refresh = operator.registry.refresh

    async def refresh_and_lose() -> None:
        await refresh()
        found = operator.store.stored_rollouts()[operator.model]
        operator.store.swap_rollout(operator.model, found, replace(found.rollout, added={}, default_version=""))

    monkeypatch.setattr(operator.registry, "refresh", refresh_and_lose)
    with pytest.raises(Conflict, match="others are changing"):
        await operator.changes.batch(operator.model, "1", {"max_batch_size": 4})

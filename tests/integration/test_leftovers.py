"""What a reset leaves behind, on a real store: a version is forgotten once unneeded, whoever is killed or slow meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import redis

from penstock.broker.records import BatchStamp, ClaimRequest, Ending, NewJob, Unfinished
from penstock.broker.run_contract import RunChange
from penstock.broker.store.registry import KeptTimes, StoredRollout, wish_profile
from penstock.broker.store.runs import RunStore
from penstock.broker.store.sync import RedisStore
from penstock.job import Call, JobId, JobState, Payload, new_job_id
from penstock.model_spec import ModelInfo, ProfileWish, SlotInfo, VersionInfo, WorkerInfo
from penstock.rollout import FORGOTTEN_AFTER_S, SETTLED_AFTER_S, Rollout
from penstock.run import RunSpec, RunState
from penstock.workers.fleet import forgotten_versions
from penstock.workers.fleet.announce import merged
from tests.contract.model_queue import STAMP

LATE = 100.0 + SETTLED_AFTER_S
KNOWN = ModelInfo("m", "1", versions={"1": VersionInfo(), "20": VersionInfo()})


@pytest.fixture
def store(fresh_redis: str) -> Iterator[RedisStore]:
    """Yield a store where model m of one worker, declared with version 1, was given version 20 and then reset at 100.0."""
    with closing(RedisStore(fresh_redis)) as store:
        store.announce_model(KNOWN)
        store.announce_worker(WorkerInfo("w", "here", 1, 0.0, declared={"m": ("1",)}), ttl_s=600.0)
        rollout = Rollout().load("20", {"source": "x.py"}).reset(KNOWN.versions, {"1"}, 100.0)
        assert store.swap_rollout("m", StoredRollout(), rollout)
        yield store


def versions(store: RedisStore) -> list[str]:
    return [version for info in store.models() for version in info.versions]


def submit(store: RedisStore, *, owner: str = "", call: Call = Call.PREDICT) -> JobId:
    job = NewJob(new_job_id("m"), "20", Payload("application/json", b"1"), owner=owner, call=call)
    store.submit([job])
    return job.id


def run_one(store: RedisStore) -> None:
    [job] = store.claim(ClaimRequest("m", "20", "w.0", os.urandom(6).hex(), 1)).jobs
    store.finish([Ending(job.id, job.token, JobState.SUCCEEDED, job.input)], worker="w.0", stamp=BatchStamp("b", 1, "idle"))


def test_a_version_that_nothing_needs_is_forgotten_by_registry_and_rollout(store: RedisStore) -> None:
    forgotten_versions.forget(store, now=LATE - 0.1)
    assert (versions(store), list(store.rollouts())) == (["1", "20"], ["m"])
    forgotten_versions.forget(store, now=LATE)
    assert (versions(store), store.rollouts()) == (["1"], {})
    assert not forgotten_versions.may_exist(store.models(), store.rollouts().values(), now=store.now())


def test_a_version_that_was_unloaded_without_a_reset_is_forgotten_after_a_while(store: RedisStore) -> None:
    # Regression: it stayed in the rollout, and every beat of every worker asked the store about it.
    unloaded = Rollout().load("20", {"source": "x.py"}).unload("20", 100.0)
    assert store.swap_rollout("m", store.stored_rollouts()["m"], unloaded)
    after = 100.0 + FORGOTTEN_AFTER_S
    assert not forgotten_versions.may_exist(store.models(), [unloaded], now=after - 0.1)
    forgotten_versions.forget(store, now=after - 0.1)
    assert store.rollouts() == {"m": unloaded}
    assert forgotten_versions.may_exist(store.models(), [unloaded], now=after)
    forgotten_versions.forget(store, now=after)
    assert (versions(store), store.rollouts()) == (["1"], {})


def test_a_version_is_remembered_until_its_last_job_has_ended(store: RedisStore) -> None:
    submit(store)
    forgotten_versions.forget(store, now=LATE)
    assert "20" in store.rollouts()["m"].added
    [job] = store.claim(ClaimRequest("m", "20", "w.0", "n1", 1)).jobs
    # A leased job can still return to the queue, and then needs a worker that knows where the code lies.
    forgotten_versions.forget(store, now=LATE)
    assert "20" in store.rollouts()["m"].added
    store.finish([Ending(job.id, job.token, JobState.SUCCEEDED, job.input)], worker="w.0", stamp=BatchStamp("b", 1, "idle"))
    forgotten_versions.forget(store, now=LATE)
    assert store.rollouts() == {}


@pytest.mark.parametrize(("owner", "call"), [("alice", Call.PREDICT), ("", Call.SHARD), ("alice", Call.SHARD)])
def test_a_job_of_an_owner_and_a_shard_wait_for_their_version_as_any_job_does(
    store: RedisStore, owner: str, call: Call
) -> None:
    # Jobs of an owner stand in a line of that owner, which once was not counted: a version was let go while jobs waited for it.
    submit(store, owner=owner, call=call)
    assert store.unfinished("m", "20") == Unfinished(waiting=1, running=0)
    assert store.unfinished("m", "1") == Unfinished(waiting=0, running=0)


def test_a_version_that_some_slot_still_has_is_remembered(store: RedisStore) -> None:
    # A worker that is slow to follow could announce the version once more.
    store.announce_worker(WorkerInfo("slow", "there", 2, 0.0, (SlotInfo("m", "20", "loading"),)), ttl_s=600.0)
    forgotten_versions.forget(store, now=LATE)
    assert (versions(store), list(store.rollouts())) == (["1", "20"], ["m"])


def test_a_version_is_remembered_while_a_run_over_files_is_driven_with_it(store: RedisStore) -> None:
    # Between two windows none of the run's shards waits; without the version the next window would find nobody to run it.
    runs = RunStore(store)
    runs.create("r", RunSpec(model="m", input="in.jsonl", output="out.jsonl"))
    runs.take("r", "driver", lease_s=60.0)
    forgotten_versions.forget(store, now=LATE)
    assert list(store.rollouts()) == ["m"], "its version is not told yet"
    runs.update("r", "driver", RunChange(state=RunState.RUNNING, version="20"), lease_s=60.0)
    forgotten_versions.forget(store, now=LATE)
    assert list(store.rollouts()) == ["m"]
    runs.update("r", "driver", RunChange(state=RunState.COMPLETED), lease_s=0.0)
    forgotten_versions.forget(store, now=LATE)
    assert store.rollouts() == {}


def test_a_worker_killed_between_registry_and_rollout_leaves_a_version_that_the_next_one_forgets(store: RedisStore) -> None:
    store.announce_model(ModelInfo("m", "1", versions={"1": VersionInfo()}))
    forgotten_versions.forget(store, now=LATE)
    assert (versions(store), store.rollouts()) == (["1"], {})


def test_an_announcement_begun_before_a_version_was_forgotten_does_not_bring_it_back(store: RedisStore) -> None:
    found = store.stored_models()["m"]
    forgotten_versions.forget(store, now=LATE)
    stale = merged(ModelInfo("m", "1", versions={"1": None}), {"1": VersionInfo()}, found.info)
    assert not store.swap_model("m", found, stale)
    assert versions(store) == ["1"]


def test_a_version_that_settings_name_after_all_is_given_back_to_them(store: RedisStore) -> None:
    submit(store)
    store.announce_worker(WorkerInfo("new", "there", 2, 0.0, declared={"m": ("1", "20")}), ttl_s=600.0)
    forgotten_versions.forget(store, now=100.0)
    assert (versions(store), store.rollouts()) == (["1", "20"], {})


def test_a_model_without_a_version_stays_known_to_sweepers_and_collectors_until_its_last_result_is_collected(
    store: RedisStore,
) -> None:
    # Such a version once was forgotten too early: nobody collected its results, and their files belonged to no job.
    store.withdraw_worker("w")
    store.announce_model(ModelInfo("m", "20", versions={"20": VersionInfo()}))
    job = submit(store)
    run_one(store)
    forgotten_versions.forget(store, now=LATE)
    forgotten_versions.forget(store, now=LATE)
    assert (store.rollouts(), versions(store), store.known([job.serial])) == ({}, [], {job.serial})
    assert forgotten_versions.may_exist(store.models(), [], now=store.now())
    assert store.forget([job]) == 1
    forgotten_versions.forget(store, now=LATE)
    assert store.models() == []


# --- late submits: regressions of jobs that were accepted for what nobody looked at any more ----------------------------------


def late(store: RedisStore, *, version: str = "20", partition: int = 0) -> str:
    """The status of a submit whose gateway stood still since it read the registry."""
    [answer] = store.submit([NewJob(new_job_id("m", partition), version, Payload("application/json", b"1"))])
    return answer.status.value


def test_a_late_submit_to_a_forgotten_version_is_refused(store: RedisStore) -> None:
    # Regression: it was answered as accepted, and the job waited for a version that no worker had.
    forgotten_versions.forget(store, now=LATE)
    assert late(store) == "retired"
    assert late(store, version="1") == "created"


def test_a_late_submit_to_a_forgotten_model_is_refused(store: RedisStore) -> None:
    # Regression: nobody swept the queue, so the job waited for ever.
    store.withdraw_worker("w")
    store.announce_model(ModelInfo("m", "20", versions={"20": VersionInfo()}))
    forgotten_versions.forget(store, now=LATE)
    forgotten_versions.forget(store, now=LATE)
    assert store.models() == []
    assert (late(store), late(store, version="never known")) == ("retired", "retired")


def test_a_late_submit_to_a_partition_that_is_no_longer_swept_is_refused(store: RedisStore) -> None:
    # Regression: nobody swept the queue, so the job waited for ever.
    info = ModelInfo("m", "1", versions={"1": VersionInfo()}, partitions=1, held=3)
    store.announce_model(info)
    forgotten_versions.PartitionKeeper().look(store, {"m": info}, 0.0)
    assert store.models() == [replace(info, held=1)]
    assert [late(store, version="1", partition=number) for number in range(3)] == ["created", "retired", "retired"]


def test_a_job_that_comes_before_the_closing_keeps_its_version(store: RedisStore) -> None:
    """In each order the job either runs or is refused: between the worker's look and its decision lies nothing."""
    assert late(store) == "created"
    forgotten_versions.forget(store, now=LATE)
    assert "20" in store.rollouts()["m"].added
    assert late(store) == "created"


def test_of_two_partitions_the_empty_one_is_closed_and_the_version_stays_until_the_other_one_is(store: RedisStore) -> None:
    store.announce_model(replace(KNOWN, partitions=2, held=2))
    submit(store)
    forgotten_versions.forget(store, now=LATE)
    assert "20" in store.rollouts()["m"].added
    assert (late(store, partition=1), late(store)) == ("retired", "created")


class Killed(Exception):
    """Stands for the end of the process."""


@pytest.mark.parametrize("step", ["swap_model", "swap_rollout"])
def test_a_worker_killed_after_the_closing_leaves_the_rest_to_the_next_one(
    store: RedisStore, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> bool:
        raise Killed

    with monkeypatch.context() as killing:
        killing.setattr(store, step, die)
        with pytest.raises(Killed):
            forgotten_versions.forget(store, now=LATE)
    assert late(store) == "retired"
    forgotten_versions.forget(store, now=LATE)
    assert (versions(store), store.rollouts()) == (["1"], {})


def test_of_two_workers_that_forget_at_once_the_slower_one_opens_nothing(
    store: RedisStore, fresh_redis: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(RedisStore(fresh_redis)) as other, monkeypatch.context() as pausing:
        pausing.setattr(store, "swap_rollout", lambda *_: forgotten_versions.forget(other, now=LATE))
        forgotten_versions.forget(store, now=LATE)
    assert (versions(store), store.rollouts()) == (["1"], {})
    assert late(store) == "retired"


def test_a_version_that_is_loaded_again_while_a_worker_forgets_it_takes_jobs(
    store: RedisStore, fresh_redis: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load ends before the worker closes the queues by what it had read."""

    def has_run_after_a_load(*args: Any) -> bool:
        stored = store.stored_rollouts()["m"]
        assert store.swap_rollout("m", stored, Rollout().load("20", {"source": "y.py"}))
        return has_run(*args)

    has_run = forgotten_versions._has_run
    with monkeypatch.context() as pausing:
        pausing.setattr(forgotten_versions, "_has_run", has_run_after_a_load)
        forgotten_versions.forget(store, now=LATE)
    assert store.rollouts()["m"].added == {"20": {"source": "y.py"}}
    assert late(store) == "created"


# --- what is left -------------------------------------------------------------------------------------------------------------


def named(url: str, word: str) -> set[str]:
    """The keys without a time to live that name this, in the key or in their dump."""
    with redis.Redis.from_url(url) as client:
        keys = [key for key in client.scan_iter(count=1_000) if client.ttl(key) < 0]
        return {key.decode() for key in keys if word.encode() in key or word in repr(content(client, key))}


def content(client: Any, key: bytes) -> Any:
    reads = {b"string": client.get, b"hash": client.hgetall, b"set": client.smembers}
    kind = client.type(key)
    return reads.get(kind, lambda key: client.lrange(key, 0, -1) if kind == b"list" else client.zrange(key, 0, -1))(key)


def test_nothing_without_a_time_to_live_names_a_forgotten_version(store: RedisStore, fresh_redis: str) -> None:
    """Regression: of each version that was loaded some keys stayed for ever, in the queue and beside the registry."""
    version = "v-77"
    info = ModelInfo("m", "1", versions={"1": VersionInfo(), version: VersionInfo()}, partitions=2, held=2)
    store.announce_model(info)
    rollout = Rollout().load(version, {"source": "x.py"}).scaled(version, 2)
    assert store.swap_rollout("m", store.stored_rollouts()["m"], rollout)
    for partition, owner in enumerate(["alice", ""]):
        job = NewJob(new_job_id("m", partition), version, Payload("x", b"1"), owner=owner, result_ttl_s=0.0)
        store.submit([job])
        queue = job.id.queue
        for worker in ("lost.0", "lost.1"):
            store.claim(ClaimRequest(queue, version, worker, os.urandom(6).hex(), 1))
            store.sweep(queue, gone=[worker])
        [claimed] = store.claim(ClaimRequest(queue, version, "w.0", os.urandom(6).hex(), 1)).jobs
        store.finish([Ending(claimed.id, claimed.token, JobState.SUCCEEDED, claimed.input)], worker="w.0", stamp=STAMP)
        store.claim(ClaimRequest(queue, version, "killed.0", os.urandom(6).hex(), 1, offer=True))
        store.sweep(queue)
    store.keep_learned_times("m", f"{version} | cpu |  | 1", KeptTimes({1: 0.1}, 1.0))
    store.send(wish_profile("m", ProfileWish("p", version, 1.0)))
    stored = store.stored_rollouts()["m"]
    assert store.swap_rollout("m", stored, stored.rollout.unload(version, 100.0))
    assert len(named(fresh_redis, version)) > 8
    forgotten_versions.forget(store, now=100.0 + FORGOTTEN_AFTER_S)
    assert named(fresh_redis, version) == set()
    assert versions(store) == ["1"]


def test_a_run_behind_many_of_other_models_still_needs_its_version(store: RedisStore) -> None:
    """A call of the list looks at 500 runs, and the run is behind those."""
    runs = RunStore(store)
    runs.create("old", RunSpec(model="m", input="i", output="o"))
    runs.take("old", "driver", lease_s=600.0)
    runs.update("old", "driver", RunChange(state=RunState.RUNNING, version="20"), lease_s=600.0)
    for number in range(510):
        runs.create(f"new{number}", RunSpec(model="other", input="i", output="o"))
    assert forgotten_versions._has_run(store, "m", "20")
    assert not forgotten_versions._has_run(store, "m", "1")
    assert not forgotten_versions._has_run(store, "other", "20"), "nobody drives these"

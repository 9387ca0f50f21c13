"""A number of partitions that changes: what the registry says of it, where slots are at home, and what is forgotten when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
import redis

from penstock.broker.partitions import queues_of_model, total
from penstock.broker.records import NewJob
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.registry import StoredModel
from penstock.broker.store.sync import RedisStore
from penstock.cli.ops.flower_process import StoreQueues
from penstock.extensions.splits.store import count_split, counts_of
from penstock.job import Payload, new_job_id, new_serial, queues_of
from penstock.model_spec import ModelInfo
from penstock.workers.fleet.announce import announced, claimed_from, swept_queues
from penstock.workers.fleet.forgotten_versions import PartitionKeeper


@pytest.fixture
def store(redis_url: str) -> Iterator[RedisStore]:
    made = RedisStore(redis_url)
    yield made
    made.close()


def test_every_partition_is_home_to_as_many_slots_of_a_worker_as_any_other() -> None:
    queues = queues_of("m", 3)
    found = [claimed_from(queues, f"host-1-abc.{number}") for number in range(6)]
    assert Counter(own[0] for own in found) == dict.fromkeys(queues, 2)
    assert all(sorted(own) == queues for own in found)


def test_single_slots_of_many_workers_are_at_home_everywhere_too() -> None:
    slots = [f"host-{pid}-abc.0" for pid in range(200)]
    found = Counter(claimed_from(queues_of("m", 2), slot)[0] for slot in slots)
    assert min(found.values()) > 50


def test_no_worker_forgets_a_partition_that_another_one_announced() -> None:
    known = ModelInfo("m", partitions=4, held=4)
    assert announced(ModelInfo("m", partitions=2, held=2), known) == ModelInfo("m", partitions=2, held=4, placing=1)
    assert announced(ModelInfo("m", partitions=8, held=8), known) == ModelInfo("m", partitions=8, held=8, placing=1)
    assert announced(ModelInfo("m", partitions=4, held=4), replace(known, placing=7)) == replace(known, placing=7)
    assert swept_queues(["m", "new"], {"m": known}) == [*queues_of("m", 4), "new"]


def test_partitions_are_forgotten_once_nothing_of_them_is_kept(store: RedisStore, redis_url: str) -> None:
    info = ModelInfo("lowered", partitions=1, held=3)
    assert store.swap_model(info.name, StoredModel(), info)
    [answer] = store.submit([NewJob(new_job_id(info.name, 2), "1", Payload("application/json", b"1"), result_ttl_s=0.001)])
    keeper = PartitionKeeper()
    keeper.look(store, {info.name: info}, 0.0)
    assert store.stored_models()[info.name].info == info, "a job waits in the third"
    store.cancel(answer.id)
    keeper.look(store, {info.name: info}, 10.0)
    assert store.stored_models()[info.name].info == info, "nobody looks more often than every half minute"
    with redis.Redis.from_url(redis_url) as client:
        # Its result has expired, and the sweep collects it.
        client.zadd(f"ps:{{{answer.id.queue}}}:final", {answer.id.serial: 1})
    assert store.sweep(answer.id.queue).collected == 1
    keeper.look(store, {info.name: info}, 60.0)
    assert store.stored_models()[info.name].info == ModelInfo("lowered", partitions=1, held=1)


async def test_flower_and_the_counts_of_a_split_know_all_partitions(store: RedisStore, redis_url: str) -> None:
    info = ModelInfo("wide", partitions=3, held=3)
    assert store.swap_model(info.name, StoredModel(), info)
    store.submit([NewJob(new_job_id("wide", partition), "1", Payload("x", b"1")) for partition in (0, 1, 1, 2)])
    rows = {row["name"]: row["messages"] for row in await StoreQueues(redis_url).queues([])}
    assert [rows[f"penstock.{{{queue}}}"] for queue in queues_of("wide", 3)] == [1, 2, 1]
    for queue in queues_of("wide", 3):
        store.run(count_split(queue, "s", {"1,succeeded": 2}))
    gateway = AsyncStore(redis_url)
    await gateway.start()
    try:
        assert await counts_of(gateway, info, "s") == {"1,succeeded": 6}
        assert total(await gateway.stats_of(queues_of_model(info))).depth == 4
        assert store.known([new_serial()]) == set()
    finally:
        await gateway.close()

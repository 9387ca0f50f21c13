"""A run submits shards to queues that were closed since it began: to a partition that is gone, and to a version that is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.broker.blobs.files import LocalBlobs
from penstock.broker.store.sync import RedisStore
from penstock.job import queues_of
from penstock.runs.shards.push_listener import PushListener
from penstock.runs.shards.shard_queue import ShardQueue, ShardTerms
from penstock.runs.shards.window import ShardPiece
from tests.eventually import eventually


@pytest.fixture
def store(fresh_redis: str) -> Iterator[RedisStore]:
    with closing(RedisStore(fresh_redis)) as store:
        yield store


@pytest.fixture
def shards(store: RedisStore, fresh_redis: str, tmp_path: Path) -> Iterator[ShardQueue]:
    """Yield the shards of a run that began when its model had two partitions."""
    with closing(PushListener(fresh_redis)) as listener:
        terms = ShardTerms("m", "1", "application/json", partitions=2)
        yield ShardQueue(store, LocalBlobs(tmp_path), listener, terms=terms, inputs=lambda piece: [0] * len(piece))


def depths(store: RedisStore) -> Counter[str]:
    return Counter({queue: store.stats(queue).depth for queue in queues_of("m", 2)})


def flushed(shards: ShardQueue, store: RedisStore, jobs: int) -> bool:
    shards.flush()
    return depths(store).total() == jobs


def pieces(count: int) -> list[ShardPiece]:
    return [ShardPiece(number, [2 * number, 2 * number + 1], 2.0) for number in range(count)]


def test_shards_of_a_partition_that_is_gone_go_to_the_first_one(store: RedisStore, shards: ShardQueue) -> None:
    store.retire("m:1")
    shards.submit(pieces(4))
    eventually(lambda: flushed(shards, store, 4))
    assert depths(store) == {"m": 4, "m:1": 0}


def test_shards_of_a_version_that_is_gone_wait_and_the_run_says_why(store: RedisStore, shards: ShardQueue) -> None:
    store.retire("m", "1")
    shards.submit(pieces(1))
    assert len(shards) == 1
    assert "m takes no jobs of version 1" in shards.note
    store.reopen("m", "1", store.retired("m")["1"])
    eventually(lambda: flushed(shards, store, 1))
    assert shards.note == ""

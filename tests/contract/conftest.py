"""The store and its oracle behind one fixture. Every test ends with a check of the invariants on what the test left behind."""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Callable, Iterator

import pytest
import redis

from penstock.broker.store.sync import RedisStore
from penstock.job import queue_of
from tests.contract.dumps import Dump, RedisDump, dump_oracle
from tests.contract.invariants import check_invariants
from tests.contract.model_queue import ModelQueue
from tests.oracle.store import StoreOracle


@pytest.fixture(scope="module", autouse=True)
def quiet_store(redis_url: str) -> str:
    """Return the URL of a server without the keys of other modules, because every dump reads past them."""
    return redis_url


@pytest.fixture
def model() -> str:
    """Return a model name that no other test uses, so that all tests can share one server."""
    return f"m{uuid.uuid4().hex[:12]}"


@pytest.fixture(params=["oracle", "redis"])
def store(request: pytest.FixtureRequest) -> Iterator[StoreOracle | RedisStore]:
    made = StoreOracle() if request.param == "oracle" else RedisStore(request.getfixturevalue("redis_url"))
    yield made
    made.close()


@pytest.fixture
def queue_name(model: str, request: pytest.FixtureRequest) -> str:
    """Return a queue of the model: for half of the tests, always the same ones, that of a further partition."""
    return queue_of(model, zlib.crc32(request.node.name.encode()) % 2 * 3)


@pytest.fixture
def dump(store: StoreOracle | RedisStore, queue_name: str, request: pytest.FixtureRequest) -> Iterator[Callable[[], Dump]]:
    if isinstance(store, StoreOracle):
        yield lambda: dump_oracle(store, queue_name)
        return
    with redis.Redis.from_url(request.getfixturevalue("redis_url")) as client:
        reader = RedisDump(client, queue_name)
        yield reader.dump
        reader.delete()


@pytest.fixture
def queue(store: StoreOracle | RedisStore, queue_name: str, dump: Callable[[], Dump]) -> Iterator[ModelQueue]:
    yield ModelQueue(store, queue_name, dump)
    check_invariants(dump())

"""The store's functions without any extension, and with one of somebody else."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import redis

from penstock.broker.store.hooks import LuaExtension
from penstock.broker.store.library import assembled, library, lua_extensions
from penstock.broker.store.sync import RedisStore
from penstock.job import JobState
from tests.contract.dumps import RedisDump
from tests.contract.invariants import check_invariants
from tests.contract.model_queue import ModelQueue
from tests.lua_files import ENGINE

ODD = """
-- hook: drawn
-- What is no ticket is counted.
function own.drawn(p, entry) redis.call('HINCRBY', p .. 'counters', 'odd', 1) end

-- hook: claimed
function own.claimed(p, now, idle)
  local odd = redis.call('HGET', p .. 'counters', 'odd')
  return odd and {odd} or NOTHING
end
"""


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as found:
        yield found


@pytest.fixture
def on_library(redis_url: str, client: Any) -> Iterator[Callable[[str], ModelQueue]]:
    """Yield a function that opens a queue on a library, which is removed afterwards."""
    opened: list[tuple[RedisStore, str]] = []

    def queue(source: str) -> ModelQueue:
        store = RedisStore(redis_url, source=source)
        opened.append((store, source))
        model = f"m{uuid.uuid4().hex[:12]}"
        return ModelQueue(store, model, RedisDump(client, model).dump)

    yield queue
    for store, source in opened:
        with closing(store):
            client.function_delete(f"penstock_{library(source)[0]}")


def test_the_engine_alone_serves_jobs(on_library: Callable[[str], ModelQueue]) -> None:
    queue = on_library(assembled(ENGINE, []))
    done, failed, again = queue.leased(), queue.leased(), queue.leased()
    queue.finish(done)
    queue.fail(failed)
    queue.retry(again)
    queue.store.sweep(queue.name)
    states = [queue.state(job.id) for job in (done, failed, again)]
    assert states == [JobState.SUCCEEDED, JobState.FAILED, JobState.QUEUED]
    check_invariants(queue.dump())


def test_an_extension_of_somebody_else_is_called_beside_ours(on_library: Callable[[str], ModelQueue], client: Any) -> None:
    odd = LuaExtension("odd", {"odd": ODD})
    queue = on_library(assembled(ENGINE, [*lua_extensions(), odd]))
    client.lpush(f"penstock.{{{queue.name}}}", b"no ticket")
    assert queue.claim().messages == (b"no ticket", b"1")
    check_invariants(queue.dump())

"""The Lua functions make exactly the moves of the table in `penstock.job`: every move in the table, and no other."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
import redis

from penstock.broker.store.library import body, library
from penstock.broker.store.sync import RedisStore
from penstock.job import FINAL, MOVES
from tests.contract import test_store_claim as claiming
from tests.contract import test_store_delays as delaying
from tests.contract import test_store_settle as settling
from tests.contract import test_store_shards as shards
from tests.contract import test_store_submit as submitting
from tests.contract import test_store_sweep as sweeping
from tests.contract.dumps import RedisDump
from tests.contract.model_queue import ModelQueue

SEEN = "moves-seen"
# This code stands in front of the library: each HSET that changes a job's state records the old state and the new one.
RECORDER = f"""
local function call(...) return redis.call(...) end
local function error_reply(text) return redis.error_reply(text) end
local redis = {{register_function = redis.register_function, error_reply = error_reply}}
redis.call = function(...)
  local words = {{...}}
  if words[1] == 'HSET' and string.find(words[2], ':job:', 1, true) then
    for i = 3, #words, 2 do
      local before = words[i] == 'state' and (call('HGET', words[2], 'state') or 'nothing')
      if before and before ~= words[i + 1] then call('SADD', '{SEEN}', before .. ' ' .. words[i + 1]) end
    end
  end
  return call(...)
end
"""


def exercises() -> list[Callable[[ModelQueue], None]]:
    """Return the contract tests that need only a queue, and the two moves that those tests leave out: together, every move."""
    modules = (submitting, claiming, settling, sweeping, shards, delaying)
    functions = [function for module in modules for _, function in inspect.getmembers(module, inspect.isfunction)]
    tests = [test for test in functions if test.__name__.startswith("test_")]
    plain = [test for test in tests if list(inspect.signature(test).parameters) == ["queue"]]
    return [*plain, cancel_a_delayed_job, expire_a_delayed_job]


def cancel_a_delayed_job(queue: ModelQueue) -> None:
    job = queue.leased()
    queue.retry(job, delay_s=60.0)
    queue.store.cancel(job.id)


def expire_a_delayed_job(queue: ModelQueue) -> None:
    sweeping.test_a_delayed_job_past_its_deadline_is_expired(queue, delay_s=60.0)


@pytest.fixture
def recording_store(redis_url: str) -> Iterator[RedisStore]:
    source = RECORDER + body()
    with closing(RedisStore(redis_url, source=source)) as store:
        yield store
    with redis.Redis.from_url(redis_url) as client:
        client.function_delete(f"penstock_{library(source)[0]}")
        client.delete(SEEN)


def test_the_functions_make_the_moves_of_the_table_and_no_others(recording_store: RedisStore, redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        for exercise in exercises():
            model = f"m{uuid.uuid4().hex[:12]}"
            exercise(ModelQueue(recording_store, model, RedisDump(client, model).dump))
        seen = {move.decode() for move in client.smembers(SEEN)}
    moves = {f"{before} {after}" for before, allowed in MOVES.items() for after in allowed}
    assert seen == {"nothing queued", "nothing delayed"} | moves


def test_a_final_state_is_never_left() -> None:
    assert not FINAL & MOVES.keys()

"""The audit log in the store: what it keeps of whom when it is full, and what it forgets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
import redis

from penstock.broker.store.audit import MOST_ACTS, Act, end_act, note_act, read_acts
from penstock.broker.store.registry import KEYS_PREFIX
from penstock.broker.store.sync import RedisStore


@pytest.fixture
def log(redis_url: str) -> Iterator[RedisStore]:
    with closing(RedisStore(redis_url)) as store:
        yield emptied(store)
        emptied(store)


def emptied(store: object) -> RedisStore:
    """The store without an act."""
    assert isinstance(store, RedisStore)
    for kind in ("audit", "acts:*", "shares:*"):
        for name in store._redis.keys(KEYS_PREFIX + kind):
            store._redis.delete(name)
    return store


def noted(log: RedisStore, by: str, owner: str, count: int = 1) -> list[int]:
    """Acts of a key without the role `manage`; those of keys with it have no owner."""
    return log.run_all([note_act(Act("dismiss failed", by, owner=owner)) for _ in range(count)])


def kept(log: RedisStore) -> list[Act]:
    acts: list[Act] = []
    while page := log.run(read_acts(before=acts[-1].number if acts else None)):
        acts += page
    return acts


def test_an_owner_that_acts_without_end_pushes_out_no_act_of_others(log: RedisStore) -> None:
    # Regression: any key with the role `submit` emptied the log of everybody's acts in 100 s, by dismissing nothing.
    first = noted(log, "boss", "") + noted(log, "neighbour", "b", 30)
    flood = noted(log, "greedy", "a", MOST_ACTS + 100)
    last = noted(log, "boss", "") + noted(log, "neighbour", "b")
    acts = kept(log)
    assert [act.number for act in acts if act.by != "greedy"] == sorted(first + last, reverse=True)
    of_owners = [act for act in acts if act.by != "boss"]
    assert len(of_owners) == MOST_ACTS
    assert [act.number for act in of_owners if act.by == "greedy"][-1] == flood[100 + 31]


def test_acts_of_managers_are_bounded_too_the_first_go_first(log: RedisStore) -> None:
    numbers = noted(log, "boss", "", MOST_ACTS + 2)
    assert [act.number for act in kept(log)] == numbers[:1:-1]


def test_an_act_that_changed_nothing_is_none(log: RedisStore, redis_url: str) -> None:
    act = Act("dismiss failed", "greedy", owner="a")
    numbers = [log.run(note_act(act)) for _ in range(3)]
    assert log.run(end_act(numbers[1], act, ""))
    assert not log.run(end_act(numbers[1], act, "done"))
    assert [act.number for act in kept(log)] == [numbers[2], numbers[0]]
    with closing(redis.Redis.from_url(redis_url)) as client:
        assert client.zcard(f"{KEYS_PREFIX}acts:owners:a") == 2


def test_acts_from_before_there_were_shares_stay_in_the_log(log: RedisStore, redis_url: str) -> None:
    with closing(redis.Redis.from_url(redis_url)) as client:
        for number in (1, 2, 11):
            client.hset(f"{KEYS_PREFIX}audit", str(number), '1700000000000\ndone\n{"act":"pause"}')
        client.hset(f"{KEYS_PREFIX}audit", "#", "11")
    [number] = noted(log, "boss", "")
    assert [act.number for act in kept(log)] == [number, 11, 2, 1]

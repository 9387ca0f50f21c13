"""API keys that were made at run time, and the rates of keys over all gateways, as the store keeps them."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
import redis

from penstock.access import Key, Role
from penstock.broker.store import registry
from penstock.broker.store.registry import KEYS_PREFIX, KeyLevels, KeySpending, StoredKey
from penstock.broker.store.sync import RedisStore
from tests.oracle.key_levels import KeyLevelsOracle


@pytest.fixture
def keys(redis_url: str) -> Iterator[RedisStore]:
    with closing(RedisStore(redis_url)) as store, closing(redis.Redis.from_url(redis_url)) as client:
        yield store
        client.delete(*(f"{KEYS_PREFIX}{name}" for name in ("known", "buckets", "gateways")))


def made(name: str = "ci", sha256: str = "12" * 32) -> StoredKey:
    return StoredKey(
        Key(name, sha256, frozenset({Role.SUBMIT}), "team-a", burst=3, extension_settings={"webhook": "https://a.example/"}),
        5.0,
        "admin",
    )


def names(keys: RedisStore) -> list[str]:
    found = keys.send(registry.stored_keys())
    return sorted(found)


def edition(keys: RedisStore) -> int:
    return keys.run(registry.spend("looks", [], ttl_s=1.0)).edition


def test_a_key_is_read_as_it_was_made(keys: RedisStore) -> None:
    assert keys.run(registry.put_key(None, made())) == 1
    [found] = keys.send(registry.stored_keys()).values()
    assert replace(found, text=b"") == made()


def test_of_two_gateways_that_make_one_key_the_first_does(keys: RedisStore) -> None:
    assert [keys.run(registry.put_key(None, made(sha256=digit * 64))) for digit in "12"] == [1, 0]
    assert keys.send(registry.stored_keys())["ci"].key.sha256 == "1" * 64


def test_a_key_is_removed_only_as_it_was_read(keys: RedisStore) -> None:
    keys.run(registry.put_key(None, made()))
    found = keys.send(registry.stored_keys())["ci"]
    assert keys.run(registry.remove_key(replace(found, text=b"other"))) == 0
    assert keys.run(registry.remove_key(found)) == 1
    assert names(keys) == []


def test_each_change_has_another_edition_and_a_look_has_none(keys: RedisStore) -> None:
    seen = [edition(keys), edition(keys)]
    keys.run(registry.put_key(None, made()))
    seen.append(edition(keys))
    keys.run(registry.remove_key(keys.send(registry.stored_keys())["ci"]))
    seen.append(edition(keys))
    assert seen[0] == seen[1]
    assert len(set(seen)) == 3


def test_there_are_only_so_many_keys(keys: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MOST_KEYS", 2)
    assert [keys.run(registry.put_key(None, made(name))) for name in "abc"] == [1, 1, -1]
    assert names(keys) == ["a", "b"]


def test_what_is_no_key_opens_nothing_and_hides_no_other(keys: RedisStore, redis_url: str) -> None:
    keys.run(registry.put_key(None, made()))
    with closing(redis.Redis.from_url(redis_url)) as client:
        client.hset(f"{KEYS_PREFIX}known", mapping={"odd": '{"key": 7}', "older": "{}"})
    assert names(keys) == ["ci"]


def test_a_gateway_that_was_silent_is_not_counted(keys: RedisStore, redis_url: str) -> None:
    def count(name: str, ttl_s: float = 60.0) -> int:
        return keys.run(registry.spend(name, [], ttl_s=ttl_s)).gateways

    assert [count("a"), count("b"), count("a")] == [1, 2, 2]
    with closing(redis.Redis.from_url(redis_url)) as client:
        client.zadd(f"{KEYS_PREFIX}gateways", {"b": 1.0})
    assert count("a") == 1


def test_the_twin_in_memory_counts_as_the_function_does(keys: RedisStore, redis_url: str) -> None:
    """The simulation of the rates uses the twin."""
    twin, chance, name = KeyLevelsOracle(), random.Random(7), uuid.uuid4().hex
    with closing(redis.Redis.from_url(redis_url)) as client:
        for _ in range(40):
            spent = chance.choice([0.0, 0.1, 3.0, 30.0])
            one = KeySpending(name, 20.0, 8.0, spent, spent + chance.choice([0.0, 5.0]))
            found: KeyLevels = keys.run(registry.spend("g", [one], ttl_s=5.0))
            at = float(client.hget(f"{KEYS_PREFIX}buckets", name).split()[1]) / 1000  # type: ignore[union-attr]
            expected = twin.spend("g", [one], ttl_s=5.0, now=at)
            [(level, demand)], [wanted] = found.levels, expected.levels
            assert (level, demand) == pytest.approx(wanted, abs=0.05)


def test_a_revoked_key_leaves_no_rate_behind(keys: RedisStore, redis_url: str) -> None:
    keys.run(registry.put_key(None, made()))
    keys.run(registry.spend("g", [KeySpending("ci", 1.0, 3.0, 3.0, 3.0)], ttl_s=5.0))
    keys.run(registry.remove_key(keys.send(registry.stored_keys())["ci"]))
    with closing(redis.Redis.from_url(redis_url)) as client:
        assert not client.exists(f"{KEYS_PREFIX}buckets")

"""The links of a thread to the store: several calls in one write, and messages that arrive in parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
import redis

from penstock.broker.store.connection import ThreadLink, connect
from penstock.broker.store.notifications import Wake, WakeUps
from tests.eventually import eventually


@pytest.fixture
def server(fresh_redis: str) -> Iterator[redis.Redis]:
    with closing(redis.Redis.from_url(fresh_redis)) as client:
        yield client


@pytest.fixture
def client(fresh_redis: str) -> Iterator[redis.Redis]:
    with closing(connect(fresh_redis, name="thread")) as made:
        yield made


def connections(server: redis.Redis) -> list[str]:
    return [str(found["id"]) for found in server.client_list() if found["name"] == "thread"]


def test_answers_come_in_the_order_of_the_calls(client: redis.Redis) -> None:
    link = ThreadLink(client.connection_pool)
    assert link.answers([("SET", "a", 1), ("INCRBY", "a", 2), ("GET", "a")]) == [b"OK", 3, b"3"]


def test_the_first_refusal_is_raised_and_leaves_the_link_in_order(client: redis.Redis) -> None:
    link = ThreadLink(client.connection_pool)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        link.answers([("LPUSH", "list", 1), ("GET", "list"), ("NONSENSE",), ("SET", "a", 1)])
    assert link.answers([("GET", "a")]) == [b"1"]


def test_a_connection_that_the_server_closed_while_it_was_idle_is_opened_anew(client: redis.Redis, server: redis.Redis) -> None:
    link = ThreadLink(client.connection_pool)
    link.answers([("SET", "a", 1)])
    [first] = connections(server)
    server.client_kill_filter(_id=first)
    assert link.answers([("GET", "a")]) == [b"1"]
    assert connections(server) != [first]


def test_a_connection_that_broke_in_a_call_is_opened_anew_by_the_next(client: redis.Redis, server: redis.Redis) -> None:
    link = ThreadLink(client.connection_pool)
    # The server closes the connection instead of an answer; the call is not repeated.
    with pytest.raises(redis.ConnectionError):
        link.answers([("INCR", "a"), ("CLIENT", "KILL", "SKIPME", "no"), ("INCR", "a")])
    count = int(server.get("a") or 0)
    assert link.answers([("GET", "a")]) == [str(count).encode()]


def test_redis_own_commands_use_the_same_connection_once_it_is_given_back(client: redis.Redis, server: redis.Redis) -> None:
    link = ThreadLink(client.connection_pool)
    link.answers([("SET", "a", 1)])
    link.give_back()
    assert client.get("a") == b"1"
    link.answers([("GET", "a")])
    assert len(connections(server)) == 1


def test_a_message_that_arrives_in_parts_is_read_whole(fresh_redis: str, server: redis.Redis) -> None:
    # Regression: the first part alone was taken for a broken link, and the slot went on under a new name.
    with closing(WakeUps(fresh_redis, "echo", "worker").open()) as wake_ups:
        server.execute_command("SPUBLISH", "ps:{echo}:worker:worker", b"w" * (4 << 20))
        assert eventually(wake_ups.read) == [Wake()]

"""The links of a thread to the store: several calls in one write, and messages that arrive in parts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from penstock.broker.records import NewJob, SubmitStatus, Wake
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.connection import connect
from penstock.broker.store.links.refusals import AskAgain, asked_again
from penstock.broker.store.links.thread_link import ThreadLink
from penstock.broker.store.sync import RedisStore
from penstock.broker.store.wake_ups import WakeUps
from penstock.job import Payload, new_job_id
from tests.eventually import eventually, eventually_async
from tests.faults.server import Server


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


def test_a_server_that_was_demoted_is_left_and_the_next_call_connects_anew(tmp_path: Path) -> None:
    """Behind an address that follows the primary, the old connection would lead to the replica for ever."""
    server = Server(tmp_path / "store")
    server.start()
    try:
        with server.client() as admin, closing(RedisStore(server.url, name="thread")) as store:
            store.identity()
            [before] = connections(admin)
            admin.replicaof("127.0.0.1", "1")
            counted = asked_again["READONLY"]
            with pytest.raises(AskAgain, match="READONLY"):
                store.withdraw_worker("w")
            assert asked_again["READONLY"] == counted + 1
            admin.replicaof("NO", "ONE")
            store.withdraw_worker("w")
            assert connections(admin) != [before]
    finally:
        server.stop()


async def test_a_gateway_asks_again_while_a_replica_is_promoted(tmp_path: Path) -> None:
    server = Server(tmp_path / "store")
    server.start()
    store = AsyncStore(server.url)
    try:
        await store.ping()
        with server.client() as admin:
            admin.replicaof("127.0.0.1", "1")
            asked = asyncio.ensure_future(store.submit(NewJob(new_job_id("m"), "1", Payload("application/json", b"7"))))
            counted = asked_again["READONLY"]

            async def is_asked_again() -> bool:
                return asked_again["READONLY"] > counted

            await eventually_async(is_asked_again)
            admin.replicaof("NO", "ONE")
        assert (await asked).status is SubmitStatus.CREATED
    finally:
        await store.close()
        server.stop()

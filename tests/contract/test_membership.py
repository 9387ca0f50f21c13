"""Who serves a store beside whom: members of fitting protocol versions, and no worker that announces none (D144)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial

import msgspec
import pytest
import redis

from penstock.broker.protocol import MEMBERS_KEY, PROTOCOL, Membership, NotAdmitted, join, membership
from penstock.broker.records import NewJob, SubmitStatus
from penstock.broker.store import registry
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.ops import Command
from penstock.broker.store.sync import RedisStore
from penstock.job import Payload, new_job_id
from penstock.model_spec import WorkerInfo
from tests.eventually import eventually


@pytest.fixture
def store(fresh_redis: str) -> Iterator[RedisStore]:
    with closing(RedisStore(fresh_redis)) as opened:
        yield opened


@contextmanager
def member(store: RedisStore, protocol: int, oldest: int, name: str = "") -> Iterator[str]:
    """A process that is a member within the block."""
    name = name or f"worker a:1:{uuid.uuid4().hex}"
    store.run(join(name, protocol, oldest, ttl_s=60.0))
    try:
        yield name
    finally:
        with suppress(NotAdmitted):
            store.run(join(name, protocol, oldest, ttl_s=0.0))


def refusal(store: RedisStore, protocol: int, oldest: int, name: str = "") -> str:
    """Return why the process is no member; it must not become one."""
    refused = None
    try:
        with member(store, protocol, oldest, name):
            pass
    except NotAdmitted as error:
        refused = error
    assert refused is not None, f"{protocol} was admitted"
    assert refused.hint == "stop all processes of the one version of penstock, then start those of the other"
    return refused.message


def is_admitted(store: RedisStore, protocol: int, oldest: int) -> bool:
    with suppress(NotAdmitted), member(store, protocol, oldest):
        return True
    return False


def test_processes_of_one_protocol_version_serve_beside_each_other(store: RedisStore) -> None:
    with member(store, 3, 3), member(store, 3, 3):
        pass


def test_a_process_that_reads_the_forms_of_the_version_before_serves_beside_it(store: RedisStore) -> None:
    with member(store, 3, 3), member(store, 4, 3), member(store, 3, 3):
        pass


def test_a_process_that_cannot_read_a_members_forms_is_refused_in_one_sentence(store: RedisStore) -> None:
    with member(store, 3, 3) as name:
        assert refusal(store, 4, 4) == (
            "this process has protocol version 4 and serves beside 4 and later; "
            f"{name} has version 3 and serves beside 3 and later"
        )


def test_a_process_whose_forms_a_member_cannot_read_is_refused(store: RedisStore) -> None:
    with member(store, 4, 4) as name:
        assert f"{name} has version 4 and serves beside 4 and later" in refusal(store, 3, 1)


def test_a_member_that_is_not_renewed_is_none(store: RedisStore) -> None:
    store.run(join(f"worker {uuid.uuid4().hex}", 3, 3, ttl_s=0.1))
    assert eventually(lambda: is_admitted(store, 5, 5), timeout_s=10.0)


def test_a_member_that_others_hold_for_gone_must_fit_them(store: RedisStore) -> None:
    with member(store, 3, 3) as name:
        pass
    with member(store, 5, 5):
        assert refusal(store, 3, 3, name)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Membership:
    """The membership of this process, which ends with the test."""
    for name in ("name", "renew_at"):
        monkeypatch.setattr(membership, name, getattr(membership, name))
    membership.enter("test")
    return membership


def test_a_process_is_a_member_before_its_first_call(store: RedisStore, process: Membership) -> None:
    store.now()
    assert store.send(Command(("HKEYS", MEMBERS_KEY), list)) == [process.name.encode()]
    renew_at = process.renew_at
    store.identity()
    assert process.renew_at == renew_at


def test_a_process_that_was_frozen_makes_no_call_beside_those_who_came_meanwhile(
    fresh_redis: str, store: RedisStore, process: Membership
) -> None:
    """Neither a function nor a plain command: what it would write has a form that the others cannot read."""
    store.now()
    with redis.Redis.from_url(fresh_redis) as others:
        others.delete(MEMBERS_KEY)
        others.hset(MEMBERS_KEY, "worker a:1:x", _next_version(store.now()))
        process.renew_at = 0.0
        for call in (store.identity, store.now, store.models):
            with pytest.raises(NotAdmitted):
                call()
        assert others.keys() == [MEMBERS_KEY.encode()]
        others.delete(MEMBERS_KEY)
    assert store.identity()


async def test_a_gateways_calls_wait_for_its_membership(fresh_redis: str, store: RedisStore, process: Membership) -> None:
    """Each by itself: the library of functions may be missing at any of them."""
    job = NewJob(new_job_id("m"), "1", Payload("application/json", b"1"))
    with redis.Redis.from_url(fresh_redis) as others, closing(store):
        others.hset(MEMBERS_KEY, "worker a:1:x", _next_version(time.time()))
        gateway = AsyncStore(fresh_redis)
        try:
            for call in (
                gateway.ping,
                gateway.now,
                gateway.models,
                partial(gateway.read, job.id),
                partial(gateway.submit, job),
            ):
                others.function_flush()
                with pytest.raises(NotAdmitted):
                    await call()
            others.delete(MEMBERS_KEY)
            assert (await gateway.submit(job)).status is SubmitStatus.CREATED
        finally:
            await gateway.close()


def _next_version(now: float) -> str:
    return f"{int(now * 1000) + 60_000} {PROTOCOL + 1} {PROTOCOL + 1}"


def test_a_process_stays_out_beside_a_worker_that_announces_no_version(store: RedisStore) -> None:
    """Workers of the trees before protocol versions are in the registry alone, in entries without a last element."""
    now = store.now()
    entry = msgspec.json.encode([round(now + 60.0, 3), WorkerInfo("old", "here", 1, 0.0), round(now, 3)])
    store.send(Command(("HSET", registry.WORKERS_KEY, "old", entry), int))
    try:
        assert [worker.name for worker in store.workers()] == ["old"]
        assert (
            refusal(store, 1, 1)
            == "this process has protocol version 1 and serves beside 1 and later; worker old announces none"
        )
    finally:
        store.withdraw_worker("old")
    store.announce_worker(WorkerInfo("new", "here", 1, 0.0))
    try:
        assert is_admitted(store, 1, 1)
    finally:
        store.withdraw_worker("new")

"""`store.durability = "replicated"`: what writes is answered once a replica has it on its disk, on real servers."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from penstock.broker.records import NewJob, SubmitStatus
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.library import unwaited
from penstock.broker.store.links.replicated_link import _ASK_FOR_MS, NotReplicated
from penstock.errors import StoreUnavailable
from penstock.job import Payload, new_job_id
from tests.eventually import eventually
from tests.faults.server import Server


@pytest.fixture
def primary(has_server: None, tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "primary", extra={"repl-diskless-sync-delay": "0"})
    server.start()
    yield server
    server.stop()


@pytest.fixture
def replica(primary: Server, tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "replica", extra={"replicaof": f"127.0.0.1 {primary.port}"})
    server.start()
    with primary.client() as client:
        # A replica confirms once it has written what it got at first into a log of its own.
        eventually(lambda: client.set("here", "1") and client.execute_command("WAITAOF", 1, 1, 100) == [1, 1], timeout_s=20.0)
    yield server
    server.stop()


@pytest.fixture
async def store(primary: Server) -> AsyncIterator[AsyncStore]:
    store = AsyncStore(primary.url, replicated=True)
    yield store
    await store.close()


def new_job(key: str = "") -> NewJob:
    return NewJob(id=new_job_id("echo"), version="1", input=Payload("application/json", b"7"), idempotency_key=key)


async def test_what_was_answered_is_on_the_replica_when_the_primary_is_lost_with_its_disk(
    store: AsyncStore, primary: Server, replica: Server
) -> None:
    jobs = [new_job() for _ in range(100)]
    answers = await asyncio.gather(*(store.submit(job) for job in jobs))
    primary.kill()
    with replica.client() as client:
        client.replicaof("NO", "ONE")
    promoted = AsyncStore(replica.url)
    assert {answer.status for answer in answers} == {SubmitStatus.CREATED}
    assert all(await asyncio.gather(*(promoted.read(job.id) for job in jobs)))
    await promoted.close()


async def test_without_its_replica_a_write_is_refused_in_time_and_a_read_is_answered(
    store: AsyncStore, replica: Server
) -> None:
    job = new_job()
    await store.submit(job)
    replica.signal(signal.SIGSTOP)
    try:
        refused = asyncio.ensure_future(store.submit(new_job()))
        assert await store.read(job.id) is not None
        assert not refused.done(), "the read stood behind the write"
        with pytest.raises(NotReplicated, match="no replica has written this to its disk"):
            await refused
        with pytest.raises(StoreUnavailable):
            await store.cancel(job.id)
    finally:
        replica.signal(signal.SIGCONT)
    assert (await store.submit(new_job())).status is SubmitStatus.CREATED


async def test_many_calls_without_a_replica_are_refused_together_and_not_one_after_the_other(
    store: AsyncStore, primary: Server, replica: Server
) -> None:
    # Regression: each call asked for itself, for a second, so that the last of many waited for as many seconds.
    job = new_job()
    await store.submit(job)
    replica.signal(signal.SIGSTOP)
    try:
        with primary.client() as client:
            client.config_resetstat()
            calls = (store.cancel(new_job_id("echo")) for _ in range(100))
            found = await asyncio.gather(*calls, return_exceptions=True)
            asked = client.info("commandstats")["cmdstat_waitaof"]["calls"]
    finally:
        replica.signal(signal.SIGCONT)
    assert {type(one) for one in found} == {NotReplicated}
    assert asked <= 3 * len(_ASK_FOR_MS)


async def test_a_repeat_is_not_answered_before_the_replica_has_what_the_first_one_wrote(
    store: AsyncStore, replica: Server
) -> None:
    # A repeat finds the job and writes nothing, so WAITAOF alone would return at once.
    replica.signal(signal.SIGSTOP)
    try:
        for _ in range(2):
            with pytest.raises(NotReplicated):
                await store.submit(new_job("the-key"))
    finally:
        replica.signal(signal.SIGCONT)
    assert (await store.submit(new_job("the-key"))).status is SubmitStatus.EXISTING


async def test_a_primary_without_a_log_says_so(store: AsyncStore, primary: Server) -> None:
    with primary.client() as client:
        client.config_set("appendonly", "no")
    with pytest.raises(StoreUnavailable, match="cannot wait for its replica"):
        await store.submit(new_job())


async def test_a_primary_that_dies_in_between_is_an_error_for_those_who_wait(
    store: AsyncStore, primary: Server, replica: Server
) -> None:
    await store.submit(new_job())
    replica.signal(signal.SIGSTOP)
    try:
        waiting = asyncio.ensure_future(store.submit(new_job()))
        await store.read(new_job_id("echo"))
        primary.kill()
        with pytest.raises(StoreUnavailable):
            await waiting
    finally:
        replica.signal(signal.SIGCONT)


def test_the_calls_that_do_not_wait_are_those_that_write_nothing_that_must_last() -> None:
    reading = {"read", "input", "ended", "follow", "newest", "records", "stats", "unfinished", "demand", "read_acts", "history"}
    reading |= {"run_read", "run_parts", "run_next", "may_send", "event_logs", "event_counts"}
    assert unwaited() == reading | {"watch", "spend", "note_history", "begin_drive"}

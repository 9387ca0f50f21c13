"""Sentinels name the primary: gateway, worker and Celery follow them when it is killed, and what was accepted is done."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.broker.records import NewJob, SubmitStatus
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.links.replicated_link import NotReplicated
from penstock.broker.store.sync import RedisStore
from penstock.broker.store.wake_ups import WakeUps
from penstock.cli.exits import StartError
from penstock.cli.ops.store_check import reachable
from penstock.cli.serve.start_watch import check_store
from penstock.errors import StoreUnavailable
from penstock.job import Payload, new_job_id
from penstock.settings.tables import Settings
from tests.acceptance.gateway_process import gateway_process
from tests.eventually import eventually, eventually_async
from tests.faults.server import Server
from tests.integration.test_store_schemes import stock
from tests.integration.worker_process import HANDLERS, WorkerProcess, await_listening
from tests.sentinels import NAME, SentinelGroup, sentinel_group
from tests.steady_load import SteadyLoad, serving

MODELS = {"paced": {"source": str(HANDLERS / "paced.py")}}
REPLICATED = {"PENSTOCK_STORE__DURABILITY": "replicated"}


@pytest.fixture(scope="module")
def group(has_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelGroup]:
    with sentinel_group(tmp_path_factory.mktemp("sentinels")) as group:
        yield group


def test_a_primary_that_is_killed_under_load_takes_nothing_that_was_accepted_with_it(
    group: SentinelGroup, tmp_path: Path
) -> None:
    with (
        WorkerProcess(group.url, tmp_path / "worker", MODELS) as worker,
        gateway_process(group.url, tmp_path / "gateway", models=MODELS, env=REPLICATED) as gateway,
    ):
        name = worker.await_ready()
        with SteadyLoad(str(gateway.base_url), ["paced"]) as load:
            load.await_more(20)
            old = group.primary()
            old.kill()
            group.await_promotion(old)
            load.await_more(20)
        assert load.refused
        assert load.ends() == {"succeeded": len(load.accepted)}
        with stock(group.url) as app:  # Celery's own connection follows as well
            await_listening(app, name)


@pytest.fixture(scope="module")
def whole(has_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelGroup]:
    """A group of which each test leaves all parts alive."""
    with sentinel_group(tmp_path_factory.mktemp("whole")) as group:
        yield group


def new_job() -> NewJob:
    return NewJob(id=new_job_id("echo"), version="1", input=Payload("application/json", b"7"))


async def test_where_a_replica_is_missing_the_sentinels_must_be_certain_of_the_primary(whole: SentinelGroup) -> None:
    store = AsyncStore(whole.url, replicated=True)

    async def is_taken() -> bool:
        try:
            return (await store.submit(new_job())).status is SubmitStatus.CREATED
        except StoreUnavailable:
            return False

    try:
        assert await is_taken()
        with whole.silent(3):
            assert await is_taken(), "every replica has it, so whichever is promoted"
        missing = next(server for server in whole.servers if server is not whole.primary())
        missing.signal(signal.SIGSTOP)
        try:
            await eventually_async(is_taken)
            with whole.silent(1):
                await eventually_async(is_taken, timeout_s=60.0)
            with whole.silent(2), pytest.raises(NotReplicated, match="do not agree on the primary"):
                await store.submit(new_job())
            await eventually_async(is_taken, timeout_s=60.0)
        finally:
            missing.signal(signal.SIGCONT)
    finally:
        await store.close()
    whole.await_replicated()


def test_sentinels_that_could_promote_a_server_without_what_was_confirmed_are_refused_at_the_start(
    whole: SentinelGroup,
) -> None:
    settings = Settings.load(env={"PENSTOCK_REDIS_URL": whole.url, **REPLICATED}).store
    check_store(whole.url, settings, print)
    one_named = f"{whole.url.partition(',')[0]}/{NAME}"
    with pytest.raises(StartError, match="names 1 of its 3 sentinels"):
        check_store(one_named, settings, print)
    with whole.sentinels()[0] as sentinel:
        sentinel.execute_command("SENTINEL", "SET", NAME, "quorum", 1)
        with pytest.raises(StartError, match="1 of its 3 sentinels may find the primary gone"):
            check_store(whole.url, settings, print)
        assert "SENTINEL SET main quorum 2" in reachable(whole.url, settings).next
        sentinel.execute_command("SENTINEL", "SET", NAME, "quorum", 2)
    check_store(one_named, Settings.load(env={"PENSTOCK_REDIS_URL": one_named}).store, print)


async def test_every_connection_leaves_a_primary_that_was_replaced_while_it_lives(whole: SentinelGroup) -> None:
    # Regression: each stayed for the ten seconds until the sentinels told the old one, and what was written there was replaced.
    async_store = AsyncStore(whole.url)
    await async_store.start()
    with closing(RedisStore(whole.url)) as store, closing(WakeUps(whole.url, "echo", "w").open()) as wakes:
        store.now()
        old = whole.primary()
        whole.depose(old)
        with pytest.raises(StoreUnavailable):
            eventually(wakes.read)
        jobs = [new_job(), new_job()]
        await eventually_async(lambda: is_elsewhere(async_store, jobs[0], old))
        store.submit([jobs[1]])
        assert not whole.follows(old), "it was replaced too soon to show anything"
        assert [await async_store.read(job.id) is not None for job in jobs] == [True, True]
    await async_store.close()
    eventually(lambda: whole.follows(old), timeout_s=60.0)
    whole.await_replicated()


async def is_elsewhere(store: AsyncStore, job: NewJob, old: Server) -> bool:
    """Whether what this store takes is not on that server."""
    try:
        await store.submit(job)
    except StoreUnavailable:
        return False
    with closing(RedisStore(old.url)) as there:
        return there.read(job.id) is None


def test_a_primary_that_is_replaced_while_it_is_slow_and_alive_takes_nothing_that_was_accepted_with_it(
    has_server: None, tmp_path: Path
) -> None:
    # Regression: for ten more seconds it and the replica that the sentinels did not reach confirmed each other's writes; then
    # its data was replaced, and 189 of 1,213 accepted jobs with it.
    with sentinel_group(tmp_path / "store") as group, serving(group.url, tmp_path, ["paced"]) as url:
        with SteadyLoad(url, ["paced"]) as load:
            load.await_more(20)
            old = group.primary()
            group.link.blackhole()
            eventually(group.has_lost_the_last)
            group.depose(old)
            eventually(lambda: group.follows(old), timeout_s=60.0)
            group.link.heal()
            load.await_more(20)
        assert load.ends() == {"succeeded": len(load.accepted)}

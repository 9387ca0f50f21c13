"""One gateway's and one worker's stores over two real servers: which call goes where, and what an absent server takes along."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from penstock.broker.records import BatchStamp, ClaimedJob, ClaimRequest, Ending, NewJob, Settled, SubmitStatus
from penstock.broker.store.ops import prefix
from penstock.broker.store.registry import StoredModel
from penstock.broker.store.sync import RedisStore
from penstock.broker.stores.loop_stores import AsyncStores
from penstock.broker.stores.places import StoreMap, StorePlace, StorePlaces
from penstock.broker.stores.thread_stores import RedisStores
from penstock.cli.serve.start_watch import running_jobs
from penstock.errors import StoreUnavailable
from penstock.job import JobState, Payload, new_job_id
from penstock.model_spec import ModelInfo
from penstock.runs.shards.push_listener import listener_of
from penstock.settings.tables import Settings
from penstock.workers.fleet.forgotten_versions import PartitionKeeper
from tests.faults.server import Server

HERE, THERE = "here", "there"
JSON = "application/json"


@pytest.fixture(scope="module")
def other(has_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("other"), fsync="everysec")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def places(fresh_redis: str, other: Server) -> StoreMap:
    with other.client() as client:
        client.flushall()
    return StoreMap(StorePlaces(StorePlace(fresh_redis), {"b": StorePlace(other.url)}, {"b": ("there*",)}))


@pytest.fixture
def stores(places: StoreMap) -> Iterator[RedisStores]:
    with closing(places.open()) as made:
        assert isinstance(made, RedisStores)
        yield made


@pytest.fixture
async def loop_stores(places: StoreMap) -> AsyncIterator[AsyncStores]:
    made = places.open_async()
    assert isinstance(made, AsyncStores)
    await made.start()
    yield made
    await made.close()


def new_job(model: str, *, reply_to: str = "", key: str = "") -> NewJob:
    return NewJob(id=new_job_id(model), version="1", input=Payload(JSON, b"7"), reply_to=reply_to, idempotency_key=key)


def keys_of(url: str, queue: str) -> int:
    with closing(redis.Redis.from_url(url)) as client:
        return len(client.keys(f"{prefix(queue)}*"))


def take(store: RedisStore, queue: str) -> ClaimedJob:
    [job] = store.claim(ClaimRequest(queue=queue, version="1", worker="w", nonce="n", limit=1)).jobs
    return job


def ending(job: ClaimedJob) -> Ending:
    return Ending(job.id, job.token, JobState.SUCCEEDED, output=Payload(JSON, b"49"))


STAMP = BatchStamp(id="batch", size=1, reason="idle")


def test_each_job_lies_in_the_store_of_its_model(stores: RedisStores, fresh_redis: str, other: Server) -> None:
    stores.submit([new_job(HERE)])
    stores.submit([new_job(THERE)])
    assert (bool(keys_of(fresh_redis, HERE)), keys_of(other.url, HERE)) == (True, 0)
    assert (keys_of(fresh_redis, THERE), bool(keys_of(other.url, THERE))) == (0, True)


def test_calls_of_one_round_trip_reach_both_stores_and_answer_in_order(stores: RedisStores) -> None:
    [near], [far] = stores.submit([new_job(HERE)]), stores.submit([new_job(THERE)])
    first, second = take(stores, THERE), take(stores, HERE)
    ended = [([ending(first)], "w", STAMP), ([ending(second)], "w", STAMP)]
    answers, claim = stores.finish_all(ended, ClaimRequest(queue=THERE, version="1", worker="w", nonce="n", limit=1))
    assert answers == [[Settled.OK], [Settled.OK]]
    assert claim is not None
    assert claim.jobs == ()
    found = stores.results([far.id, near.id])
    assert [result and result[0].id for result in found] == [far.id, near.id]


def test_records_are_looked_for_in_every_store(stores: RedisStores) -> None:
    for model in (HERE, THERE):
        stores.announce_model(_info(model))
    jobs = [stores.submit([new_job(model)])[0].id for model in (HERE, THERE)]
    assert stores.known([*(job.serial for job in jobs), "0" * 26]) == {job.serial for job in jobs}


def test_jobs_stay_where_they_are_when_the_settings_change(stores: RedisStores, fresh_redis: str, other: Server) -> None:
    [job] = stores.submit([new_job(THERE)])
    changed = StoreMap(StorePlaces(StorePlace(fresh_redis), {"b": StorePlace(other.url)}))
    with closing(changed.open()) as later:
        assert later.read(job.id) is not None
        assert later.submit([new_job(THERE)])[0].depth == 2


def test_a_model_with_jobs_stays_where_it_is_when_a_second_store_is_added(places: StoreMap, fresh_redis: str) -> None:
    with closing(RedisStore(fresh_redis)) as alone:
        [job] = alone.submit([new_job(THERE)])
    with closing(places.open()) as both:
        assert both.submit([new_job(THERE)])[0].depth == 2
        assert both.read(job.id) is not None


def test_a_store_that_the_settings_no_longer_name_is_told(stores: RedisStores, fresh_redis: str) -> None:
    [job] = stores.submit([new_job(THERE)])
    fewer = StoreMap(StorePlaces(StorePlace(fresh_redis), {"c": StorePlace("redis://127.0.0.1:1")}))
    with closing(fewer.open()) as later, pytest.raises(StoreUnavailable, match="lies in the store 'b', which the settings"):
        later.read(job.id)


async def test_a_gateway_is_told_of_ends_in_every_store(loop_stores: AsyncStores, stores: RedisStores) -> None:
    jobs = [new_job(model, reply_to=loop_stores.channel) for model in (HERE, THERE)]
    with loop_stores.waiter(*(job.id for job in jobs)) as waiter:
        answers = await asyncio.gather(*(loop_stores.submit(job) for job in jobs))
        assert {answer.status for answer in answers} == {SubmitStatus.CREATED}
        for model in (THERE, HERE):
            claimed = await asyncio.to_thread(take, stores, model)
            await asyncio.to_thread(stores.finish, [ending(claimed)], worker="w", stamp=STAMP)
            push = await waiter.next_end(10.0, stop=lambda: False)
            assert push is not None
            assert push.id.model == model
            assert push.output == Payload(JSON, b"49")


async def test_a_store_that_hangs_takes_only_its_own_models_along(
    loop_stores: AsyncStores, stores: RedisStores, other: Server
) -> None:
    far = await loop_stores.submit(new_job(THERE))
    other.signal(signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailable, match="store 'b': Redis cannot be reached"):
            await loop_stores.submit(new_job(THERE))
        assert (await loop_stores.submit(new_job(HERE))).status is SubmitStatus.CREATED
    finally:
        other.signal(signal.SIGCONT)
    assert await loop_stores.read(far.id) is not None


def test_a_thread_of_the_main_store_leaves_one_that_hangs_alone_and_goes_on(
    places: StoreMap, stores: RedisStores, other: Server
) -> None:
    for model in (HERE, THERE):
        stores.submit([new_job(model)])
        # It had three partitions once, which are empty.
        assert stores.swap_model(model, StoredModel(), ModelInfo(model, held=3))
    with closing(places.open(is_of_main=True)) as beat:
        infos = {info.name: info for info in beat.models()}
        other.signal(signal.SIGSTOP)
        try:
            began = time.monotonic()
            for _ in range(20):
                with pytest.raises(StoreUnavailable, match="store 'b': Redis cannot be reached"):
                    beat.stats(THERE)
                assert beat.stats(HERE).depth == 1
            assert time.monotonic() - began < 10.0, "it waits for an answer once"
            PartitionKeeper().look(beat, infos, 0.0)
        finally:
            other.signal(signal.SIGCONT)
        found = {info.name: info.held for info in stores.models()}
    assert found == {HERE: 1, THERE: 3}


def test_a_run_listens_to_the_stores_of_its_model_alone(places: StoreMap, fresh_redis: str, other: Server) -> None:
    assert places.urls_of([HERE]) == [fresh_redis, other.url], "nobody knows yet"
    with closing(places.open()) as stores:
        stores.submit([new_job(HERE)])
        stores.submit([new_job(THERE)])
    assert (places.urls_of([HERE]), places.urls_of([THERE, THERE])) == ([fresh_redis], [other.url])
    other.signal(signal.SIGSTOP)
    try:
        with closing(listener_of(places.urls_of([HERE]))) as listener:
            listener.listen()
    finally:
        other.signal(signal.SIGCONT)


async def test_another_process_that_places_a_model_first_decides(
    loop_stores: AsyncStores, fresh_redis: str, other: Server
) -> None:
    elsewhere = StoreMap(StorePlaces(StorePlace(fresh_redis), {"b": StorePlace(other.url)}, {"b": ("*",)}))
    with closing(elsewhere.open()) as quicker:
        await asyncio.to_thread(quicker.submit, [new_job(HERE)])
    assert (await loop_stores.submit(new_job(HERE))).depth == 2
    assert keys_of(fresh_redis, HERE) == 0


def _info(model: str) -> ModelInfo:
    return ModelInfo(model)


def test_at_ctrl_c_the_running_jobs_of_all_stores_are_counted(
    stores: RedisStores, fresh_redis: str, other: Server, tmp_path: Path
) -> None:
    table = {"source": "m.py"}
    env = {
        "PENSTOCK_STORES__B__URL": other.url,
        "PENSTOCK_STORES__B__MODELS": "there",
        "PENSTOCK_MODELS": json.dumps({HERE: table, THERE: table}),
        "PENSTOCK_STORE__STATE_DIR": str(tmp_path),
    }
    settings = Settings.load(None, env)
    for model in (HERE, THERE):
        stores.announce_model(ModelInfo(model))
        stores.submit([new_job(model), new_job(model)])
        take(stores, model)
    assert running_jobs(settings, fresh_redis) == 2
    other.kill()
    try:
        assert running_jobs(settings, fresh_redis) is None
    finally:
        other.start()

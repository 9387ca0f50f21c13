"""`penstock store move` on two real servers: its steps, where it goes on, and the stores that it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from penstock.broker.records import NewJob, SubmitStatus
from penstock.broker.stores.model_queues import MoveStep
from penstock.broker.stores.moves import StoreMove
from penstock.broker.stores.places import StoreMap, StorePlace, StorePlaces
from penstock.broker.stores.thread_stores import RedisStores
from penstock.errors import Conflict, NotFound, StoreUnavailable
from penstock.job import Payload, new_job_id
from penstock.model_spec import ModelInfo
from tests.faults.server import Server
from tests.integration.test_several_stores import STAMP, ending, keys_of, take

MODEL = "mover"


@pytest.fixture(scope="module")
def other(has_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("other"), fsync="everysec")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def places(fresh_redis: str, other: Server) -> StorePlaces:
    with other.client() as client:
        client.flushall()
    return StorePlaces(StorePlace(fresh_redis), {"b": StorePlace(other.url)})


@pytest.fixture
def stores(places: StorePlaces) -> Iterator[RedisStores]:
    with closing(StoreMap(places).open()) as made:
        assert isinstance(made, RedisStores)
        made.announce_model(ModelInfo(MODEL))
        yield made


def new_job(partition: int = 0, key: str = "") -> NewJob:
    return NewJob(id=new_job_id(MODEL, partition), version="1", input=Payload("application/json", b"7"), idempotency_key=key)


def shown(stores: RedisStores) -> tuple[int, int, int]:
    info = stores.stored_models()[MODEL].info
    assert info is not None
    return info.first, info.since, info.held


def test_a_move_goes_on_wherever_it_was_broken_off(stores: RedisStores, places: StorePlaces, other: Server) -> None:
    [early] = stores.submit([new_job(key="early")])
    seen = []
    while True:
        # Each step by another mover, as if the one before had been killed.
        moving = StoreMove(stores, places, MODEL, "b")
        step = moving.next_step()
        if step is MoveStep.DRAIN:
            break
        moving.take(step)
        moving.take(step)
        seen.append((step, shown(stores)))
    assert seen == [(MoveStep.PREPARE, (0, 0, 2)), (MoveStep.SWITCH, (1, 0, 2))]
    assert stores.submit([new_job()])[0].status is SubmitStatus.CLOSED
    assert stores.submit([new_job(key="early")])[0].id == early.id
    [late] = stores.submit([new_job(partition=1)])
    assert keys_of(other.url, f"{MODEL}:1") > 0
    assert moving.left() == 1
    stores.finish([ending(take(stores, MODEL))], worker="w", stamp=STAMP)
    assert moving.left() == 0
    assert [stores.read(job.id) is not None for job in (early, late)] == [True, True]


def test_a_model_without_any_job_moves_as_well(stores: RedisStores, places: StorePlaces) -> None:
    moving = StoreMove(stores, places, MODEL, "b")
    while (step := moving.next_step()) is not MoveStep.DRAIN:
        moving.take(step)
    assert (shown(stores), moving.left()) == ((1, 0, 2), 0)


def test_what_is_not_there_or_already_there_is_refused(stores: RedisStores, places: StorePlaces) -> None:
    stores.submit([new_job()])
    with pytest.raises(NotFound, match="the settings name no store 'c'"):
        StoreMove(stores, places, MODEL, "c").check()
    with pytest.raises(NotFound, match="no model 'movr' is known") as told:
        StoreMove(stores, places, "movr", "b").check()
    assert told.value.hint == "did you mean mover?"
    with pytest.raises(Conflict, match="lies in the store 'main' already"):
        StoreMove(stores, places, MODEL, "main").check()


def test_the_same_store_under_another_address_is_refused(fresh_redis: str, other: Server) -> None:
    alias = other.url.replace("127.0.0.1", "localhost")
    twice = StorePlaces(StorePlace(other.url), {"b": StorePlace(alias)})
    with closing(StoreMap(twice).open()) as opened:
        assert isinstance(opened, RedisStores)
        opened.announce_model(ModelInfo(MODEL))
        opened.submit([new_job()])
        with pytest.raises(Conflict, match="are the same store under two addresses: nothing was moved"):
            StoreMove(opened, twice, MODEL, "b").check()


@pytest.mark.parametrize(
    ("setting", "value", "told"),
    [
        ("maxmemory", "1mb", "store 'b': Redis refuses to write"),
        ("min-replicas-to-write", "1", "store 'b': Redis refuses to write"),
    ],
)
def test_a_store_that_takes_no_jobs_is_refused_and_nothing_changes(
    stores: RedisStores, places: StorePlaces, other: Server, setting: str, value: str, told: str
) -> None:
    with other.client() as client:
        before = client.config_get(setting)[setting]
        client.config_set(setting, value)
        try:
            with pytest.raises(StoreUnavailable, match=told):
                StoreMove(stores, places, MODEL, "b").check()
        finally:
            client.config_set(setting, before)
    assert shown(stores) == (0, 0, 1)


def test_a_store_that_is_away_is_refused(stores: RedisStores, fresh_redis: str) -> None:
    gone = StorePlaces(StorePlace(fresh_redis), {"b": StorePlace("redis://127.0.0.1:1")})
    with pytest.raises(StoreUnavailable, match="store 'b': Redis cannot be reached"):
        StoreMove(stores, gone, MODEL, "b").check()


def test_a_user_without_the_rights_is_refused(stores: RedisStores, fresh_redis: str, other: Server) -> None:
    with other.client() as client:
        client.function_flush()
        client.acl_setuser(
            "poor", enabled=True, passwords=["+secret"], keys=["ps:*"], commands=["+fcall", "+set", "+client", "+hello"]
        )
        poor = StorePlaces(StorePlace(fresh_redis), {"b": StorePlace(other.url.replace("//", "//poor:secret@"))})
        try:
            with pytest.raises(StoreUnavailable, match="store 'b': Redis lacks the functions") as told:
                StoreMove(stores, poor, MODEL, "b").check()
        finally:
            client.acl_deluser("poor")
    assert "penstock store load" in (told.value.hint or "")

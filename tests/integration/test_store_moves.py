"""`penstock store move` on two real servers: its steps, where it goes on, and the stores that it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
import redis

from penstock.broker.partitions import queues_of_model
from penstock.broker.records import NewJob, SubmitStatus
from penstock.broker.store.audit import Act, read_acts
from penstock.broker.store.ops import prefix
from penstock.broker.stores.model_queues import MoveStep
from penstock.broker.stores.moves import StoreMove
from penstock.broker.stores.places import StoreMap, StorePlace, StorePlaces
from penstock.broker.stores.thread_stores import RedisStores
from penstock.cli.exits import StartError
from penstock.cli.ops.store_move import noted
from penstock.cli.serve.start_watch import check_places
from penstock.errors import Conflict, NotFound, StoreUnavailable
from penstock.extensions.pipelines.spec import PipelineStage
from penstock.job import Payload, new_job_id
from penstock.model_spec import ModelInfo, VersionInfo
from penstock.workers.fleet.forgotten_versions import PartitionKeeper
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


def test_a_move_that_fails_says_so_in_the_audit_log_and_one_whose_store_went_away_leaves_its_end_open(
    stores: RedisStores,
) -> None:
    for error in (Conflict("changed by others"), StoreUnavailable("away")):
        with pytest.raises(type(error)), noted(stores, Act("move store", on={"model": "mover"})):
            raise error
    with noted(stores, Act("move store", on={"model": "mover"})):
        assert stores.run(read_acts())[0].outcome == ""
    assert [act.outcome for act in stores.run(read_acts())] == ["done", "", "failed: conflict"]


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


def test_a_stage_of_a_pipeline_is_refused_with_what_to_do_and_the_pipeline_itself_is_not(
    stores: RedisStores, places: StorePlaces
) -> None:
    stages = (PipelineStage("one", MODEL),)
    stores.announce_model(ModelInfo("line", versions={"1": VersionInfo(stages=stages)}))
    stores.submit([new_job()])
    with pytest.raises(Conflict, match=f"{MODEL} is a stage of the pipeline line") as refused:
        StoreMove(stores, places, MODEL, "b").check()
    assert "serve the model under another name" in (refused.value.hint or "")
    assert shown(stores) == (0, 0, 1)
    StoreMove(stores, places, "line", "b").check()


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


def moved(stores: RedisStores, places: StorePlaces, to: str) -> StoreMove:
    moving = StoreMove(stores, places, MODEL, to)
    moving.check()
    while (step := moving.next_step()) is not MoveStep.DRAIN:
        moving.take(step)
    return moving


def test_queues_that_a_model_has_left_leave_all_lists_once_nothing_of_them_is_kept(
    stores: RedisStores, places: StorePlaces, fresh_redis: str
) -> None:
    [early] = stores.submit([new_job(key="early")])
    stale = StoreMap(places)
    with closing(stale.open()) as unaware:
        assert unaware.read(early.id) is not None
        moved(stores, places, "b")
        stores.finish([ending(take(stores, MODEL))], worker="w", stamp=STAMP)
        later = stores.now() + 49 * 3_600.0

        def look(now: float) -> tuple[int, int, int]:
            # By another worker each time, as if the one before had been killed.
            PartitionKeeper().look(stores, {info.name: info for info in stores.models()}, now)
            return shown(stores)

        assert look(later) == (1, 0, 2), "its result is kept"
        with closing(redis.Redis.from_url(fresh_redis)) as client:
            # The result has expired, and a sweep collects it.
            client.zadd(f"{prefix(MODEL)}final", {early.id.serial: 1})
        assert stores.sweep(MODEL).collected == 1
        assert look(stores.now()) == (1, 0, 2), "a repeat may still ask for it"
        assert look(later) == (1, 1, 2)
        assert look(later) == (1, 1, 2)
        info = stores.stored_models()[MODEL].info
        assert info is not None
        assert queues_of_model(info) == [f"{MODEL}:1"]
        for store in (stores, unaware):
            assert store.submit([new_job()])[0].status is SubmitStatus.CLOSED
        assert stores.submit([new_job(partition=1)])[0].status is SubmitStatus.CREATED


async def test_a_gateway_sends_no_job_to_a_queue_that_was_forgotten(stores: RedisStores, places: StorePlaces) -> None:
    moved(stores, places, "b")
    assert stores.forget_closed(MODEL, closed_before=stores.now() + 60.0) == [0]
    gateway = StoreMap(places).open_async()
    await gateway.start()
    try:
        assert (await gateway.submit(new_job())).status is SubmitStatus.CLOSED
        assert (await gateway.submit(new_job(partition=1))).status is SubmitStatus.CREATED
    finally:
        await gateway.close()


def test_a_model_moves_away_from_a_store_that_is_full(stores: RedisStores, places: StorePlaces, other: Server) -> None:
    moved(stores, places, "b")
    [kept] = stores.submit([new_job(partition=1)])
    with other.client() as client:
        client.config_set("maxmemory", "1mb")
        try:
            with pytest.raises(StoreUnavailable, match="store 'b': Redis refuses to write"):
                stores.submit([new_job(partition=1)])
            moving = moved(stores, places, "main")
            assert stores.submit([new_job(partition=2)])[0].status is SubmitStatus.CREATED
            assert moving.left() == 1
            # What a full store holds is run and settled.
            stores.finish([ending(take(stores, kept.id.queue))], worker="w", stamp=STAMP)
        finally:
            client.config_set("maxmemory", "0")
    assert moving.left() == 0


def test_a_store_that_fills_up_while_a_model_moves_there_refuses_new_jobs_and_loses_none(
    stores: RedisStores, places: StorePlaces, other: Server
) -> None:
    [early] = stores.submit([new_job()])
    moving = StoreMove(stores, places, MODEL, "b")
    moving.take(moving.next_step())
    with other.client() as client:
        client.config_set("maxmemory", "1mb")
        try:
            moving.take(moving.next_step())
            with pytest.raises(StoreUnavailable, match="store 'b': Redis refuses to write"):
                stores.submit([new_job(partition=1)])
            assert take(stores, MODEL).id == early.id
        finally:
            client.config_set("maxmemory", "0")
    assert stores.submit([new_job(partition=1)])[0].status is SubmitStatus.CREATED


def test_a_start_without_the_store_of_a_model_is_refused_until_nothing_lies_there(
    stores: RedisStores, places: StorePlaces, fresh_redis: str
) -> None:
    moved(stores, places, "b")
    with pytest.raises(StartError, match=f"jobs and results of {MODEL} lie in the store 'b'") as refused:
        check_places(fresh_redis, ["main"])
    assert "penstock store move MODEL --to main" in (refused.value.hint or "")
    check_places(fresh_redis, ["main", "b"])
    moved(stores, places, "main")
    with pytest.raises(StartError):
        check_places(fresh_redis, ["main"])
    assert stores.forget_closed(MODEL, closed_before=stores.now() + 60.0) == [0, 1]
    check_places(fresh_redis, ["main"])

"""A real cluster: every call finds its node, and gateway and worker go on when a primary is killed or a slot moves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from penstock.broker.records import Absent, ClaimRequest, NewJob, Wake
from penstock.broker.server.users import CELERY, FLOWER, GATEWAY, WORKER, setuser_lines
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.links.refusals import AskAgain
from penstock.broker.store.links.topology import slot_of
from penstock.broker.store.ops import prefix, queue_name
from penstock.broker.store.registry import WORKERS_KEY
from penstock.broker.store.sync import RedisStore
from penstock.broker.store.wake_ups import WakeUps
from penstock.cli.exits import StartError
from penstock.cli.ops.checks import Level
from penstock.cli.ops.flower_process import StoreQueues
from penstock.cli.ops.store_check import celery_off, reachable
from penstock.cli.serve.start_watch import check_store
from penstock.errors import StoreUnavailable
from penstock.job import Payload, new_job_id
from penstock.model_spec import ModelInfo, WorkerInfo
from penstock.settings.tables import Settings
from tests.acceptance.gateway_process import gateway_process
from tests.eventually import eventually
from tests.faults.server import Server
from tests.integration.test_store_schemes import stock
from tests.integration.test_store_sentinel import MODELS, REPLICATED
from tests.integration.worker_process import WorkerProcess, await_listening
from tests.steady_load import SteadyLoad
from tests.valkey_cluster import Cluster, valkey_cluster

WORKER_INFO = WorkerInfo("w", "here", 1, 0.0)


@pytest.fixture(scope="module")
def cluster(has_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with valkey_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def store(cluster: Cluster) -> Iterator[RedisStore]:
    with closing(RedisStore(cluster.url)) as store:
        yield store


def new_job(model: str) -> NewJob:
    return NewJob(id=new_job_id(model), version="1", input=Payload("application/json", b"7"))


def models_apart(cluster: Cluster) -> list[str]:
    """A model on each primary."""
    found: dict[int, str] = {}
    for number in range(1_000):
        found.setdefault(cluster.primary_of(prefix(f"m{number}")).port, f"m{number}")
        if len(found) == 3:
            break
    return list(found.values())


def test_queues_lie_on_several_nodes_and_each_has_its_functions_and_listeners(cluster: Cluster, store: RedisStore) -> None:
    models = models_apart(cluster)
    for model in models:
        with closing(WakeUps(cluster.url, model, "w").open()) as wakes:
            assert store.claim(ClaimRequest(model, "1", "w", "n1", 4)).jobs == ()
            store.submit([new_job(model)])
            assert eventually(wakes.read) == [Wake()]
            assert len(store.claim(ClaimRequest(model, "1", "w", "n2", 4)).jobs) == 1
            assert store.absent(model, sweeper="s", pace_s=0.02, again_s=0.0).fresh == 0
        # Nobody listens any more.
        eventually(partial(is_gone, store, model))
    assert [len(store.newest(model)) for model in models] == [1, 1, 1]


def test_a_slot_that_moves_takes_its_queue_along_whole(cluster: Cluster, store: RedisStore) -> None:
    """A call in the midst of a move that goes key by key would see a part of its keys: it waits for the end of the move."""
    key, *_ = models_apart(cluster)
    here, there = cluster.primary_of(prefix(key)), other_primary(cluster, prefix(key))
    store.submit([new_job(key) for _ in range(50)])
    with closing(WakeUps(cluster.url, key, "w").open()) as wakes:
        cluster.move_slot(prefix(key), there)
        with pytest.raises(StoreUnavailable):
            eventually(wakes.read)
    assert store.stats(key).ready[0] == 50
    with cluster.half_moved(slot_of(prefix(key)), there, here, stays=queue_name(key)), pytest.raises(AskAgain):
        store.stats(key)
    store.submit([new_job(key)])
    assert store.stats(key).ready[0] == 51


def test_no_function_runs_on_a_part_of_its_keys_also_where_its_own_key_is_still_there(
    cluster: Cluster, store: RedisStore
) -> None:
    """The registry's functions have a key that exists, so a node would run them while their other keys are gone already."""
    store.announce_worker(WORKER_INFO)
    here, there = cluster.primary_of(WORKERS_KEY), other_primary(cluster, WORKERS_KEY)
    with cluster.half_moved(slot_of(WORKERS_KEY), here, there, stays=WORKERS_KEY), pytest.raises(AskAgain):
        store.announce_worker(replace(WORKER_INFO, declared={"other": ("1",)}))
    edition = store.announce_worker(WORKER_INFO)
    assert store.announce_worker(WORKER_INFO) == edition
    assert [worker.name for worker in store.workers()] == [WORKER_INFO.name]


def test_nobody_counts_as_gone_just_after_a_slot_moved(cluster: Cluster) -> None:
    key, *_ = models_apart(cluster)
    with closing(RedisStore(cluster.url)) as store:
        store.submit([new_job(key)])
        store.claim(ClaimRequest(queue=key, version="1", worker="lost", nonce="n", limit=1))
        assert store.absent(key, sweeper="s", pace_s=0.001, again_s=0.0).fresh > 0
        cluster.move_slot(prefix(key), other_primary(cluster, prefix(key)))
        assert store.stats(key).leased > 0
        assert store.absent(key, sweeper="s", pace_s=0.001, again_s=0.0) == Absent()


def is_gone(store: RedisStore, model: str) -> bool:
    return store.absent(model, sweeper="s", pace_s=0.02, again_s=0.0).gone == ("w",)


def other_primary(cluster: Cluster, key: str) -> Server:
    own = cluster.primary_of(key)
    return next(found for model in models_apart(cluster) if (found := cluster.primary_of(prefix(model))) is not own)


def test_a_store_is_looked_at_on_all_its_nodes(cluster: Cluster) -> None:
    settings = Settings.load(env={"PENSTOCK_REDIS_URL": cluster.url}).store
    found = reachable(cluster.url, settings)
    assert found.level is Level.OK, found
    assert "3 primaries and 3 replicas" in found.text
    off = celery_off(settings)
    assert off is not None
    assert "no Celery clients" in off.text
    with cluster.servers[4].client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        assert reachable(cluster.url, settings).level is Level.FAIL
        with pytest.raises(StartError, match=str(cluster.servers[4].port)):
            check_store(cluster.url, settings, print)
        client.config_set("maxmemory-policy", "noeviction")
    with pytest.raises(StartError, match="it is a node of a cluster"):
        check_store(f"redis://127.0.0.1:{cluster.servers[0].port}", settings, print)


def test_what_was_accepted_is_done_though_a_primary_is_killed_and_slots_move_under_load(
    cluster: Cluster, tmp_path: Path, redis_url: str
) -> None:
    key, env = prefix("paced"), {"PENSTOCK_STORE__CELERY_URL": redis_url}
    with (
        WorkerProcess(cluster.url, tmp_path / "worker", MODELS, env) as worker,
        gateway_process(cluster.url, tmp_path / "gateway", models=MODELS, env=REPLICATED) as gateway,
    ):
        name = worker.await_ready()
        with stock(redis_url) as app:  # control and events go over a Redis of their own
            await_listening(app, name)
        with SteadyLoad(str(gateway.base_url), ["paced"]) as load:
            load.await_more(20)
            old = cluster.primary_of(key)
            old.kill()
            cluster.await_promotion(key, old)
            cluster.come_back(old, key)
            load.await_more(20)
            cluster.move_slot(key, other_primary(cluster, key))
            load.await_more(20)
            cluster.move_slot(key, other_primary(cluster, key), keys_at_once=10)
            load.await_more(20)
        assert load.refused
        assert load.ends() == {"succeeded": len(load.accepted)}


async def test_users_may_do_what_a_cluster_takes(cluster: Cluster, store: RedisStore) -> None:
    store.load_functions()
    passwords = dict.fromkeys((GATEWAY, WORKER, FLOWER, CELERY), "secret")
    for server in cluster.servers:
        with server.client() as client:
            for line in setuser_lines(passwords):
                client.execute_command(*line.split(" "))
    model, *_ = models_apart(cluster)
    for user in (WORKER, GATEWAY):
        url = cluster.url.replace("://", f"://{user}:secret@")
        with closing(RedisStore(url)) as theirs, closing(WakeUps(url, model, "w").open()):
            theirs.submit([new_job(model)])
            theirs.absent(model, sweeper=user, pace_s=0.02, again_s=0.0)
    many = AsyncStore(cluster.url.replace("://", f"://{GATEWAY}:secret@"), replicated=True)
    await many.start()
    await many.submit(new_job(model))
    assert await many.health() is not None
    await many.close()


async def test_flower_counts_the_queues_of_all_nodes(cluster: Cluster, store: RedisStore) -> None:
    models = models_apart(cluster)
    for model in models:
        store.announce_model(ModelInfo(model, "1"))
        store.submit([new_job(model)])
    rows = await StoreQueues(cluster.url).queues([])
    counted = {row["name"]: row["messages"] for row in rows}
    assert all(counted[queue_name(model)] == store.stats(model).ready[0] > 0 for model in models)

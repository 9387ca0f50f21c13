"""A real cluster: every call finds its node, and gateway and worker go on when a primary is killed or a slot moves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from penstock.broker.records import ClaimRequest, NewJob
from penstock.broker.store.notifications import Wake, WakeUps
from penstock.broker.store.ops import prefix
from penstock.broker.store.sync import RedisStore
from penstock.cli.exits import StartError
from penstock.cli.ops.checks import Level
from penstock.cli.ops.store_check import celery_off, reachable
from penstock.cli.serve.start_watch import check_store
from penstock.errors import StoreUnavailable
from penstock.job import Payload, new_job_id
from penstock.settings.store_url import StoreRequirement
from penstock.settings.tables import Settings
from tests.acceptance.gateway_process import gateway_process
from tests.eventually import eventually
from tests.faults.server import Server
from tests.integration.test_store_schemes import stock
from tests.integration.test_store_sentinel import MODELS, REPLICATED, Load, states
from tests.integration.worker_process import WorkerProcess, await_listening
from tests.valkey_cluster import Cluster, valkey_cluster


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
    cluster.move_slot(prefix(key), here, keys_at_once=7)
    store.submit([new_job(key)])
    assert store.stats(key).ready[0] == 51


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
            check_store(cluster.url, StoreRequirement.NO_EVICTION, print)
        client.config_set("maxmemory-policy", "noeviction")
    with pytest.raises(StartError, match="it is a node of a cluster"):
        check_store(f"redis://127.0.0.1:{cluster.servers[0].port}", StoreRequirement.NONE, print)


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
        with Load(gateway) as load:
            load.await_more(50)
            old = cluster.primary_of(key)
            old.kill()
            cluster.await_promotion(key, old)
            cluster.come_back(old, key)
            load.await_more(50)
            cluster.move_slot(key, other_primary(cluster, key))
            load.await_more(50)
            cluster.move_slot(key, other_primary(cluster, key), keys_at_once=10)
            load.await_more(50)
        assert load.refused
        eventually(lambda: states(gateway, load.accepted) == {"succeeded"}, timeout_s=60.0)

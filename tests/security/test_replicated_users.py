"""A28: each role does all of its work with its own user in stores that have replicas, and a right that it lacks is a defect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from penstock.broker.server.users import CELERY, FLOWER, GATEWAY, WORKER, setuser_lines
from penstock.broker.store.sync import RedisStore
from tests.eventually import eventually
from tests.extensions.pipelines.integration.pipeline_stack import chain
from tests.faults.server import Server
from tests.integration.worker_process import HANDLERS
from tests.stack import Stack
from tests.valkey_cluster import valkey_cluster

STAGES = {name: {"source": f"{HANDLERS / 'stages.py'}:Add", "max_wait_s": 0.0} for name in ("a", "b", "c")}
SECRET = "secret"


@contextmanager
def two_servers(folder: Path) -> Iterator[tuple[str, list[Server]]]:
    """A primary and its replica."""
    primary = Server(folder / "primary", extra={"repl-diskless-sync-delay": "0"})
    replica = Server(folder / "replica", extra={"replicaof": f"127.0.0.1 {primary.port}"})
    try:
        primary.start()
        replica.start()
        with primary.client() as client:
            eventually(lambda: client.set("x", "1") and client.execute_command("WAITAOF", 1, 1, 100) == [1, 1], timeout_s=20.0)
        yield primary.url, [primary, replica]
    finally:
        replica.stop()
        primary.stop()


@contextmanager
def six_nodes(folder: Path) -> Iterator[tuple[str, list[Server]]]:
    """A cluster whose primaries have a replica each."""
    with valkey_cluster(folder) as cluster:
        yield cluster.url, cluster.servers


def let_in(servers: Sequence[Server]) -> None:
    for server in servers:
        with server.client() as client:
            for line in setuser_lines(dict.fromkeys((GATEWAY, WORKER, FLOWER, CELERY), SECRET)):
                client.execute_command(*line.split(" "))
            client.acl_log_reset()


def refused(servers: Sequence[Server]) -> list[tuple[str, str, str]]:
    """Who was refused what, on all servers. A server that the test does not reach fails it."""
    entries: list[dict[str, Any]] = []
    for server in servers:
        with server.client() as client:
            entries += client.acl_log()
    return [(entry["username"], entry["reason"], entry["object"]) for entry in entries]


@pytest.mark.parametrize("servers", [two_servers, six_nodes], ids=["a server", "a cluster"])
def test_gateway_and_worker_may_do_what_a_replicated_store_and_a_pipeline_need(
    servers: Any, has_server: None, tmp_path: Path, redis_url: str
) -> None:
    # Regression: a worker submits the stages of a pipeline, and its user lacked WAITAOF: no submit was ever confirmed.
    with servers(tmp_path) as (url, all_servers):
        store = RedisStore(url)
        store.load_functions()
        store.close()
        let_in(all_servers)
        env = {"PENSTOCK_STORE__DURABILITY": "replicated"}
        env |= {"PENSTOCK_STORE__CELERY_URL": redis_url} if "+cluster" in url else {}
        with Stack(tmp_path / "stack", STAGES, store=url.replace("://", f"://{WORKER}:{SECRET}@"), env=env) as stack:
            stack.start_worker(pipelines={"chain": chain()})
            stack.redis_url = url.replace("://", f"://{GATEWAY}:{SECRET}@")
            stack.start_gateway()
            eventually(lambda: "chain" in [model["name"] for model in stack.client.models()], timeout_s=60.0)
            use(stack)
        assert refused(all_servers) == []


def use(stack: Stack) -> None:
    """Submit in each way, read, list, cancel and change: what the two roles do for their callers."""
    http = stack.http
    assert stack.client.predict("chain", {"n": 1})["n"] == 4
    job = http.post("/v1/models/chain/jobs", json={"n": 1}, headers={"Idempotency-Key": "k"}).json()["id"]
    assert http.post("/v1/models/chain/jobs", json={"n": 1}, headers={"Idempotency-Key": "k"}).json()["id"] == job
    assert http.get(f"/v1/jobs/{job}/result", params={"wait": "20"}).json()["n"] == 4
    later = http.post("/v1/models/a/jobs", json={"n": 1}, params={"delay_s": 600}).json()["id"]
    assert http.post(f"/v1/jobs/{later}/cancel").status_code in (200, 202)
    assert http.get("/v1/jobs").status_code == 200
    assert http.get("/v1/queues").status_code == 200
    assert http.get("/metrics").status_code == 200


def test_a_worker_may_not_more_than_wait_for_a_replica(has_server: None, tmp_path: Path) -> None:
    with two_servers(tmp_path) as (url, all_servers):
        let_in(all_servers)
        with redis.Redis.from_url(url.replace("://", f"://{WORKER}:{SECRET}@")) as worker:
            assert worker.execute_command("WAITAOF", 0, 0, 1) == [1, 1]
            with pytest.raises(redis.exceptions.NoPermissionError):
                worker.execute_command("WAIT", 0, 1)

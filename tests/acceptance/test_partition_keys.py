"""Gateways that differ from each other and from the registry: one job per key, and no job for what was forgotten."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.broker.partitions import queues_of_model
from penstock.broker.store import ops
from penstock.broker.store.registry import StoredRollout
from penstock.broker.store.sync import RedisStore
from penstock.job import new_serial, parse_job_id
from penstock.model_spec import ModelInfo, VersionInfo
from penstock.rollout import FORGOTTEN_AFTER_S, Rollout
from penstock.workers.fleet import forgotten_versions
from penstock.workers.fleet.announce import announced
from tests.acceptance.gateway_process import GatewayClient, gateway_process
from tests.eventually import eventually

KEYS = 200


def models(partitions: int) -> dict[str, Any]:
    return {"m": {"source": "m.py", "partitions": partitions}}


@pytest.fixture
def gateways(fresh_redis: str, tmp_path: Path) -> Iterator[Sequence[GatewayClient]]:
    """Yield two gateways of one store, with 4 and 2 partitions in their settings."""
    with (
        gateway_process(fresh_redis, tmp_path / "four", models=models(4)) as four,
        gateway_process(fresh_redis, tmp_path / "two", models=models(2)) as two,
    ):
        yield four, two


def asked(gateway: httpx2.Client, key: str) -> str:
    answer = gateway.post("/v1/models/m/jobs", json=1, headers={"idempotency-key": key})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def test_gateways_with_other_numbers_of_partitions_make_one_job_of_a_key(gateways: Sequence[GatewayClient]) -> None:
    """Regression: each placed the key by the number in its own settings, and 89 of 200 keys made two jobs."""
    keys = [f"key-{number}" for number in range(KEYS)]
    with ThreadPoolExecutor(8) as pool:
        calls = [[pool.submit(asked, gateway, key) for gateway in gateways] for key in keys]
        found = [{call.result() for call in pair} for pair in calls]
    assert [len(ids) for ids in found] == [1] * KEYS


# --- gateways that stand still ------------------------------------------------------------------------------------------------


@contextmanager
def stopped(gateway: GatewayClient) -> Iterator[None]:
    """Within the block the gateway's process stands still, as one whose machine is suspended; what is sent to it waits."""
    gateway.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        gateway.process.send_signal(signal.SIGCONT)


def posted(gateway: httpx2.Client, path: str, key: str = "") -> httpx2.Response:
    return gateway.post(path, json=1, headers={"idempotency-key": key} if key else {})


def test_a_gateway_that_stood_still_refuses_jobs_of_a_version_that_was_forgotten_meanwhile(
    fresh_redis: str, tmp_path: Path
) -> None:
    """Regression: it answered with a 202, and the job waited for ever in a queue that nobody swept."""
    info = ModelInfo("m", "1", versions={"1": VersionInfo(), "2": VersionInfo()}, partitions=1, held=1)
    with closing(RedisStore(fresh_redis)) as store, ThreadPoolExecutor(8) as pool:
        store.announce_model(info)
        assert store.swap_rollout("m", StoredRollout(), Rollout().load("2", {"source": "m.py"}))
        with gateway_process(fresh_redis, tmp_path) as gateway:
            assert posted(gateway, "/v1/models/m/versions/2/jobs").status_code == 202
            store.cancel(store.newest("m", limit=1)[0])
            with stopped(gateway):
                late = [pool.submit(posted, gateway, "/v1/models/m/versions/2/jobs") for _ in range(8)]
                rollout = store.stored_rollouts()["m"]
                assert store.swap_rollout("m", rollout, rollout.rollout.unload("2", 0.0))
                forgotten_versions.forget(store, now=FORGOTTEN_AFTER_S + 1.0)
                assert store.rollouts() == {}
            assert {call.result().json()["code"] for call in late} == {"not_found"}
            assert store.stats("m").depth == 0


def test_a_closing_that_came_too_late_costs_no_job(fresh_redis: str, tmp_path: Path) -> None:
    """A worker that stood still closes what was loaded anew: a gateway that is refused there opens it."""
    with closing(RedisStore(fresh_redis)) as store, gateway_process(fresh_redis, tmp_path, models=models(2)) as gateway:
        for queue in ("m", "m:1"):
            store.retire(queue, "1")
            store.retire(queue)
        keys = [f"key-{number}" for number in range(16)]
        found = [asked(gateway, key) for key in keys]
        assert [asked(gateway, key) for key in keys] == found
        assert sum(store.stats(queue).depth for queue in ("m", "m:1")) == len(keys)


def test_a_worker_lost_while_it_changes_the_number_leaves_gateways_with_the_old_one(fresh_redis: str, tmp_path: Path) -> None:
    """Its queues already refuse what the old number placed, and the registry still names that number."""
    with closing(RedisStore(fresh_redis)) as store, gateway_process(fresh_redis, tmp_path, models=models(2)) as gateway:
        for queue in ("m", "m:1"):
            store.advance(queue, 1)
        keys = [f"key-{number}" for number in range(16)]
        found = [asked(gateway, key) for key in keys]
        assert [asked(gateway, key) for key in keys] == found
        assert [(info.partitions, info.placing) for info in store.models()] == [(2, 1)]


def test_a_key_meets_its_first_job_at_a_gateway_that_stood_still_while_the_number_changed(
    fresh_redis: str, tmp_path: Path
) -> None:
    """The request lies there since before the change, and its repeat is asked at another gateway."""
    keys = [f"key-{number}" for number in range(16)]
    with (
        closing(RedisStore(fresh_redis)) as store,
        ThreadPoolExecutor(len(keys)) as pool,
        gateway_process(fresh_redis, tmp_path / "slow", models=models(1)) as slow,
        gateway_process(fresh_redis, tmp_path / "quick", models=models(1)) as quick,
    ):
        with stopped(slow):
            late = [pool.submit(asked, slow, key) for key in keys]
            for partitions in (4, 3):
                number_changed(store, partitions)
            eventually(lambda: parse_job_id(asked(quick, new_serial())).partition > 0)
            first = [asked(quick, key) for key in keys]
        assert [call.result() for call in late] == first


def number_changed(store: RedisStore, partitions: int) -> None:
    """As a worker with these settings does it that starts."""
    found = store.stored_models()["m"]
    assert found.info is not None
    wanted = announced(replace(found.info, partitions=partitions), found.info)
    store.run_all([ops.advance(queue, wanted.placing) for queue in queues_of_model(wanted)])
    assert store.swap_model("m", found, wanted)

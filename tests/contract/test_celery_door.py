"""The door of Celery's clients on a real store: what a round of it costs, and what it leaves behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from penstock.broker.blobs.files import LocalBlobs
from penstock.broker.store.sync import RedisStore
from penstock.workers.fleet.celery_clients import CeleryClients

DRAWN_AT_ONCE = 64


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as found:
        yield found


@pytest.fixture
def store(redis_url: str) -> Iterator[RedisStore]:
    made = RedisStore(redis_url)
    yield made
    made.close()


@pytest.fixture
def door(store: RedisStore, tmp_path: Path) -> CeleryClients:
    return CeleryClients(store, LocalBlobs(tmp_path), lambda: ["known"], revoked=())


def message(id: str, task: str) -> bytes:
    """Return what kombu puts into a queue."""
    parts = {"body": "[[1], {}, {}]", "headers": {"id": id, "task": task}, "content-type": "application/json"}
    return json.dumps(parts).encode()


def reads(client: Any) -> int:
    """How often Redis read from a connection: commands that were sent together are mostly one read."""
    return int(client.info("stats")["total_reads_processed"])


def test_a_round_full_of_tasks_of_an_unknown_model_is_answered_in_few_round_trips(client: Any, door: CeleryClients) -> None:
    """Regression: each of them cost a round trip, while those behind it waited."""
    door.run_once(0.0)
    client.lpush("penstock", *(message(f"no-{n}", "penstock.nosuch") for n in range(DRAWN_AT_ONCE)))
    before = reads(client)
    door.run_once(0.0)
    assert reads(client) - before < DRAWN_AT_ONCE / 2
    answers = client.mget([f"celery-task-meta-no-{n}" for n in range(DRAWN_AT_ONCE)])
    assert all(json.loads(found)["result"]["exc_type"] == "BadRequest" for found in answers)
    assert not client.zcard("ps:{*}:foreign")

"""A worker that starts while the store has reached its limit of memory: only workers can free that memory."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import redis

from penstock.broker.store.registry import KeptTimes
from penstock.broker.store.sync import RedisStore
from penstock.embedded.server import EmbeddedServer
from penstock.errors import StoreUnavailable
from tests.eventually import eventually
from tests.integration.worker_process import JobClient, WorkerProcess

ROOT = Path(__file__).resolve().parents[2]
MODELS = {"square": {"source": str(ROOT / "examples" / "square.py")}}


@pytest.mark.usefixtures("has_server")
def test_a_worker_that_starts_on_a_full_store_runs_what_waits_and_misses_no_beat_and_no_sweep(tmp_path: Path) -> None:
    """Regression: notes of slots' places and the name of the store were refused, which ended each beat and each sweep early."""
    with EmbeddedServer(tmp_path / "store", fsync="everysec") as server, redis.Redis.from_url(server.url) as client:
        with closing(JobClient(server.url, "square")) as jobs:
            ids = jobs.submit(*({"x": x} for x in range(20)))
            client.config_set("maxmemory", "1")
            with WorkerProcess(server.url, tmp_path / "w", MODELS, beat_s=0.2) as worker:
                assert {job.state.value for job in jobs.await_final(ids)} == {"succeeded"}
                worker.await_ready()
                eventually(lambda: client.keys("ps:slot:*"))
                assert worker.events("beat_missed") == worker.events("sweep_missed") == []
        client.config_set("maxmemory", "0")


@pytest.mark.usefixtures("has_server")
def test_at_the_limit_of_memory_learned_times_are_kept_and_the_store_has_a_name(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path, fsync="everysec") as server, redis.Redis.from_url(server.url) as client:
        with closing(RedisStore(server.url)) as store:
            store.unfinished("m", "1")
            client.config_set("maxmemory", "1")
            store.keep_learned_times("m", "cpu", KeptTimes({1: 0.5}, 1.0))
            assert store.learned_times("m") == {"cpu": KeptTimes({1: 0.5}, 1.0)}
            assert store.identity() == store.identity() != ""
        client.config_set("maxmemory", "0")


@pytest.mark.usefixtures("has_server")
def test_at_the_limit_of_memory_the_functions_of_another_version_are_refused_as_the_page_says(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path, fsync="everysec") as server, redis.Redis.from_url(server.url) as client:
        client.config_set("maxmemory", "1")
        with closing(RedisStore(server.url)) as store, pytest.raises(StoreUnavailable, match="refuses to write"):
            store.unfinished("m", "1")
        client.config_set("maxmemory", "0")

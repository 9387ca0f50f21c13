"""docs/production/backups.md, done with real servers: what was accepted before a copy is there after it is brought back."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from penstock import Client
from penstock.broker.store.sync import RedisStore
from tests.acceptance.test_cli import stopped
from tests.acceptance.warm_up import started
from tests.contract.dumps import RedisDump
from tests.contract.invariants import check_invariants
from tests.contract.model_queue import ModelQueue
from tests.eventually import eventually
from tests.faults.server import Server

HANDLER = "import penstock\n\n\n@penstock.model\ndef length(text: str) -> int:\n    return len(text)\n"
# Larger than what the store keeps itself, so its input is a file.
LARGE = "x" * 100_000
WAITING = 20


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "redis")
    server.start()
    yield server
    server.stop()


def test_a_state_folder_that_is_put_back_has_every_job_that_was_accepted(tmp_path: Path) -> None:
    (tmp_path / "length.py").write_text(HANDLER)
    (tmp_path / "penstock.toml").write_text('[models.length]\nsource = "length.py"\n')
    up = started(tmp_path)
    with Client(up.ready["url"]) as client:
        ended = client.submit("length", "abc", idempotency_key="one")
        assert ended.result(timeout_s=30) == 3
        # They wait, so that the copy has jobs that have not run.
        waiting = [client.submit("length", LARGE if place == 0 else "ab", delay_s=3_600.0) for place in range(WAITING)]
    assert stopped(up) == 0
    with tarfile.open(tmp_path / "backup.tar.gz", "w:gz") as copy:
        copy.add(tmp_path / ".penstock", ".penstock")
    shutil.rmtree(tmp_path / ".penstock")
    with tarfile.open(tmp_path / "backup.tar.gz") as copy:
        copy.extractall(tmp_path, filter="fully_trusted")
    up = started(tmp_path)
    try:
        with Client(up.ready["url"]) as client:
            assert client.job(ended.id).result(timeout_s=30) == 3
            assert client.submit("length", "abc", idempotency_key="one").id == ended.id
            assert {client.job(job.id).refresh().status for job in waiting} == {"queued"}
    finally:
        assert stopped(up) == 0


def test_a_copy_that_ends_in_the_middle_of_a_write_is_read_up_to_there(server: Server, tmp_path: Path) -> None:
    with closing(RedisStore(server.url)) as store, server.client() as client:
        queue = ModelQueue(store, "m", RedisDump(client, "m").dump)
        before = [queue.submit() for _ in range(20)]
        log = next((server.folder / "appendonlydir").glob("*.incr.aof"))
        whole = log.stat().st_size
        queue.submit()
        shutil.copytree(server.folder, tmp_path / "copy")
    with (tmp_path / "copy" / "appendonlydir" / log.name).open("r+b") as copied:
        copied.truncate(whole + 25)
    check_holds(Server(tmp_path / "copy"), [str(job) for job in before])


def test_a_snapshot_file_brings_jobs_and_functions_back(server: Server, tmp_path: Path) -> None:
    with closing(RedisStore(server.url)) as store, server.client() as client:
        queue = ModelQueue(store, "m", RedisDump(client, "m").dump)
        before = [queue.submit() for _ in range(20)]
        client.save()
    (tmp_path / "copy").mkdir()
    shutil.copy(server.folder / "dump.rdb", tmp_path / "copy")
    restored = Server(tmp_path / "copy", extra={"appendonly": "no"})
    restored.start()
    try:
        with restored.client() as client:
            assert client.function_list()
            client.config_set("appendonly", "yes")
            eventually(lambda: client.info("persistence")["aof_rewrite_in_progress"] == 0)
            assert client.info("persistence")["aof_last_bgrewrite_status"] == "ok"
    finally:
        restored.kill()
    check_holds(Server(tmp_path / "copy"), [str(job) for job in before])


def check_holds(server: Server, jobs: list[str]) -> None:
    """Start the server on what it finds, and run what waits there: exactly these jobs."""
    server.start()
    try:
        with closing(RedisStore(server.url)) as store, server.client() as client:
            queue = ModelQueue(store, "m", RedisDump(client, "m").dump)
            check_invariants(queue.dump())
            assert sorted(str(job.id) for job in queue.claim("w1", limit=64).jobs) == sorted(jobs)
    except redis.RedisError as error:
        pytest.fail(f"the restored server cannot be used: {error}")
    finally:
        server.stop()

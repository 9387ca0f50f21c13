"""The worker is a Celery worker: stock remote control, stock clients and stock Flower find what they expect."""

from __future__ import annotations

import base64
import json
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from penstock.broker.celery_app import broker_url
from penstock.job import JobState
from tests.eventually import eventually
from tests.faults.server import Server
from tests.integration.worker_process import FAULTY, JobClient, WorkerProcess, await_listening

MODEL = "faulty"
QUEUE = "penstock.{faulty}"


@pytest.fixture
def client(fresh_redis: str) -> Iterator[JobClient]:
    with closing(JobClient(fresh_redis, MODEL)) as client:
        yield client


@pytest.fixture
def stock(fresh_redis: str) -> Iterator[Celery]:
    """Yield a client that has none of penstock's code."""
    url = broker_url(fresh_redis)
    with Celery(broker=url, backend=url, set_as_current=False) as app:
        yield app


def worker(url: str, folder: Path, **table: Any) -> WorkerProcess:
    return WorkerProcess(url, folder, {MODEL: {"source": f"{FAULTY}:Faulty", **table}})


def test_a_stock_client_sends_a_task_and_gets_its_result(stock: Celery, fresh_redis: str, tmp_path: Path) -> None:
    with worker(fresh_redis, tmp_path):
        results = [
            stock.send_task("penstock.infer", args=[MODEL, {"do": "echo", "tag": tag}], queue=QUEUE) for tag in range(20)
        ]
        assert [result.get(timeout=60) for result in results] == list(range(20))


def test_a_stock_client_gets_the_error_of_its_item(stock: Celery, fresh_redis: str, tmp_path: Path) -> None:
    with worker(fresh_redis, tmp_path):
        failed = stock.send_task("penstock.infer", args=[MODEL, {"do": "fail", "tag": 7}], queue=QUEUE)
        error = failed.get(timeout=60, propagate=False)
    assert failed.state == "FAILURE"
    assert "refused 7" in str(error)


@pytest.mark.parametrize(
    ("name", "args"),
    [("another.task", [MODEL, 1]), ("penstock.infer", ["elsewhere", 1]), ("penstock.infer", [])],
)
def test_a_task_that_cannot_become_a_job_is_answered_and_leaves_no_job(
    stock: Celery, client: JobClient, fresh_redis: str, tmp_path: Path, name: str, args: list[Any]
) -> None:
    with worker(fresh_redis, tmp_path):
        rejected = stock.send_task(name, args=args, queue=QUEUE)
        rejected.get(timeout=60, propagate=False)
    assert rejected.state == "FAILURE"
    assert client.store.stats(MODEL).accepted == 0


MALFORMED = {
    "too deep": b'[["faulty", ' + b"[" * 100_000 + b"]" * 100_000 + b"], {}, {}]",
    "a number that no float holds": b'[["faulty", 1], {"deadline_s": 1' + b"0" * 5_000 + b"}, {}]",
    "the line of another owner": b'[["faulty", {"do": "echo", "tag": 1}], {"version": "1:somebody"}, {}]',
    "wrong types": b'[{"faulty": 1}, [], 7]',
}


def as_message(id: str, body: bytes) -> bytes:
    """Return what kombu puts into a queue for this body."""
    parts = {
        "body": base64.b64encode(body).decode(),
        "headers": {"id": id, "task": "penstock.infer"},
        "properties": {"body_encoding": "base64"},
        "content-type": "application/json",
    }
    return json.dumps(parts).encode()


def test_a_malformed_task_is_answered_once_and_costs_no_slot_a_turn(
    stock: Celery, client: JobClient, fresh_redis: str, tmp_path: Path
) -> None:
    """Deep JSON and huge numbers were a fault of the slot, which gave back its batch, every 15 seconds and for ever."""
    with worker(fresh_redis, tmp_path) as process, redis.Redis.from_url(fresh_redis) as store:
        for id, body in MALFORMED.items():
            store.lpush(QUEUE, as_message(id, body))
        good = stock.send_task("penstock.infer", args=[MODEL, {"do": "echo", "tag": 1}], queue=QUEUE)
        assert good.get(timeout=60) == 1
        for id in MALFORMED:
            told = stock.AsyncResult(id)
            assert "invalid_message" in str(told.get(timeout=60, propagate=False))
            assert told.state == "FAILURE"
        assert store.hgetall("ps:{faulty}:foreign") == {}
        assert store.hget("ps:{faulty}:counters", "foreign_rejected") == str(len(MALFORMED)).encode()
        assert process.events("slot_fault") == []
    assert client.store.stats(MODEL).accepted == 1


def test_remote_control_sees_and_stops_the_worker(stock: Celery, client: JobClient, fresh_redis: str, tmp_path: Path) -> None:
    with worker(fresh_redis, tmp_path) as process:
        name = process.await_ready()
        await_listening(stock, name)
        # With a destination the answer of that worker is enough, so no call waits for the whole timeout.
        inspect = stock.control.inspect(destination=[name], timeout=30.0)
        assert inspect.ping() == {name: {"ok": "pong"}}
        [queue] = inspect.active_queues()[name]
        assert queue["name"] == QUEUE
        [id] = client.submit({"do": "sleep", "seconds": 5.0, "tag": 1})
        [active] = eventually(lambda: inspect.active()[name])
        assert (active["id"], active["name"]) == (str(id), f"penstock.infer.{MODEL}")
        assert client.await_final([id])[0].state is JobState.SUCCEEDED
        stats = inspect.stats()[name]
        assert stats["total"] == {f"penstock.infer.{MODEL}": 1}
        assert stats["pool"]["slots"][0]["state"] == "ready"
        stock.control.broadcast("shutdown", destination=[name])
        assert process.exit_code(within_s=30.0) == 0


def test_the_pool_grows_and_shrinks_by_remote_control(stock: Celery, fresh_redis: str, tmp_path: Path) -> None:
    with worker(fresh_redis, tmp_path) as process:
        name = process.await_ready()
        await_listening(stock, name)
        # With a destination the answer of that worker is enough, so no call waits for the whole timeout.
        inspect = stock.control.inspect(destination=[name], timeout=30.0)
        stock.control.pool_grow(1, destination=[name])
        eventually(lambda: [slot["state"] for slot in inspect.stats()[name]["pool"]["slots"]] == ["ready", "ready"])
        stock.control.pool_shrink(1, destination=[name])
        eventually(lambda: len(inspect.stats()[name]["pool"]["slots"]) == 1)


def test_the_celery_command_starts_the_same_worker(client: JobClient, fresh_redis: str, tmp_path: Path) -> None:
    process = worker(fresh_redis, tmp_path)
    process.command = (sys.executable, "-m", "celery", "-A", "penstock.broker.celery_app", "worker", "--loglevel=INFO")
    with process:
        assert process.await_ready().startswith("penstock@")
        [job] = client.await_final(client.submit({"do": "echo", "tag": 1}))
        process.send(signal.SIGTERM)
        assert process.exit_code(within_s=30.0) == 0
    assert job.state is JobState.SUCCEEDED


@contextmanager
def flower(url: str, folder: Path) -> Iterator[str]:
    """Run stock Flower, configured with nothing but the broker; yield its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "celery", f"--broker={url}", "flower", "--address=127.0.0.1", f"--port={port}"]
    environment = {"PATH": "/usr/bin:/bin", "FLOWER_UNAUTHENTICATED_API": "true", "HOME": str(folder)}
    with (folder / "flower.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def asked(address: str) -> Any:
    try:
        with urllib.request.urlopen(address, timeout=5.0) as answer:
            return json.load(answer)
    except OSError:
        return None


def test_stock_flower_shows_the_worker_its_tasks_and_the_queue(state_dir: Path, tmp_path: Path) -> None:
    # Flower reads queue depths over TCP only.
    server = Server(state_dir, fsync="everysec")
    server.start()
    try:
        with closing(JobClient(server.url, MODEL)) as client, worker(server.url, tmp_path, max_batch_size=1) as process:
            name = process.await_ready()
            with flower(server.url, tmp_path) as address:
                eventually(lambda: asked(f"{address}/api/workers?refresh=1"), timeout_s=40.0)
                eventually(lambda: name in (asked(f"{address}/api/workers") or {}))
                first = eventually(lambda: first_seen(client, address), timeout_s=40.0)
                ids = client.submit({"do": "echo", "tag": 1}, {"do": "fail", "tag": 2})
                client.await_final(ids)
                tasks = eventually(lambda: finished_tasks(address, {str(id) for id in ids}))
                busy = client.submit(*[{"do": "sleep", "seconds": 3.0} for _ in range(3)])
                eventually(lambda: depth(address) in (1, 2))
                queued = eventually(lambda: finished_tasks(address, {str(id) for id in busy}), timeout_s=60.0)
    finally:
        server.stop()
    assert {task["state"] for task in tasks.values()} == {"SUCCESS", "FAILURE"}
    assert {task["name"] for task in tasks.values()} == {f"penstock.infer.{MODEL}"}
    assert first
    # One ran for three seconds, one waited in the child, one in the queue. Regression: Flower showed no job as queued.
    assert max(task["started"] - task["received"] for task in queued.values()) > 2.0


def first_seen(client: JobClient, address: str) -> Any:
    """Run a job, and return what Flower shows: nothing until Flower has asked for events, five seconds after its start."""
    client.await_final(client.submit({"do": "echo", "tag": 0}))
    return asked(f"{address}/api/tasks")


def finished_tasks(address: str, ids: set[str]) -> dict[str, Any]:
    """Return the tasks of `ids` by id, once all of those tasks have ended; until then an empty table."""
    tasks = (asked(f"{address}/api/tasks") or {}).items()
    ended = {id: task for id, task in tasks if id in ids and task["state"] in ("SUCCESS", "FAILURE")}
    return ended if ended.keys() == ids else {}


def depth(address: str) -> int:
    queues = (asked(f"{address}/api/queues/length") or {}).get("active_queues", [])
    return sum(queue["messages"] for queue in queues if queue["name"] == QUEUE)

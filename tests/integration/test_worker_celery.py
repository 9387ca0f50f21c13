"""The worker is a Celery worker: stock remote control, stock clients and stock Flower find what they expect."""

from __future__ import annotations

import base64
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.app.control import Inspect

from penstock.broker.celery_connection import broker_url
from penstock.job import JobState
from tests.eventually import eventually
from tests.faults.server import Server
from tests.integration.worker_process import FAULTY, PACED, Gate, JobClient, WorkerProcess, await_listening
from tests.stack import Stack
from tests.stock_celery import stock_celery

MODEL = "faulty"
QUEUE = "penstock.{faulty}"
HELD = "held"
MODELS = {
    MODEL: {"source": f"{FAULTY}:Faulty"},
    HELD: {"source": f"{PACED}:Paced", "max_batch_size": 1, "warm_up": False},
}
FLOWER_STARTS_WITHIN_S = 60.0


@pytest.fixture(scope="module")
def stack(has_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("celery")
    # Flower reads queue depths over TCP only.
    server = Server(folder / "state", fsync="everysec")
    server.start()
    try:
        with Stack(folder, MODELS, store=server.url) as stack:
            stack.start_worker()
            yield stack
    finally:
        server.stop()


@pytest.fixture(scope="module", autouse=True)
def flower_url(stack: Stack) -> Iterator[str]:
    """Begin with the module: Flower takes seconds until it asks for events."""
    with flower(stack.redis_url, stack.folder) as address:
        yield address


@pytest.fixture
def worker(stack: Stack) -> str:
    """Return the worker's name, once it is ready and hears remote control. A test before may have shut it down."""
    if stack.worker.process.poll() is not None:
        stack.worker.start()
    return stack.worker.await_ready()


@pytest.fixture
def client(stack: Stack) -> Iterator[JobClient]:
    with closing(JobClient(stack.redis_url, MODEL)) as client:
        yield client


@pytest.fixture
def stock(stack: Stack) -> Iterator[Celery]:
    """Yield a client that has none of penstock's code."""
    url = broker_url(stack.redis_url)
    with stock_celery(url) as app:
        yield app


def heard(stock: Celery, name: str) -> Inspect:
    """Return what asks this worker, once it hears remote control."""
    await_listening(stock, name)
    # With a destination the answer of that worker is enough, so no call waits for the whole timeout.
    return stock.control.inspect(destination=[name], timeout=30.0)


def test_a_stock_client_sends_a_task_and_gets_its_result(stock: Celery, worker: str) -> None:
    results = [stock.send_task("penstock.infer", args=[MODEL, {"do": "echo", "tag": tag}], queue=QUEUE) for tag in range(20)]
    assert [result.get(timeout=60) for result in results] == list(range(20))


def test_a_stock_clients_countdown_is_the_start_of_its_job(stock: Celery, client: JobClient, worker: str) -> None:
    before = set(client.store.newest(MODEL))
    later = stock.send_task("penstock.infer", args=[MODEL, {"do": "echo", "tag": 1}], queue=QUEUE, countdown=3_600)
    [found] = eventually(lambda: set(client.store.newest(MODEL)) - before)
    job = client.job(found)
    assert job.state is JobState.DELAYED
    assert job.not_before is not None
    assert job.not_before > job.created_at
    client.store.cancel(job.id)
    eventually(lambda: later.state == "REVOKED")


def test_a_stock_client_gets_the_error_of_its_item(stock: Celery, worker: str) -> None:
    failed = stock.send_task("penstock.infer", args=[MODEL, {"do": "fail", "tag": 7}], queue=QUEUE)
    error = failed.get(timeout=60, propagate=False)
    assert failed.state == "FAILURE"
    assert "refused 7" in str(error)


@pytest.mark.parametrize(
    ("name", "args"),
    [("another.task", [MODEL, 1]), ("penstock.infer", ["elsewhere", 1]), ("penstock.infer", [])],
)
def test_a_task_that_cannot_become_a_job_is_answered_and_leaves_no_job(
    stock: Celery, client: JobClient, worker: str, name: str, args: list[Any]
) -> None:
    before = client.store.stats(MODEL).accepted
    rejected = stock.send_task(name, args=args, queue=QUEUE)
    rejected.get(timeout=60, propagate=False)
    assert rejected.state == "FAILURE"
    assert client.store.stats(MODEL).accepted == before


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
    stock: Celery, client: JobClient, stack: Stack, worker: str
) -> None:
    """Deep JSON and huge numbers were a fault of the slot, which gave back its batch, every 15 seconds and for ever."""
    accepted = client.store.stats(MODEL).accepted
    with redis.Redis.from_url(stack.redis_url) as store:
        rejected = int(store.hget("ps:{faulty}:counters", "foreign_rejected") or 0)
        for id, body in MALFORMED.items():
            store.lpush(QUEUE, as_message(id, body))
        good = stock.send_task("penstock.infer", args=[MODEL, {"do": "echo", "tag": 1}], queue=QUEUE)
        assert good.get(timeout=60) == 1
        for id in MALFORMED:
            told = stock.AsyncResult(id)
            assert "invalid_message" in str(told.get(timeout=60, propagate=False))
            assert told.state == "FAILURE"
        assert store.hgetall("ps:{faulty}:foreign") == {}
        assert int(store.hget("ps:{faulty}:counters", "foreign_rejected") or 0) == rejected + len(MALFORMED)
        assert stack.worker.events("slot_fault") == []
    assert client.store.stats(MODEL).accepted == accepted + 1


def test_remote_control_sees_the_worker(stock: Celery, stack: Stack, worker: str) -> None:
    inspect, gate = heard(stock, worker), Gate(stack.folder / "seen")
    assert inspect.ping() == {worker: {"ok": "pong"}}
    assert {queue["name"] for queue in inspect.active_queues()[worker]} == {"penstock", QUEUE, "penstock.{held}"}
    with closing(JobClient(stack.redis_url, HELD)) as client:
        before = inspect.stats()[worker]["total"].get(f"penstock.infer.{HELD}", 0)
        [id] = client.submit(gate.held(1))
        [active] = eventually(lambda: inspect.active()[worker])
        assert (active["id"], active["name"]) == (str(id), f"penstock.infer.{HELD}")
        gate.open()
        assert client.await_final([id])[0].state is JobState.SUCCEEDED
    # A worker counts a job just after it has settled it in the store.
    eventually(lambda: inspect.stats()[worker]["total"].get(f"penstock.infer.{HELD}") == before + 1)
    stats = inspect.stats()[worker]
    assert stats["pool"]["slots"][0]["state"] == "ready"


def test_the_pool_grows_and_shrinks_by_remote_control(stock: Celery, worker: str) -> None:
    inspect = heard(stock, worker)
    stock.control.pool_grow(1, destination=[worker])
    eventually(lambda: [slot["state"] for slot in inspect.stats()[worker]["pool"]["slots"]] == ["ready"] * 3)
    stock.control.pool_shrink(1, destination=[worker])
    eventually(lambda: len(inspect.stats()[worker]["pool"]["slots"]) == 2)


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


def test_stock_flower_shows_the_worker_its_tasks_and_the_queue(
    stack: Stack, client: JobClient, worker: str, flower_url: str
) -> None:
    address, gate = flower_url, Gate(stack.folder / "queued")
    eventually(lambda: asked(f"{address}/api/workers?refresh=1"), timeout_s=FLOWER_STARTS_WITHIN_S)
    eventually(lambda: worker in (asked(f"{address}/api/workers") or {}))
    eventually(lambda: first_seen(client, address), timeout_s=FLOWER_STARTS_WITHIN_S)
    ids = client.submit({"do": "echo", "tag": 1}, {"do": "fail", "tag": 2})
    client.await_final(ids)
    tasks = eventually(lambda: finished_tasks(address, {str(id) for id in ids}))
    with closing(JobClient(stack.redis_url, HELD)) as held:
        busy = held.submit(*[gate.held(tag) for tag in range(3)])
        held_at = time.monotonic()
        try:
            eventually(lambda: depth(address) in (1, 2))
        finally:
            held_s = time.monotonic() - held_at
            gate.open()
        held.await_final(busy)
    queued = eventually(lambda: finished_tasks(address, {str(id) for id in busy}))
    assert {task["state"] for task in tasks.values()} == {"SUCCESS", "FAILURE"}
    assert {task["name"] for task in tasks.values()} == {f"penstock.infer.{MODEL}"}
    # One ran, one waited in the child, one in the queue until the gate opened. Regression: Flower showed no job as queued.
    assert max(task["started"] - task["received"] for task in queued.values()) > held_s / 2


def first_seen(client: JobClient, address: str) -> Any:
    """Run a job, and return what Flower shows: nothing until Flower has asked for events, five seconds after its start."""
    client.await_final(client.submit({"do": "echo", "tag": 0}))
    return asked(f"{address}/api/tasks")


def finished_tasks(address: str, ids: set[str]) -> dict[str, Any]:
    """Return the tasks of `ids` by id, once all of those tasks have ended; until then an empty table."""
    shown = (asked(f"{address}/api/tasks") or {}).items()
    ended = {id: task for id, task in shown if id in ids and task["state"] in ("SUCCESS", "FAILURE")}
    return ended if ended.keys() == ids else {}


def depth(address: str) -> int:
    queues = (asked(f"{address}/api/queues/length") or {}).get("active_queues", [])
    return sum(queue["messages"] for queue in queues if queue["name"] == "penstock.{held}")


def test_the_celery_command_starts_the_same_worker(fresh_redis: str, tmp_path: Path) -> None:
    process = WorkerProcess(fresh_redis, tmp_path, {MODEL: MODELS[MODEL]})
    process.command = ("celery", "-A", "penstock.broker.celery_app", "worker", "--loglevel=INFO")
    with process, closing(JobClient(fresh_redis, MODEL)) as client:
        assert process.await_ready().startswith("penstock@")
        [job] = client.await_final(client.submit({"do": "echo", "tag": 1}))
        process.send(signal.SIGTERM)
        assert process.exit_code(within_s=30.0) == 0
    assert job.state is JobState.SUCCEEDED


def test_remote_control_stops_the_worker(stock: Celery, stack: Stack, worker: str) -> None:
    await_listening(stock, worker)
    stock.control.broadcast("shutdown", destination=[worker])
    assert stack.worker.exit_code(within_s=30.0) == 0

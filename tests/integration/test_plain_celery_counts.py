"""How many of twelve tasks an autoscaler sees that reads the length of plain Celery's list, beside what is read here.

docs/production/kubernetes.md has these numbers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from celery import Celery

from penstock.broker.backlog import Backlog, SlotCapacity
from penstock.broker.celery_connection import broker_url
from penstock.broker.records import NewJob
from penstock.gateway.models.queues import queue_of
from penstock.gateway.models.registry import ModelEntry, VersionEntry
from penstock.job import Payload, Priority, new_job_id
from penstock.model_spec import ModelInfo
from tests.acceptance.gateway_process import Hand
from tests.eventually import eventually
from tests.stock_celery import stock_celery

TASKS = 12
APP = """
import os, time
from celery import Celery
app = Celery("plain", broker=os.environ["BROKER"])
app.conf.worker_hijack_root_logger = False
@app.task(name="plain.wait")
def wait():
    while not os.path.exists(os.environ["GATE"]):
        time.sleep(0.05)
"""


@pytest.fixture
def plain(fresh_redis: str) -> Iterator[Celery]:
    with stock_celery(broker_url(fresh_redis), broker_transport_options={"priority_steps": [0, 3, 6, 9]}) as app:
        yield app


@contextmanager
def plain_worker(url: str, folder: Path) -> Iterator[None]:
    """Stock Celery with two threads and its default prefetch of four messages for each."""
    (folder / "plain.py").write_text(APP)
    command = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "plain",
        "worker",
        "-P",
        "threads",
        "-c",
        "2",
        "--without-mingle",
        "--without-gossip",
    ]
    env = {**os.environ, "BROKER": broker_url(url), "GATE": str(folder / "gate"), "PYTHONPATH": str(folder)}
    with (folder / "log").open("wb") as log:
        worker = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log)
    try:
        yield
    finally:
        (folder / "gate").touch()
        worker.terminate()
        worker.wait(30.0)


def test_of_twelve_tasks_the_list_shows_the_two_that_no_worker_has_fetched(
    plain: Celery, fresh_redis: str, tmp_path: Path
) -> None:
    for _ in range(TASKS):
        plain.send_task("plain.wait")
    store = redis.Redis.from_url(fresh_redis)
    assert store.llen("celery") == TASKS
    with plain_worker(fresh_redis, tmp_path):
        eventually(lambda: store.hlen("unacked") == 8, timeout_s=30)
        assert store.llen("celery") == 2, "two run, and eight wait in the memory of their worker"
    store.close()


def test_of_twelve_tasks_of_four_priorities_one_list_shows_three(plain: Celery, fresh_redis: str) -> None:
    for number in range(TASKS):
        plain.send_task("plain.wait", priority=(0, 3, 6, 9)[number % 4])
    with redis.Redis.from_url(fresh_redis) as store:
        assert store.llen("celery") == 3


def test_here_all_twelve_are_work_whoever_holds_them(fresh_redis: str) -> None:
    hand = Hand(fresh_redis)
    for number in range(TASKS):
        new = NewJob(
            new_job_id("square"),
            "1",
            Payload("application/json", b"1"),
            priority=(Priority.INTERACTIVE, Priority.BULK)[number % 2],
            deadline_s=60.0,
        )
        hand.store.submit([new])
    assert len(hand.claim(8).jobs) == 8
    version = VersionEntry("1", None, None, SlotCapacity(1, 10.0, full_per_s=10.0))
    entry = ModelEntry(ModelInfo("square"), version, {"1": version}, Backlog(), workers=1)
    assert queue_of(entry, hand.store.stats("square"), 0.0).work_s == pytest.approx(TASKS / 10.0)

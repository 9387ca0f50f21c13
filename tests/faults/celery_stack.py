"""Plain Celery under the same driver: the same store, the same links, and workers in groups that are killed the same way."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import redis
from celery import Celery
from kombu.exceptions import OperationalError

from tests.eventually import eventually
from tests.faults.driver import Driver
from tests.faults.executions import Executions
from tests.faults.face import Answer
from tests.faults.ledger import Ledger, View
from tests.faults.processes import Group
from tests.faults.proxy import Proxy
from tests.faults.server import Server

_ENDS = {"SUCCESS": "succeeded", "FAILURE": "failed", "REVOKED": "cancelled"}


class CeleryFace:
    """Submits with `send_task` and reads the stored results. A task's id is the nonce of its input."""

    def __init__(self, broker: str, results: redis.Redis) -> None:
        self._broker = broker
        self._results = results
        self._local = threading.local()

    def submit(self, key: str, order: dict[str, Any]) -> tuple[Answer, str]:
        try:
            self._app().send_task("plain.echo", args=[order], task_id=key, retry=False)
        except (OperationalError, redis.RedisError, OSError):
            return Answer(0), ""
        return Answer(202), key

    def look(self, job: str) -> tuple[Answer, View | None]:
        try:
            stored: Any = self._results.get(f"celery-task-meta-{job}")
        except (redis.RedisError, OSError):
            return Answer(0), None
        if stored is None:
            return Answer(200), View("queued", False)
        meta = json.loads(stored)
        status = _ENDS.get(meta["status"], "running")
        done = meta.get("date_done")
        output = meta["result"]["digest"] if status == "succeeded" else ""
        return Answer(200), View(
            status, status != "running", output, "", datetime.fromisoformat(done).timestamp() if done else 0.0
        )

    def _app(self) -> Celery:
        """Return this thread's own app: Celery's producers cannot be shared between threads while links break under them."""
        if not hasattr(self._local, "app"):
            self._local.app = Celery("client", broker=self._broker, set_as_current=False)
        app: Celery = self._local.app
        return app


class CeleryStack:
    """The submitter's own link stays whole; a fault breaks the links between workers and store, or the store itself."""

    def __init__(self, folder: Path, *, workers: int, concurrency: int, fsync: str = "always") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.server = Server(folder / "valkey", fsync=fsync)
        self.worker_links = [Proxy(self.server.port) for _ in range(workers)]
        self.executions = Executions(folder / "executions.log")
        self.workers = [self._worker(number, concurrency) for number in range(workers)]
        self.results = self.server.client()
        self.driver = Driver(CeleryFace(self.server.url, self.results), Ledger(folder / "ledger.jsonl"))

    def start(self) -> None:
        self.server.start()
        for link, worker in zip(self.worker_links, self.workers, strict=True):
            link.start()
            worker.start()
        eventually(self._all_up, timeout_s=60.0)

    def stop(self) -> None:
        for worker in self.workers:
            worker.kill()
        for link in self.worker_links:
            link.stop()
        self.results.close()
        self.server.stop()
        self.driver.ledger.close()

    def _all_up(self) -> bool:
        logs = [path.read_text(errors="replace") for path in sorted(self.folder.glob("worker*.log"))]
        return len(logs) == len(self.workers) and all(" ready." in text for text in logs)

    def _worker(self, number: int, concurrency: int) -> Group:
        environment = {
            **os.environ,
            "PLAIN_BROKER": self.worker_links[number].url,
            "PLAIN_BACKEND": self.worker_links[number].url,
            "PLAIN_LOG": str(self.folder / "executions.log"),
            "PYTHONPATH": str(Path(__file__).resolve().parent.parent.parent),
        }
        arguments = ["celery", "-A", "tests.faults.plain_celery", "worker", "-c", str(concurrency), "-n", f"w{number}@plain"]
        quiet = ["--loglevel", "INFO", "--without-mingle", "--without-gossip"]
        return Group([*arguments, *quiet], environment, self.folder / f"worker{number}.log")


@contextmanager
def celery_stack(folder: Path, *, workers: int = 1, concurrency: int = 4, fsync: str = "always") -> Iterator[CeleryStack]:
    stack = CeleryStack(folder, workers=workers, concurrency=concurrency, fsync=fsync)
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()

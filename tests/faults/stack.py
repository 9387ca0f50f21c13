"""penstock as it is deployed, for one fault: a store, maybe behind links that break, a gateway, workers, one echo model."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from penstock.broker.blobs.files import LocalBlobs
from penstock.loadtest.stack import free_port
from tests.contract.dumps import Dump, RedisDump
from tests.eventually import eventually
from tests.faults.asker import Asker, Question, echo_question
from tests.faults.driver import Driver
from tests.faults.executions import Executions
from tests.faults.face import HttpFace
from tests.faults.ledger import Ledger
from tests.faults.memory import USUAL_GROWTH_MIB, MemoryWatch, members
from tests.faults.processes import Group
from tests.faults.proxy import Proxy
from tests.faults.server import Server

MODEL = "echo"
SOURCE = f"{Path(__file__).resolve().parent / 'echo.py'}:Echo"


@dataclass(frozen=True, slots=True)
class Plan:
    """What differs between faults. `model` holds entries of the model's table, `options` those of its handler.

    `excused` are error codes that the fault may give to an innocent prediction; `growth_mib` is what a process may grow by;
    `variables` are further environment variables of all processes.
    """

    workers: int = 1
    fsync: str = "always"
    lease_s: float = 15.0
    beat_s: float = 4.0
    grace_s: float = 30.0
    model: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    server: Mapping[str, str] = field(default_factory=dict)
    excused: frozenset[str] = frozenset()
    growth_mib: float = USUAL_GROWTH_MIB
    variables: Mapping[str, str] = field(default_factory=dict)


class Stack:
    """`gateway_link` and one of `worker_links` per worker stand before the store; all pass data until a fault breaks them.

    `asker` asks from the start of the store on, whether or not a gateway listens yet. `make` fits the model, if another is set.
    """

    def __init__(self, plan: Plan, folder: Path, *, make: Callable[[], Question] = echo_question) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.plan = plan
        self.folder = folder
        self.server = Server(folder / "valkey", fsync=plan.fsync, extra=plan.server)
        self.gateway_link = Proxy(self.server.port)
        self.worker_links = [Proxy(self.server.port) for _ in range(plan.workers)]
        self.executions = Executions(folder / "executions.log")
        self.gateway_port = free_port()
        self.gateway = self._gateway()
        self.workers = [self._worker(number) for number in range(plan.workers)]
        self.face = HttpFace(self.gateway_port)
        self._make = make
        self.driver = Driver(self.face, Ledger(folder / "ledger.jsonl"))
        self.asker = self._asker()

    def start(self) -> None:
        """Start the store and its links; the fault starts the processes, in its own order."""
        self.server.start()
        for link in self.links:
            link.start()
        self.asker.start()

    def begin_anew(self) -> None:
        """Judge the next fault by itself: a new driver, ledger and asker, and no execution known, on the same processes."""
        self.asker.stop()
        # A thread that has ended leaves its connection open, and a gateway that is told to stop waits for its clients to leave.
        self.face.close_all()
        self.driver.ledger.close()
        self.executions = Executions(self.folder / "executions.log")
        self.driver = Driver(self.face, Ledger(self.folder / "ledger.jsonl"))
        self.asker = self._asker()
        self.asker.start()

    @property
    def links(self) -> list[Proxy]:
        return [self.gateway_link, *self.worker_links]

    def stop(self) -> None:
        for group in (*self.workers, self.gateway):
            group.stop()
        for link in self.links:
            link.stop()
        self.server.stop()
        try:
            self.asker.stop()
        finally:
            self.driver.ledger.close()
            self.face.close_all()

    def await_gateway(self, *, within_s: float = 30.0) -> None:
        eventually(lambda: self.face.ask("GET", "/startupz").status == 200, timeout_s=within_s)

    def await_ready(self, *, within_s: float = 60.0) -> None:
        """Wait until the gateway answers and a worker has loaded the model."""

        def ready() -> bool:
            if not any(worker.running for worker in self.workers):
                raise RuntimeError(f"no worker came up: {self.logs()}")
            return self.face.ask("GET", "/readyz").status == 200

        eventually(ready, timeout_s=within_s)

    def processes(self) -> Iterator[tuple[str, psutil.Process]]:
        """Yield the processes that run now, with their roles."""
        yield from members("gateway", self.gateway)
        for worker in self.workers:
            yield from members("worker", worker)
        if self.server.running:
            yield "store", psutil.Process(self.server.pid)

    def dump(self) -> Dump:
        with self.server.client() as client:
            return RedisDump(client, MODEL).dump()

    def made(self) -> int:
        """Return how many jobs the store has, predictions not counted: their callers wait, which is noted as `watch`."""
        with self.server.client() as client:
            return sum(not client.hexists(key, "watch") for key in self.records())

    def records(self) -> list[bytes]:
        """Return the names of all jobs' records."""
        with self.server.client() as client:
            return list(client.scan_iter(f"ps:{{{MODEL}}}:job:*", count=1_000))

    def counters(self) -> dict[str, int]:
        """Return what the store counted: accepted, stale, redelivered, repaired, ..."""
        with self.server.client() as client:
            found: Any = client.hgetall(f"ps:{{{MODEL}}}:counters")
        return {name.decode(): int(value) for name, value in found.items()}

    def blobs(self) -> list[str]:
        """Return the names of the payloads that are not in a record."""
        return [name for name, _ in LocalBlobs(self.folder / "state" / "blobs").names()]

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-4_000:] for path in sorted(self.folder.glob("*.log")))

    def command(self, *arguments: str) -> Group:
        """Return a `penstock` command that reaches the store directly."""
        settings = {"PENSTOCK_REDIS_URL": self.server.url}
        return Group(["penstock.cli.main", *arguments], self._environment(settings), self.folder / "command.log")

    def _asker(self) -> Asker:
        return Asker(
            self.face,
            MODEL,
            make=self._make,
            poll=self.driver.poll,
            memory=MemoryWatch(self.processes, allowed_mib=self.plan.growth_mib),
            excused=self.plan.excused,
        )

    def _gateway(self) -> Group:
        settings = {"PENSTOCK_REDIS_URL": self.gateway_link.url, "PENSTOCK_GATEWAY__PORT": str(self.gateway_port)}
        return Group(["penstock.cli.main", "gateway"], self._environment(settings), self.folder / "gateway.log")

    def _worker(self, number: int) -> Group:
        settings = {"PENSTOCK_REDIS_URL": self.worker_links[number].url}
        return Group(["penstock.cli.main", "worker"], self._environment(settings), self.folder / f"worker{number}.log")

    def _environment(self, settings: Mapping[str, str]) -> dict[str, str]:
        plain = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_") and name != "REDIS_URL"}
        return {
            **plain,
            "PENSTOCK_STORE__STATE_DIR": str(self.folder / "state"),
            "PENSTOCK_WORKER__LEASE_S": str(self.plan.lease_s),
            "PENSTOCK_WORKER__BEAT_S": str(self.plan.beat_s),
            "PENSTOCK_WORKER__GRACE_S": str(self.plan.grace_s),
            "PENSTOCK_WORKER__MODEL_DIR": SOURCE.rpartition("/")[0],
            "PENSTOCK_MODELS": json.dumps({MODEL: self.table()}),
            "PENSTOCK_DIE_WITH_PARENT": "1",
            **self.plan.variables,
            **settings,
        }

    def table(self) -> dict[str, Any]:
        options = {"log": str(self.folder / "executions.log"), **self.plan.options}
        # Predictions are kept until the store is looked at: a record that goes meanwhile would look like a fault.
        return {"source": SOURCE, "threads": 1, "sync_result_ttl_s": 3_600, "options": options, **self.plan.model}


@contextmanager
def bare_stack(plan: Plan, folder: Path) -> Iterator[Stack]:
    """Run the store alone. Whatever the fault starts is ended, also when the fault fails."""
    stack = Stack(plan, folder)
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()


@contextmanager
def whole_stack(plan: Plan, folder: Path) -> Iterator[Stack]:
    """Run the whole stack, and wait until it is ready."""
    with started(Stack(plan, folder)) as stack:
        yield stack


@contextmanager
def started(stack: Stack) -> Iterator[Stack]:
    """Run a whole stack that the caller has made, and wait until it is ready."""
    try:
        stack.start()
        stack.gateway.start()
        for worker in stack.workers:
            worker.start()
        stack.await_gateway()
        stack.await_ready()
        yield stack
    finally:
        stack.stop()

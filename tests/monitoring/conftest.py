"""One stack for all tests of this folder (a TCP store, a gateway, a worker, Prometheus, Flower), and a ledger of its jobs."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.broker.contract import ReleaseReason
from penstock.broker.records import ClaimRequest, GiveBack, NewJob, SubmitStatus
from penstock.broker.store.sync import RedisStore
from penstock.job import Payload, Priority, new_job_id
from penstock.loadtest.stack import free_port
from tests.acceptance.gateway_process import GatewayClient
from tests.eventually import eventually
from tests.faults.server import Server
from tests.monitoring.flower import depths, flower, tasks
from tests.monitoring.prometheus import Prometheus
from tests.stack import Stack

MODELS = ("left", "right", "timed")
# A slot holds one batch of one job on the device and one prepared batch of one job, and claims no third batch.
HELD = 2
WAITING = 4_000
BATCH = 16
TIMED_S = 0.3
_DEADLINE_S = 600.0
_TIGHT_S = 300.0
_SOURCE = f"{Path(__file__).with_name('gated.py')}:Gated"
# Without a warm-up a slot has no measured times, and so fetches its next batch at once.
TABLES = {name: {"source": _SOURCE, "max_batch_size": BATCH, "max_crashes": 1, "warm_up": False} for name in MODELS}


@dataclass
class Ledger:
    """The submitted jobs and their ends, as the test knows them, and the figures that each tool showed for them."""

    waiting: dict[str, Counter[str]] = field(default_factory=lambda: {model: Counter() for model in MODELS})
    accepted: Counter[str] = field(default_factory=Counter)
    ended: dict[str, Counter[str]] = field(default_factory=lambda: {model: Counter() for model in MODELS})
    first_at: dict[str, tuple[float, float]] = field(default_factory=dict)
    timed_s: dict[str, float] = field(default_factory=dict)
    flower: dict[str, int] = field(default_factory=dict)
    flower_page: str = ""
    dashboard: str = ""
    queues: dict[str, Any] = field(default_factory=dict)
    looked_at: tuple[float, float] = (0.0, 0.0)
    prometheus: dict[str, Any] = field(default_factory=dict)


class WatchedStack(Stack):
    """A gateway and a worker whose metrics ports Prometheus scrapes, and whose events Flower hears."""

    prometheus: Prometheus
    flower: httpx2.Client
    store: RedisStore
    ledger: Ledger

    @property
    def gateway(self) -> GatewayClient:
        return self.http

    def submit(self, model: str, orders: list[dict[str, Any]], **options: Any) -> None:
        """Submits jobs to the store without the gateway: these tests are not about thousands of HTTP requests."""
        began = time.time()
        jobs = [
            NewJob(
                new_job_id(model),
                "1",
                Payload("application/json", json.dumps(order).encode()),
                max_crashes=1,
                **{"deadline_s": _DEADLINE_S, **options},
            )
            for order in orders
        ]
        answers = self.store.submit(jobs, max_depth=2 * WAITING)
        assert all(answer.status is SubmitStatus.CREATED for answer in answers)
        self.ledger.first_at.setdefault(model, (began, time.time()))
        self.ledger.accepted[model] += len(orders)
        for order in orders:
            self.ledger.ended[model]["failed" if order.get("do") in ("fail", "crash") else "succeeded"] += 1

    def hold(self, model: str, gate: Path) -> None:
        """Fills the slot of the model until the file `gate` exists."""
        self.submit(model, [{"gate": str(gate)}])
        eventually(lambda: self.store.stats(model).leased == 1)
        self.submit(model, [{}])
        eventually(lambda: self.store.stats(model).leased == HELD)
        self.ledger.first_at.pop(model)

    def pile_up(self, model: str, *, interactive: int, tight: int, bulk: int) -> None:
        """Submits jobs that wait.

        The `tight` jobs have less time left than one claim asks for: the claim steps over these jobs, which makes them late.
        """
        waiting = self.ledger.waiting[model]
        failing = [{"do": "fail"} for _ in range(interactive // 50)]
        self.submit(model, [*failing, *({} for _ in range(interactive - len(failing)))])
        waiting["interactive"] += interactive
        self.submit(model, [{} for _ in range(bulk)], priority=Priority.BULK)
        waiting["bulk"] += bulk
        self.submit(model, [{} for _ in range(tight)], deadline_s=_TIGHT_S)
        claim = self.store.claim(
            ClaimRequest(model, "1", "hand", "nonce", limit=tight, enough=tight, min_slack_s=_TIGHT_S + 60.0, lease_s=30.0)
        )
        given = [GiveBack(job.id, job.token) for job in claim.jobs]
        if given:
            self.store.release(given, worker="hand", reason=ReleaseReason.DRAIN)
        waiting["late"] += claim.stepped_over
        waiting["interactive"] += tight - claim.stepped_over

    def let_expire(self, model: str, count: int) -> None:
        """Submits jobs whose deadline passes while they wait, and waits until a sweep has ended them."""
        self.submit(model, [{} for _ in range(count)], deadline_s=0.1)
        ends = self.ledger.ended[model]
        ends["succeeded"] -= count
        ends["expired"] += count
        eventually(lambda: self.store.stats(model).ended.get("expired") == count)

    def look(self) -> None:
        """Records the figures of all tools while no job changes its state."""
        ledger, began = self.ledger, time.time()
        ledger.queues = {queue["model"]: queue for queue in self.gateway.get("/v1/queues").json()["data"]}
        ledger.looked_at = (began, time.time())
        ledger.dashboard = self.gateway.get("/").text
        ledger.flower, ledger.flower_page = depths(self.flower), self.flower.get("/broker").text
        ask = self.prometheus.query
        total = "sum(model:penstock_queue_depth:max)"
        eventually(lambda: self.prometheus.value(total) == WAITING)
        queries = {
            "depth": "max by (model, priority) (penstock_queue_depth)",
            "since": "min by (model) (timestamp(penstock_queue_oldest_age_seconds) - penstock_queue_oldest_age_seconds)",
        }
        ledger.prometheus = {name: eventually(partial(ask, expr)) for name, expr in queries.items()}


def one_by_one(stack: WatchedStack) -> None:
    """Runs jobs one after the other through the gateway, and records the duration of each job as the caller sees it."""
    for _ in range(4):
        began = time.monotonic()
        answer = stack.gateway.post("/v1/models/timed/jobs", json={"seconds": TIMED_S})
        job = answer.json()["id"]
        assert stack.gateway.get(f"/v1/jobs/{job}/result", params={"wait": "20"}).status_code == 200
        stack.ledger.timed_s[job] = time.monotonic() - began
    stack.ledger.accepted["timed"] += 4
    stack.ledger.ended["timed"]["succeeded"] += 4


def tell(stack: WatchedStack, gate: Path) -> None:
    """All steps of the test, in their order."""
    eventually(lambda: len(depths(stack.flower)) == 4 * len(MODELS))
    # Prometheus has scraped every counter at its start, and Flower receives the events of the worker.
    eventually(lambda: stack.prometheus.query("penstock_jobs_accepted_total") and stack.prometheus.query("penstock_worker_up"))
    eventually(lambda: stack.flower.get("/api/workers", params={"refresh": "1"}).json(), timeout_s=60.0)
    for model in ("left", "right"):
        stack.hold(model, gate)
    stack.pile_up("left", interactive=1_200, tight=400, bulk=800)
    stack.pile_up("right", interactive=1_000, tight=200, bulk=400)
    stack.look()
    stack.let_expire("left", 3)
    gate.touch()
    assert stack.gateway.post("/v1/models/left/jobs", json={"do": "x" * 5_000}).status_code == 413
    eventually(lambda: ended(stack, "left") + ended(stack, "right") == sum(stack.ledger.accepted.values()), timeout_s=60.0)
    # A second must pass: in a second in which thousands of jobs end, Flower gets only a sample.
    over = time.time()
    eventually(lambda: time.time() > over + 1.0)
    one_by_one(stack)
    stack.submit("right", [{"do": "crash"}])
    eventually(lambda: stack.prometheus.value('sum(penstock_jobs_dead_total{model="right"})') == 1, timeout_s=60.0)
    # Prometheus needs two scrapes to compute an increase.
    eventually(lambda: stack.prometheus.query('increase(penstock_worker_restarts_total{model="right"}[1m])'))
    eventually(lambda: tasks(stack.flower, taskname="penstock.infer.timed").keys() >= stack.ledger.timed_s.keys())


def ended(stack: WatchedStack, model: str) -> int:
    return sum(stack.store.stats(model).ended.values())


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedStack]:
    """The stack after all steps of `tell`; its processes still run.

    They end with the module: Prometheus scrapes and evaluates as long as it runs, a tenth of a core.
    """
    folder = tmp_path_factory.mktemp("watched")
    server = Server(folder / "store", fsync="everysec")
    ports = {"penstock-gateway": [free_port()], "penstock-worker": [free_port()]}
    server.start()
    with ExitStack() as opened:
        opened.callback(server.stop)
        stack = opened.enter_context(WatchedStack(folder, TABLES, store=server.url))
        [gateway_port], [worker_port] = ports.values()
        stack.start_worker(metrics_port=worker_port)
        stack.start_gateway(metrics_port=gateway_port, max_json_bytes=4_000)
        stack.prometheus = stack.opened.enter_context(Prometheus(folder / "prometheus", ports))
        stack.flower = stack.opened.enter_context(flower(folder, PENSTOCK_REDIS_URL=server.url))
        stack.store = stack.opened.enter_context(closing(RedisStore(server.url)))
        stack.ledger = Ledger()
        stack.worker.await_ready()
        tell(stack, folder / "gate")
        yield stack

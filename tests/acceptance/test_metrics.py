"""Every metric against a ledger of the test's actions: two gateways, two workers, and a restart of one of each."""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from redis import Redis

from penstock.extensions.webhooks.webhook import new_signing_key
from penstock.loadtest.stack import free_port
from tests.acceptance.gateway_process import GatewayClient, gateway_process
from tests.eventually import eventually
from tests.integration.worker_process import FAULTY, WorkerProcess

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
MODEL = "faulty"
MODELS = {MODEL: {"source": f"{FAULTY}:Faulty", "max_crashes": 1, "max_batch_size": 4}}
JOBS = f"/v1/models/{MODEL}/jobs"
# Each request opens a connection: the kernel picks the process by connection where processes share a port.
HTTP = httpx2.Client(limits=httpx2.Limits(max_keepalive_connections=0))


class Scrape:
    """The metrics of one process: values by name and labels, types and label names by metric."""

    def __init__(self, text: str) -> None:
        self.types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
        families = list(text_string_to_metric_families(text))
        self._values = {
            (sample.name, frozenset(sample.labels.items())): sample.value for family in families for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        """The sum of all series that have this name and these labels."""
        wanted = frozenset(labels.items())
        return sum(value for (found, own), value in self._values.items() if found == f"penstock_{name}" and wanted <= own)

    def has(self, name: str, **labels: str) -> bool:
        return (f"penstock_{name}", frozenset(labels.items())) in self._values

    def labels(self) -> dict[str, set[str]]:
        """The label names of each sample, by the sample's name, without the label `le` of histograms."""
        found: dict[str, set[str]] = {}
        for name, labels in self._values:
            found.setdefault(name, set()).update(label for label, _ in labels if label != "le")
        return found


def scraped(port: int) -> Scrape:
    answer = HTTP.get(f"http://127.0.0.1:{port}/metrics")
    assert answer.status_code == 200
    return Scrape(answer.text)


def increase(name: str, *lives: Scrape, **labels: str) -> float:
    """The increase of a counter over restarts, as Prometheus computes it: each life of the process counts from zero."""
    return sum(life(name, **labels) for life in lives)


@dataclass
class Ledger:
    """The actions of the test, and the values that the test read between the actions."""

    accepted: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    requests: dict[str, Counter[tuple[str, str, str]]] = field(default_factory=dict)
    waiting: dict[str, Scrape] = field(default_factory=dict)
    queues: dict[str, Any] = field(default_factory=dict)
    waited_s: tuple[float, float] = (0.0, 0.0)
    workers: list[Scrape] = field(default_factory=list)
    gateways: dict[str, list[Scrape]] = field(default_factory=dict)
    loads: int = 0


class Caller:
    """A caller of one gateway. The caller records each of its requests in the ledger."""

    def __init__(self, ledger: Ledger, name: str, client: GatewayClient, port: int) -> None:
        self.client = client
        self.port = port
        self._ledger = ledger
        self._asked = ledger.requests.setdefault(name, Counter())

    def submit(self, do: str = "echo", *, count: int = 1, **options: Any) -> list[str]:
        answers = [self.client.post(JOBS, json={"do": do}, params=options) for _ in range(count)]
        assert {answer.status_code for answer in answers} == {202}
        self._asked["/v1/models/{model}/jobs", "POST", "202"] += count
        self._ledger.accepted += count
        return [answer.json()["id"] for answer in answers]

    def predict(self) -> None:
        assert self.client.post(f"/predictions/{MODEL}", json={"tag": 1}).status_code == 200
        self._asked["/predictions/{model}", "POST", "200"] += 1
        self._ledger.accepted += 1
        self._ledger.ended["succeeded"] += 1

    def cancel(self, job: str) -> None:
        assert self.client.delete(f"/v1/jobs/{job}").status_code == 202
        self._asked["/v1/jobs/{job_id}", "DELETE", "202"] += 1
        self._ledger.ended["cancelled"] += 1

    def queue(self) -> Any:
        self._asked["/v1/queues/{model}", "GET", "200"] += 1
        return self.client.get(f"/v1/queues/{MODEL}").json()

    def await_ended(self, count: int) -> None:
        """Waits until the metrics count this number of ended jobs. Scrapes do not count as HTTP requests."""
        eventually(lambda: scraped(self.port)("jobs_total") == count, timeout_s=60.0)


def counted(worker: Scrape) -> bool:
    """Whether every claimed job has been counted: in a settled batch, or in a batch that was lost with its child."""
    left = worker("batch_size_sum") + worker("batches_lost_total")
    return worker("claimed_items_total") == left and worker("io_seconds_count", stage="store") == worker("batch_size_count")


class Story:
    """The processes of the test, and the steps of the test in their order."""

    def __init__(self, url: str, folder: Path, stack: ExitStack) -> None:
        self.url = url
        self.folder = folder
        self.stack = stack
        self.ledger = Ledger()
        self._gateways: dict[str, ExitStack] = {}
        self._ports = {name: free_port() for name in ("A", "B", "w1", "w2", "A-grpc", "B-grpc")}

    def gateway(self, name: str) -> Caller:
        # Each gateway has an exit stack of its own, so that it can be ended alone for a restart.
        self._gateways[name] = own = self.stack.enter_context(ExitStack())
        port = self._ports[name]
        env = {"PENSTOCK_TORCHSERVE__METRICS": "true", "PENSTOCK_WEBHOOKS__SIGNING_KEYS": new_signing_key()}
        grpc_port = self._ports[f"{name}-grpc"]
        made = gateway_process(self.url, self.folder, models=MODELS, metrics_port=port, env=env, grpc_port=grpc_port)
        return Caller(self.ledger, name, own.enter_context(made), port)

    def end_gateway(self, name: str) -> None:
        self.ledger.gateways.setdefault(name, []).append(scraped(self._ports[name]))
        self._gateways[name].close()

    def worker(self, name: str) -> WorkerProcess:
        made = WorkerProcess(self.url, self.folder, MODELS, metrics_port=self._ports[name], beat_s=0.8)
        self.stack.enter_context(made).await_ready()
        self.ledger.loads += 1
        return made

    def end_worker(self, name: str, worker: WorkerProcess) -> None:
        # A worker counts a batch just after it has settled the batch in the store, so jobs may look ended before the count.
        eventually(lambda: counted(scraped(self._ports[name])))
        self.ledger.workers.append(scraped(self._ports[name]))
        worker.send(signal.SIGTERM)
        assert worker.exit_code(within_s=20.0) == 0

    def tell(self) -> Ledger:
        a, b = self.gateway("A"), self.gateway("B")
        self._while_nobody_works(a, b)
        first, second = self.worker("w1"), self.worker("w2")
        self._while_all_work(a, b)
        # One worker and one gateway are restarted; the other worker and the other gateway keep running.
        self.end_worker("w2", second)
        self.end_gateway("B")
        b, second = self.gateway("B"), self.worker("w2")
        for caller in (a, b):
            caller.submit(count=3)
        self.ledger.ended["succeeded"] += 6
        a.await_ended(self.ledger.accepted)
        self.end_worker("w1", first)
        self.end_worker("w2", second)
        self.end_gateway("A")
        self.end_gateway("B")
        return self.ledger

    def _while_nobody_works(self, a: Caller, b: Caller) -> None:
        ledger, began = self.ledger, time.monotonic()
        oldest = a.submit(count=2, deadline_s=60)
        submitted = time.monotonic()
        a.submit(count=2, deadline_s=0.5)
        ledger.ended["expired"] += 2
        b.submit(count=3)
        b.submit(count=2, priority="bulk")
        b.cancel(oldest[1])
        b.cancel(a.submit()[0])
        ledger.ended["succeeded"] += 6
        looked = time.monotonic()
        for name, caller in (("A", a), ("B", b)):
            ledger.waiting[name], ledger.queues[name] = scraped(caller.port), caller.queue()
        # A worker that starts before that finds jobs that are not late yet.
        eventually(lambda: time.monotonic() > looked + 0.5)
        ledger.waited_s = (looked - submitted, time.monotonic() - began)

    def _while_all_work(self, a: Caller, b: Caller) -> None:
        ledger = self.ledger
        # The waiting jobs end first, so that the crash below destroys no batch with other jobs.
        a.await_ended(ledger.accepted)
        for caller in (a, b):
            caller.submit("raise", count=2)
            caller.predict()
        ledger.ended["failed"] += 4
        a.await_ended(ledger.accepted)
        a.submit("segfault")
        ledger.ended["failed"] += 1
        a.await_ended(ledger.accepted)
        # The supervisor has replaced the child that crashed.
        ledger.loads += 1
        workers = [self._ports[name] for name in ("w1", "w2")]
        eventually(lambda: increase("model_load_seconds_count", *map(scraped, workers)) == ledger.loads, timeout_s=60.0)


@pytest.fixture(scope="module")
def ledger(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    with Redis.from_url(redis_url) as redis:
        redis.flushall()
    with ExitStack() as stack:
        yield Story(redis_url, tmp_path_factory.mktemp("story"), stack).tell()


@pytest.mark.parametrize("gateway", ["A", "B"])
def test_what_waits_is_told_alike_by_both_gateways_and_in_both_forms(ledger: Ledger, gateway: str) -> None:
    seen, queue = ledger.waiting[gateway], ledger.queues[gateway]
    # Two of the 8 interactive jobs were cancelled. Jobs past their deadline stay queued until a claim or a sweep ends them.
    depths = {"interactive": 6, "late": 0, "bulk": 2}
    assert {name: seen("queue_depth", model=MODEL, priority=name) for name in depths} == depths
    assert {name: band["depth"] for name, band in queue["priorities"].items()} == depths
    assert (queue["depth"], queue["in_flight"], queue["ready_slots"]) == (8, 0, 0)
    least, most = ledger.waited_s
    assert least <= seen("queue_oldest_age_seconds", model=MODEL, priority="interactive") <= most
    assert least <= queue["oldest_age_s"] <= most
    # No worker runs, so there is no estimate of how long the backlog takes.
    assert queue["backlog_s"] is None
    assert not seen.has("queue_backlog_seconds", model=MODEL, priority="interactive")
    assert seen.has("queue_backlog_seconds", model=MODEL, priority="late")


@pytest.mark.parametrize("gateway", ["A", "B"])
def test_the_ends_of_jobs_are_right_at_every_gateway_and_after_restarts(ledger: Ledger, gateway: str) -> None:
    last = ledger.gateways[gateway][-1]
    assert last("jobs_accepted_total", model=MODEL) == ledger.accepted
    statuses = ("succeeded", "failed", "cancelled", "expired")
    assert {status: last("jobs_total", model=MODEL, status=status) for status in statuses} == dict(ledger.ended)
    assert last("jobs_total", model=MODEL) == ledger.accepted
    assert (last("jobs_dead_total", model=MODEL), last("settled_stale_total"), last("retried_total")) == (1, 0, 0)
    assert (last("queue_depth"), last("jobs_in_flight"), last("jobs_delayed"), last("queue_backlog_seconds")) == (0, 0, 0, 0)
    assert last("queue_oldest_age_seconds") == 0.0


@pytest.mark.parametrize("gateway", ["A", "B"])
def test_each_gateway_counts_its_own_requests_and_begins_anew_after_a_restart(ledger: Ledger, gateway: str) -> None:
    lives = ledger.gateways[gateway]
    assert len(lives) == {"A": 1, "B": 2}[gateway]
    for (route, method, status), count in ledger.requests[gateway].items():
        labels = {"route": route, "method": method, "status": status}
        assert increase("http_requests_total", *lives, **labels) == count, route
    assert lives[-1]("http_requests_in_flight") == 0.0
    assert lives[-1]("rejected_total") == lives[-1]("store_errors_total") == 0.0


def test_the_workers_together_took_every_job_that_ran_once(ledger: Ledger) -> None:
    lives = ledger.workers
    assert len(lives) == 3
    ran = ledger.ended["succeeded"] + ledger.ended["failed"]
    crashed = 1
    assert increase("claimed_items_total", *lives, model=MODEL) == ran
    assert increase("queue_wait_seconds_count", *lives, model=MODEL) == ran
    assert increase("queue_wait_seconds_count", *lives, model=MODEL, priority="bulk") == 2
    assert increase("batch_size_sum", *lives, model=MODEL) == ran - crashed
    assert increase("job_duration_seconds_count", *lives, model=MODEL) == ran - crashed
    batches = increase("batch_size_count", *lives, model=MODEL)
    assert increase("claims_total", *lives, model=MODEL) == batches + crashed
    assert increase("batch_flush_total", *lives, model=MODEL) == batches
    for name in ("batch_wait_seconds_count", "io_seconds_count"):
        stages = ("decode", "store") if name.startswith("io") else (None,)
        for stage in stages:
            assert increase(name, *lives, model=MODEL, **({"stage": stage} if stage else {})) == batches, (name, stage)
    for stage in ("preprocess", "inference", "postprocess"):
        assert increase("handler_seconds_count", *lives, model=MODEL, stage=stage) == batches
    inference_s = increase("handler_seconds_sum", *lives, model=MODEL, stage="inference")
    assert increase("slot_busy_seconds_total", *lives, model=MODEL) == pytest.approx(inference_s)


def test_what_went_wrong_is_counted_once_by_the_worker_it_happened_to(ledger: Ledger) -> None:
    lives = ledger.workers
    assert increase("worker_restarts_total", *lives, model=MODEL) == 1
    assert increase("worker_restarts_total", *lives, model=MODEL, reason="crashed") == 1
    assert increase("batches_lost_total", *lives, model=MODEL, reason="crashed") == 1
    assert increase("model_load_seconds_count", *lives, model=MODEL) == ledger.loads
    for name in ("lease_losses_total", "store_errors_total", "repairs_total"):
        assert increase(name, *lives) == 0, name
    # A late job is ended by a sweep or by a claim, whichever reaches the job first.
    assert increase("swept_total", *lives, to="expired") in (0, 1, 2)
    assert increase("sweeps_total", *lives) > 0


def test_a_worker_tells_of_its_slots_now(ledger: Ledger) -> None:
    last = ledger.workers[-1]
    assert last("worker_up", model=MODEL) == 1.0
    assert last("child_resident_bytes", model=MODEL, slot="0") > 1_000_000
    # Either of the two workers may have taken the last jobs.
    consumed = max(life("worker_last_consumed_timestamp_seconds", model=MODEL) for life in ledger.workers)
    assert time.time() - 300.0 < consumed <= time.time()


def documented() -> dict[str, tuple[str, str, set[str]]]:
    """Name, type and labels of each documented metric, by process and name. Some names are in the tables of both processes."""
    found = {}
    for title, process in (("## Gateway", "gateway"), ("## Worker", "worker"), ("## TorchServe", "gateway")):
        section = PAGE.read_text("utf-8").partition(title)[2].partition("\n## ")[0]
        for name, kind, labels in re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \|", section, re.MULTILINE):
            found[f"{process} {name}"] = (name, kind, set(re.findall(r"`(\w+)`", labels)))
    return found


# Only where a GPU is: other tests of these metrics have them.
NOT_HERE = ("GPU",)


@pytest.mark.parametrize("process", ["gateway", "worker"])
def test_the_page_of_metrics_lists_what_a_scrape_has_and_nothing_else(ledger: Ledger, process: str) -> None:
    lives = ledger.workers if process == "worker" else [life for lives in ledger.gateways.values() for life in lives]
    named = {name: kind for key, (name, kind, _) in documented().items() if key.startswith(process)}
    told = {name: kind for name, kind in named.items() if not name.startswith(NOT_HERE)}
    types = {"untyped": "unknown"}
    assert {name: types.get(kind, kind) for life in lives for name, kind in life.types.items()} == told
    labels = {name: labels for key, (name, _, labels) in documented().items() if key.startswith(process)}
    for life in lives:
        for sample, found in life.labels().items():
            # The client library's parser gives counters of TorchServe's an ending that they do not have.
            names = (re.sub(r"_(bucket|sum|count)$", "", sample), sample, sample.removesuffix("_total"))
            assert found <= labels[next(name for name in names if name in labels)], sample


def two_free_ports() -> int:
    """The first of two consecutive ports that are both free."""
    while True:
        port = free_port()
        with psutil.Process().oneshot():
            taken = {c.laddr.port for c in psutil.net_connections() if c.laddr}
        if port + 1 not in taken and port < 65_000:
            return port


def test_processes_side_by_side_have_a_port_each_and_none_loses_the_others_counts(redis_url: str, tmp_path: Path) -> None:
    first = two_free_ports()
    ports = (first, first + 1)
    with gateway_process(redis_url, tmp_path, processes=2, metrics_port=first) as client:
        # A scrape of the shared port would show an arbitrary one of the processes.
        assert client.get("/metrics").status_code == 404
        eventually(lambda: all(answers(port) for port in ports))

        def counted() -> list[float]:
            return [scraped(port)("http_requests_total", route="/v1/models", status="200") for port in ports]

        for _ in range(30):
            assert HTTP.get(f"{client.base_url}/v1/models").status_code == 200
        assert sum(counted()) == 30
        before = counted()
        dead = next(child for child in psutil.Process(client.process.pid).children() if listens(child, first))
        dead.kill()
        eventually(lambda: not dead.is_running() and answers(first))
        # The killed process's successor has the same metrics port and counts from zero; the other process keeps its counts.
        assert counted() == [0.0, before[1]]


def listens(process: psutil.Process, port: int) -> bool:
    return any(c.laddr.port == port for c in process.net_connections() if c.status == psutil.CONN_LISTEN)


def answers(port: int) -> bool:
    try:
        return HTTP.get(f"http://127.0.0.1:{port}/metrics").status_code == 200
    except httpx2.TransportError:
        return False

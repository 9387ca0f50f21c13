"""What a user can find out about a slow job: timelines, traces and log lines of a real gateway and real workers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from penstock import AsyncClient, Client
from penstock.client.timelines import TimelineView
from tests.acceptance.collector import Collector, Sent, collecting
from tests.eventually import eventually
from tests.integration.worker_process import FAULTY, WorkerProcess
from tests.stack import Stack

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
RETRYING = """
import penstock

SEEN = set()


class Retrying(penstock.Handler):
    def inference(self, batch):
        return [self.one(item) for item in batch]

    def one(self, item):
        if item in SEEN:
            return item
        SEEN.add(item)
        return penstock.Failure("not yet", retryable=True)
"""
PRODUCER, CONSUMER = 4, 5


class ObservedStack(Stack):
    """All processes send their spans to a collector."""

    collector: Collector

    def lines(self, job: str) -> list[dict[str, Any]]:
        """The log lines of one job: first the lines of the gateway, then the lines of the worker."""
        texts = [*(self.folder / "gateway.log").read_text().splitlines(), *self.worker.log.read_text().splitlines()]
        entries = [json.loads(line) for line in texts if line.startswith("{")]
        return [entry for entry in entries if entry.get("job_id") == job]


@pytest.fixture(scope="module")
def stack(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservedStack]:
    folder = tmp_path_factory.mktemp("observed")
    (folder / "retrying.py").write_text(RETRYING)
    models = {
        "faulty": {"source": f"{FAULTY}:Faulty", "max_batch_size": 8},
        "retrying": {"source": str(folder / "retrying.py")},
    }
    doomed = {"doomed": {"source": f"{FAULTY}:Faulty"}}
    with collecting() as collector, (folder / "gateway.log").open("ab") as log:
        env = {**collector.env(), "PENSTOCK_LOG__JOBS": "all"}
        with ObservedStack(folder, models, store=redis_url, env=env) as stack:
            stack.collector = collector
            stack.start_gateway(models={**models, **doomed}, log=log)
            stack.start_worker()
            stack.worker.await_ready()
            yield stack


@pytest.fixture(scope="module")
def client(stack: ObservedStack) -> Iterator[Client]:
    with Client(str(stack.http.base_url)) as client:
        yield client


def sums_up(told: TimelineView) -> bool:
    return sum(stage.seconds for stage in told.stages) == pytest.approx(told.total_s, rel=0.02, abs=1e-5)


def test_a_normal_jobs_timeline_tells_its_stages_its_batch_and_where_it_ran(stack: ObservedStack, client: Client) -> None:
    job = client.submit("faulty", {"do": "sleep", "seconds": 0.1})
    assert job.wait(40).status == "succeeded"
    told = job.timeline()
    assert sums_up(told)
    assert told.slowest == "inference"
    assert told.seconds("inference") >= 0.1
    assert told.batch is not None
    # The first batch of a new slot is limited to one job, so that one job fills the batch.
    assert told.batch.reason in ("idle", "full")
    assert (told.batch.size, told.batch.place, told.batch.device) == (1, 1, "cpu")
    [tried] = told.attempts
    assert (tried.attempt, tried.end, tried.batch) == (1, "succeeded", told.batch.id)
    assert tried.worker in {worker["name"] for worker in client.workers()}
    assert job.view.links["timeline"] == f"/v1/jobs/{job.id}/timeline"


def test_a_job_behind_others_tells_how_many_and_that_it_waited(stack: ObservedStack, client: Client) -> None:
    first = client.submit("faulty", {"do": "sleep", "seconds": 2.0})
    eventually(lambda: first.refresh().status == "running")
    jobs = [client.submit("faulty", {"do": "sleep", "seconds": 0.02}) for _ in range(12)]
    last = jobs[-1]
    last.wait(40)
    told = last.timeline()
    assert told.queued_behind >= 3
    assert told.summary.startswith("waited ")
    assert sums_up(told)


def test_a_retried_job_tells_both_attempts_and_the_pause_between(client: Client) -> None:
    job = client.submit("retrying", 1)
    assert job.wait(40).status == "succeeded"
    told = job.timeline()
    assert [(tried.attempt, tried.end) for tried in told.attempts] == [(1, "retried"), (2, "succeeded")]
    assert told.seconds("lost") > 0.0
    assert sums_up(told)


def test_a_cancelled_job_waited_until_its_cancel(client: Client) -> None:
    job = client.submit("doomed", {})
    job.cancel()
    told = job.timeline()
    assert (told.status, told.attempts, told.batch, told.slowest) == ("cancelled", (), None, "queue")
    assert told.summary.endswith("until it was cancelled")
    assert sums_up(told)


def test_an_expired_job_waited_until_its_deadline(stack: ObservedStack, client: Client) -> None:
    # A slot holds one batch on the device and one prepared batch, and claims no third one.
    gate = stack.folder / "expired.open"
    blockers = [client.submit("faulty", {"do": "wait", "tag": str(gate)})]
    eventually(lambda: blockers[0].refresh().status == "running")
    blockers.append(client.submit("faulty", {"do": "sleep", "seconds": 0.1}))
    eventually(lambda: blockers[1].refresh().status == "running")
    job = client.submit("faulty", {}, deadline_s=0.3)
    assert job.wait(40).status == "expired"
    gate.touch()
    told = job.timeline()
    assert sums_up(told)
    assert (told.slowest, told.attempts) == ("queue", ())
    assert told.total_s >= 0.3


@dataclass
class Recovered:
    """A job whose first worker was killed: both workers' names, and what the second had sent before and after its drain."""

    told: TimelineView
    workers: list[str]
    lost: list[dict[str, Any]]
    sent_before: list[Sent]
    sent: list[Sent]


@pytest.fixture(scope="module")
def recovered(stack: ObservedStack, client: Client) -> Recovered:
    model, gate = {"doomed": {"source": f"{FAULTY}:Faulty"}}, stack.folder / "doomed.open"
    job = client.submit("doomed", {"do": "wait", "tag": str(gate)})
    with WorkerProcess(stack.redis_url, stack.folder / "first", model) as first:
        name = first.await_ready()
        eventually(lambda: job.refresh().status == "running")
        first.kill()
    gate.touch()
    # With this delay between exports, only the drain of the worker can have sent a span.
    env = {**stack.collector.env(), "OTEL_BSP_SCHEDULE_DELAY": "600000"}
    with stack.new_worker("second", model, env=env) as second:
        other = second.await_ready()
        assert job.wait(40).status == "succeeded"
        # The sweep of either worker may have found the lost job first.
        lines = eventually(lambda: [*second.events("job_lost"), *stack.worker.events("job_lost")])
        before = stack.collector.named("process penstock.{doomed}")
        second.send(signal.SIGTERM)
        assert second.exit_code(within_s=20.0) == 0
    lost = [line for line in lines if line["job_id"] == job.id]
    return Recovered(job.timeline(), [name, other], lost, before, stack.collector.named("process penstock.{doomed}"))


def test_a_job_whose_worker_was_killed_tells_the_attempt_that_was_lost(recovered: Recovered) -> None:
    told, (name, other) = recovered.told, recovered.workers
    assert [(tried.worker, tried.end) for tried in told.attempts] == [(name, "worker_lost"), (other, "succeeded")]
    assert told.seconds("lost") > 0.0
    assert sums_up(told)
    assert [(line["batch_id"], line["cause"]) for line in recovered.lost] == [(told.attempts[0].batch, "worker_lost")]


def test_what_is_left_of_the_spans_is_sent_when_the_worker_drains(recovered: Recovered) -> None:
    assert recovered.sent_before == []
    assert len(recovered.sent) == 1


def test_the_timeline_of_a_running_job_adds_up_too(stack: ObservedStack, client: Client) -> None:
    gate = stack.folder / "running.open"
    job = client.submit("faulty", {"do": "wait", "tag": str(gate)})
    eventually(lambda: job.refresh().status == "running")
    told = job.timeline()
    gate.touch()
    assert (told.status, told.attempts[-1].end, told.attempts[-1].ended_at) == ("running", "", None)
    assert "run" in {stage.name for stage in told.stages}
    assert sums_up(told)


def test_an_unknown_jobs_timeline_is_not_found(stack: ObservedStack) -> None:
    answer = stack.http.get(f"/v1/jobs/{'0' * 26}-faulty/timeline")
    assert answer.status_code == 404


def test_both_clients_read_a_timeline_by_its_id(stack: ObservedStack, client: Client) -> None:
    job = client.submit("faulty", {})
    job.wait(40)

    async def ask() -> TimelineView:
        async with AsyncClient(str(stack.http.base_url)) as asynchronous:
            return await asynchronous.timeline(job.id)

    assert asyncio.run(ask()) == client.timeline(job.id)


def penstock(stack: ObservedStack, *argv: str) -> str:
    env = {**os.environ, "PENSTOCK_URL": str(stack.http.base_url)}
    command = [sys.executable, "-m", "penstock", *argv]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return ran.stdout


def test_jobs_show_prints_the_timeline_and_what_took_longest(stack: ObservedStack, client: Client) -> None:
    job = client.submit("faulty", {"do": "sleep", "seconds": 0.1})
    job.wait(40)
    shown = penstock(stack, "jobs", "show", job.id)
    assert "on the device, alone" in shown
    assert [line.split()[0] for line in shown.splitlines() if line.startswith(("STAGE", "inference"))] == ["STAGE", "inference"]
    body = json.loads(penstock(stack, "jobs", "show", job.id, "--json"))
    assert body["timeline"] == dict(client.timeline(job.id).body)


# --- traces --------------------------------------------------------------------------------------------------------------


def test_the_callers_trace_goes_through_the_job_and_comes_back(stack: ObservedStack) -> None:
    sent = {"traceparent": PARENT, "tracestate": "vendor=1"}
    accepted = stack.http.post("/v1/models/faulty/jobs", json={}, headers=sent)
    assert accepted.status_code == 202
    assert accepted.json()["trace_id"] == accepted.headers["traceparent"][3:35] == TRACE
    job = stack.http.get(accepted.json()["links"]["result"], params={"wait": "25"})
    assert job.status_code == 200
    assert stack.http.get(accepted.json()["links"]["self"]).json()["trace_id"] == TRACE
    answer = stack.http.post("/predictions/faulty", json={}, headers=sent)
    assert answer.headers["traceparent"][3:35] == TRACE


def test_a_refusal_names_the_trace(stack: ObservedStack) -> None:
    for path in ("/predictions/faulty", "/v1/models/nobody/jobs"):
        refused = stack.http.post(path, content=b"{", headers={"traceparent": PARENT, "content-type": "application/json"})
        assert refused.status_code in (400, 404)
        assert refused.json()["trace_id"] == TRACE
    missing = stack.http.get(f"/v1/jobs/{'0' * 26}-faulty", headers={"traceparent": PARENT})
    assert missing.json()["trace_id"] == TRACE
    assert "trace_id" not in stack.http.get("/nothing").json()


def jobs_of(span: Sent) -> set[str]:
    return {told["messaging.message.id"] for *_, told in span.links}


def test_every_job_has_a_producer_span_and_its_batch_one_span_with_a_link_to_each(stack: ObservedStack, client: Client) -> None:
    gate = stack.folder / "batches.open"
    blocker = client.submit("faulty", {"do": "wait", "tag": str(gate)})
    eventually(lambda: blocker.refresh().status == "running")
    jobs = [client.submit("faulty", {"tag": n}) for n in range(6)]
    gate.touch()
    views = [job.wait(40) for job in jobs]
    traces = {view.id: view.body["trace_id"] for view in views}
    assert len(set(traces.values())) == 6

    def sent() -> dict[str, Any]:
        spans = stack.collector.named("send penstock.{faulty}")
        return {span.attributes["messaging.message.id"]: span for span in spans}

    eventually(lambda: traces.keys() <= sent().keys())
    assert {job: sent()[job].trace_id for job in traces} == traces
    assert {sent()[job].kind for job in traces} == {PRODUCER}

    def linked() -> dict[str, tuple[str, str]]:
        spans = stack.collector.named("process penstock.{faulty}")
        return {told["messaging.message.id"]: (trace, at) for span in spans for trace, at, told in span.links}

    eventually(lambda: traces.keys() <= linked().keys())
    assert {job: linked()[job] for job in traces} == {job: (traces[job], sent()[job].span_id) for job in traces}
    batches = [span for span in stack.collector.named("process ") if jobs_of(span) & traces.keys()]
    assert all(span.attributes["messaging.batch.message_count"] == len(span.links) for span in batches)
    assert {(span.kind, span.parent_id, span.service) for span in batches} == {(CONSUMER, "", "penstock-worker")}
    assert not any(span.error for span in batches)
    assert len(batches) < 6


def test_a_producer_span_is_the_child_of_the_callers(stack: ObservedStack) -> None:
    job = stack.http.post("/v1/models/faulty/jobs", json={}, headers={"traceparent": PARENT}).json()["id"]
    spans = eventually(lambda: [s for s in stack.collector.named("send ") if s.attributes["messaging.message.id"] == job])
    assert (spans[0].trace_id, spans[0].parent_id, spans[0].service) == (TRACE, SPAN, "penstock-gateway")


def test_a_batch_that_failed_says_how(stack: ObservedStack, client: Client) -> None:
    job = client.submit("faulty", {"do": "raise"})
    job.wait(40)

    def failed() -> list[Any]:
        spans = stack.collector.named("process penstock.{faulty}")
        return [span for span in spans if job.id in jobs_of(span)]

    [span] = eventually(failed)
    assert span.error
    assert span.attributes["error.type"] == "handler_error"


# --- log lines -----------------------------------------------------------------------------------------------------------


def test_every_change_of_a_job_is_one_line_with_job_batch_and_trace(stack: ObservedStack, client: Client) -> None:
    job = client.submit("retrying", 2)
    view = job.wait(40)
    events = eventually(lambda: (lines := stack.lines(job.id)) and lines[-1]["event"] == "job_finished" and lines)
    assert [line["event"] for line in events] == ["job_accepted", "job_claimed", "job_retried", "job_claimed", "job_finished"]
    assert {line["trace_id"] for line in events} == {view.body["trace_id"]}
    assert {(line["model"], line["version"]) for line in events} == {("retrying", "1")}
    batches = [tried.batch for tried in job.timeline().attempts]
    assert [line["batch_id"] for line in events] == ["", batches[0], batches[0], batches[1], batches[1]]
    assert events[-1]["state"] == "succeeded"
    assert events[-1]["total_s"] == pytest.approx(job.timeline().total_s, abs=0.1)


def test_the_end_of_a_job_that_nobody_ran_is_logged_too(stack: ObservedStack, client: Client) -> None:
    job = client.submit("doomed", {})
    job.cancel()
    ended = eventually(lambda: [line for line in stack.lines(job.id) if line["event"] == "job_finished"])
    assert [line["state"] for line in ended] == ["cancelled"]

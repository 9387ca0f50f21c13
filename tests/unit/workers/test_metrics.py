from __future__ import annotations

import os
import socket
import time
import urllib.request

import psutil
import pytest

from penstock.broker.records import BatchStamp, ClaimedJob, Ending, Settled
from penstock.errors import ConfigError
from penstock.job import JobState, Payload, Priority
from penstock.job_id import JobId
from penstock.model_spec import ModelSpec
from penstock.workers.batcher import Held
from penstock.workers.exchange import Finish
from penstock.workers.metrics import Metrics
from penstock.workers.settle import accepted

SPEC = ModelSpec("m", "m.py")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_the_scrape_is_served_on_the_address_named_and_no_other() -> None:
    # It listened on every address of the machine, beside a gateway that shows nothing beyond loopback without a key.
    port = free_port()
    Metrics("w").serve("127.0.0.1", port)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        assert b"penstock_batch_size" in answer.read()
    heard = [c.laddr for c in psutil.Process(os.getpid()).net_connections() if c.status == psutil.CONN_LISTEN]
    assert {address.ip for address in heard if address.port == port} == {"127.0.0.1"}


def test_a_port_that_is_taken_is_named_with_its_setting() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match=f"port {taken.getsockname()[1]}") as refused:
            Metrics("w").serve("127.0.0.1", taken.getsockname()[1])
    assert "worker.metrics_port" in str(refused.value.hint)


def test_without_a_port_nothing_is_opened() -> None:
    Metrics("w").serve("127.0.0.1", 0)


def job(number: int, *, came_at: float, attempts: int = 1, priority: Priority = Priority.INTERACTIVE) -> ClaimedJob:
    id = JobId(f"{number:026d}", "m")
    return ClaimedJob(id, "t", Payload("application/json", b"1"), priority, came_at, came_at + 100, attempts, 0)


def held(*jobs: ClaimedJob) -> Held:
    return Held(jobs, "full", "w", "nonce", claimed_at=time.monotonic(), leased_at=1_000.0)


def sample(metrics: Metrics, name: str, priority: str = "interactive", **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, {"model": "m", "priority": priority, **labels})


@pytest.fixture
def metrics() -> Metrics:
    metrics = Metrics("w")
    metrics.serve("127.0.0.1", free_port())
    return metrics


def test_the_wait_in_the_queue_is_told_by_redis_clock_and_once_per_job(metrics: Metrics) -> None:
    again = job(3, came_at=0.0, attempts=2)
    metrics.claimed(SPEC, held(job(1, came_at=999.0), job(2, came_at=990.0, priority=Priority.BULK), again))
    assert sample(metrics, "penstock_queue_wait_seconds_sum") == 1.0
    assert sample(metrics, "penstock_queue_wait_seconds_count") == 1.0
    assert sample(metrics, "penstock_queue_wait_seconds_sum", "bulk") == 10.0


def test_a_job_lasts_from_its_acceptance_until_it_is_settled_and_counts_for_whoever_held_it(metrics: Metrics) -> None:
    batch = held(job(1, came_at=400.0), job(2, came_at=0.0))
    endings = tuple(Ending(job.id, job.token, JobState.SUCCEEDED) for job in batch.jobs)
    finish = Finish(endings, "w", BatchStamp(), accepted=accepted(batch, batch.jobs))
    metrics.settled(SPEC, finish, [Settled.OK, Settled.STALE], 0.002)
    assert sample(metrics, "penstock_job_duration_seconds_sum") == pytest.approx(600.0, abs=5.0)
    assert sample(metrics, "penstock_job_duration_seconds_count") == 1.0
    # A backlog of minutes must still show: the buckets reach half an hour.
    assert sample(metrics, "penstock_job_duration_seconds_bucket", le="300.0") == 0.0
    assert sample(metrics, "penstock_job_duration_seconds_bucket", le="1800.0") == 1.0

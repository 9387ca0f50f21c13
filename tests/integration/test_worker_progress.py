"""Items that run for long say how far they are, live as long as they do, and hear that nobody wants them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from penstock.job import JobId, JobState
from tests.eventually import eventually
from tests.integration.worker_process import HANDLERS, JobClient, WorkerProcess

SOURCE = str(HANDLERS / "steady.py")
MODELS = {
    "steady": {"source": SOURCE, "warm_up": False, "max_run_s": 1.0},
    "alone": {"source": SOURCE, "warm_up": False, "max_batch_size": 1, "max_run_s": 1.0},
}


@pytest.fixture(scope="module")
def url(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with WorkerProcess(redis_url, tmp_path_factory.mktemp("w"), MODELS, beat_s=0.2) as worker:
        worker.await_ready()
        yield redis_url


@pytest.fixture
def alone(url: str) -> Iterator[JobClient]:
    with closing(JobClient(url, "alone")) as client:
        yield client


def seen(client: JobClient, job: JobId) -> tuple[float, str] | None:
    progress = client.job(job).progress
    return (progress.fraction, progress.note) if progress else None


def test_an_item_that_reports_outlives_the_limit_of_a_run(alone: JobClient) -> None:
    jobs = alone.submit({"steps": 40, "tag": "a"}, {"steps": 1, "tag": "b"})
    eventually(lambda: (seen(alone, jobs[0]) or (0, ""))[0] > 0.1)
    ended = alone.await_final(jobs)
    assert [(job.state, job.attempts, job.crashes) for job in ended] == [(JobState.SUCCEEDED, 1, 0)] * 2
    assert seen(alone, jobs[0]) == (1.0, "step 40 of 40: a")
    assert [alone.output(job) for job in jobs] == [40, 1]


def test_a_cancelled_item_hears_of_it_and_its_output_is_dropped(alone: JobClient) -> None:
    [job] = alone.submit({"forever": True})
    eventually(lambda: seen(alone, job))
    alone.store.cancel(job)
    [ended] = alone.await_final([job])
    assert (ended.state, ended.crashes) == (JobState.CANCELLED, 0)


def test_an_item_that_stops_at_its_deadline_is_expired(alone: JobClient, url: str) -> None:
    [job] = alone.submit({"forever": True}, deadline_s=0.5)
    [ended] = alone.await_final([job])
    assert (ended.state, ended.error and ended.error.code) == (JobState.EXPIRED, "expired")


def test_each_item_of_a_batch_has_its_own_progress_also_when_its_call_is_repeated_in_parts(url: str) -> None:
    with closing(JobClient(url, "steady")) as steady:
        orders: list[dict[str, Any]] = [{"steps": 2, "tag": tag} for tag in range(7)]
        orders.insert(5, {"steps": 2, "tag": "x", "bad": True})
        jobs = steady.submit(*orders)
        ended = steady.await_final(jobs)
        assert [job.state for job in ended].count(JobState.FAILED) == 1
        assert [seen(steady, job) for job in jobs] == [(1.0, f"step 2 of 2: {order['tag']}") for order in orders]

"""Handlers that yield, in a real worker: what they yield is in the store in order, once, before the job has ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from penstock.embedded.server import EmbeddedServer
from penstock.job import JobId, JobState
from tests.eventually import eventually
from tests.integration.worker_process import HANDLERS, JobClient, WorkerProcess

SOURCE = str(HANDLERS / "speller.py")
MODELS = {
    "batch": {"source": f"{SOURCE}:Speller", "warm_up": False, "max_stream_bytes": 20_000},
    "item": {"source": f"{SOURCE}:spell", "warm_up": False},
}


@pytest.fixture(scope="module")
def worker(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    with WorkerProcess(redis_url, tmp_path_factory.mktemp("w"), MODELS, beat_s=0.2) as worker:
        worker.await_ready()
        yield worker


@pytest.fixture(params=["batch", "item"])
def client(request: pytest.FixtureRequest, worker: WorkerProcess, redis_url: str) -> Iterator[JobClient]:
    with closing(JobClient(redis_url, request.param)) as client:
        yield client


def spelled(client: JobClient, job: JobId) -> tuple[str, str]:
    """The mark of the stream, and its letters."""
    found = client.store.follow(job)
    assert found is not None
    part = found.stream
    return part.mark, "".join(chunk.decode().strip('"') for chunk in part.chunks)


def test_what_is_yielded_is_there_while_the_job_runs(client: JobClient, tmp_path: Path) -> None:
    [job] = client.submit({"text": "penstock", "until": str(tmp_path / "gate")})
    eventually(lambda: spelled(client, job) == ("1.0", "penstoc"))
    assert client.job(job).state is JobState.LEASED
    (tmp_path / "gate").touch()
    client.await_final([job])
    assert (spelled(client, job), client.output(job)) == (("1.0", "penstock"), "penstock")


def test_what_is_returned_is_the_output(client: JobClient) -> None:
    [job] = client.submit({"text": "abc", "returns": {"letters": 3}})
    client.await_final([job])
    assert (spelled(client, job), client.output(job)) == (("1.0", "abc"), {"letters": 3})


def test_each_job_of_a_batch_has_its_own_stream_and_a_bad_one_fails_alone(client: JobClient) -> None:
    texts = [f"text number {n} " * n for n in range(1, 9)]
    jobs = client.submit(*({"text": text} for text in texts), {"text": "broken", "raise_at": 3})
    *good, bad = client.await_final(jobs)
    assert [job.state for job in good] == [JobState.SUCCEEDED] * 8
    assert [spelled(client, job.id)[1] for job in good] == texts == [client.output(job.id) for job in good]
    assert (bad.state, bad.error and bad.error.code) == (JobState.FAILED, "handler_error")


def test_a_stream_without_an_end_ends_when_its_job_is_cancelled(client: JobClient) -> None:
    [job] = client.submit({"text": "again ", "forever": True, "slowly": True})
    eventually(lambda: spelled(client, job)[1])
    client.store.cancel(job)
    [ended] = client.await_final([job])
    assert ended.state is JobState.CANCELLED


def test_a_stream_that_grows_past_its_limit_fails_its_job(worker: WorkerProcess, redis_url: str) -> None:
    with closing(JobClient(redis_url, "batch")) as client:
        [job] = client.submit({"text": "again ", "forever": True})
        [ended] = client.await_final([job])
        assert (ended.state, ended.error and ended.error.code) == (JobState.FAILED, "stream_too_large")
        assert ended.error is not None
        assert "max_stream_bytes, 20000" in ended.error.message


def test_after_a_crash_in_mid_stream_the_stream_begins_anew_and_one_result_stands(client: JobClient, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    [job] = client.submit({"text": "penstock", "exit_at": 4, "mark": str(mark)})
    eventually(lambda: spelled(client, job) == ("1.0", "pens"))
    mark.with_suffix(".go").touch()
    [ended] = client.await_final([job])
    assert (ended.state, ended.crashes) == (JobState.SUCCEEDED, 1)
    assert (spelled(client, job), client.output(job)) == (("2.0", "penstock"), "penstock")


def test_after_the_loss_of_a_worker_another_one_begins_the_stream_anew(redis_url: str, tmp_path: Path) -> None:
    models = {"lost": MODELS["item"]}
    gate = tmp_path / "gate"
    with closing(JobClient(redis_url, "lost")) as client:
        with WorkerProcess(redis_url, tmp_path / "w1", models, beat_s=0.2) as first:
            first.await_ready()
            [job] = client.submit({"text": "penstock", "until": str(gate)})
            eventually(lambda: spelled(client, job) == ("1.0", "penstoc"))
            os.killpg(first.process.pid, signal.SIGKILL)
        gate.touch()
        with WorkerProcess(redis_url, tmp_path / "w2", models, beat_s=0.2):
            [ended] = client.await_final([job])
        assert ended.state is JobState.SUCCEEDED
        assert (spelled(client, job), client.output(job)) == (("2.0", "penstock"), "penstock")


def take_back(client: JobClient, job: JobId) -> None:
    """Take the job back from its slot, as if that had been silent for too long; its model's child runs on."""
    client.store.sweep(client.model, gone=[client.job(job).tries[-1].worker])


def test_a_slot_that_lost_a_job_and_gets_it_back_streams_it_anew(client: JobClient, tmp_path: Path) -> None:
    """What the slot knew of the first attempt, its token and its count of chunks, once went into the reports of the second."""
    gate = tmp_path / "gate"
    [job] = client.submit({"text": "penstock", "until": str(gate)})
    eventually(lambda: spelled(client, job) == ("1.0", "penstoc"))
    take_back(client, job)
    gate.touch()
    [ended] = client.await_final([job])
    assert ended.state is JobState.SUCCEEDED
    # On a busy machine the second attempt may lose its lease too.
    attempt, text = spelled(client, job)
    assert (attempt != "1.0", text, client.output(job)) == (True, "penstock", "penstock")


def test_a_stream_without_an_end_is_left_once_its_slot_has_lost_the_job(client: JobClient) -> None:
    """Each chunk counted as a sign of life, also of a batch that nobody awaited: the slot never ran anything again."""
    [job] = client.submit({"text": "again ", "forever": True, "slowly": True})
    eventually(lambda: spelled(client, job)[1])
    take_back(client, job)
    client.store.cancel(job)
    [next_one] = client.submit({"text": "abc"})
    client.await_final([job, next_one])
    assert client.output(next_one) == "abc"


def test_a_stream_of_which_the_store_lost_a_part_begins_anew(client: JobClient, redis_url: str, tmp_path: Path) -> None:
    """A power cut with `everysec` undid the last chunks: the next ones were appended as if none were missing."""
    gate = tmp_path / "gate"
    [job] = client.submit({"text": "penstock", "until": str(gate)})
    eventually(lambda: spelled(client, job) == ("1.0", "penstoc"))
    with redis.Redis.from_url(redis_url) as store:
        store.rpop(f"ps:{{{client.model}}}:stream:{job.serial}", 2)
    gate.touch()
    [ended] = client.await_final([job])
    assert (ended.state, ended.attempts) == (JobState.SUCCEEDED, 1)
    assert (spelled(client, job), client.output(job)) == (("2.0", "penstock"), "penstock")


def test_a_store_that_is_away_for_a_while_costs_the_stream_nothing(tmp_path: Path) -> None:
    models = {"away": MODELS["item"]}
    text = "penstock " * 15
    with EmbeddedServer(tmp_path / "store") as server, WorkerProcess(server.url, tmp_path / "w", models, beat_s=0.2) as worker:
        worker.await_ready()
        with closing(JobClient(server.url, "away")) as client:
            [job] = client.submit({"text": text, "slowly": True})
            eventually(lambda: spelled(client, job)[1])
        server.stop()
        server.start()
        with closing(JobClient(server.url, "away")) as client:
            [ended] = client.await_final([job])
            assert (ended.state, spelled(client, job)[1], client.output(job)) == (JobState.SUCCEEDED, text, text)

"""A real worker finds out which calls of a model are cheapest, and what it finds reaches the registry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from statistics import mean

import pytest

from penstock.broker.store.sync import RedisStore
from penstock.model_spec import LearnedCalls
from tests.eventually import eventually
from tests.integration.worker_process import HANDLERS, JobClient, WorkerProcess

SOURCE = HANDLERS / "padded.py"
MODELS = {"plain": "Plain", "costed": "Costed", "accel": "Accelerator"}
LENGTHS = (20, 20, 20, 25, 30, 600, 40, 25)


@pytest.fixture(scope="module")
def worker(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    tables = {name: {"source": f"{SOURCE}:{handler}"} for name, handler in MODELS.items()}
    with WorkerProcess(redis_url, tmp_path_factory.mktemp("calls"), tables) as worker:
        worker.await_ready()
        yield worker


def learned(url: str, model: str) -> LearnedCalls | None:
    with closing(RedisStore(url)) as store:
        return next((slot.calls for worker in store.workers() for slot in worker.slots if slot.model == model), None)


def texts(count: int) -> list[str]:
    """Texts of mixed length, each of which begins with its number."""
    return [f"{number:08d}".ljust(LENGTHS[number % len(LENGTHS)], "x") for number in range(count)]


@pytest.mark.parametrize("model", ["plain", "costed"])
def test_texts_of_like_length_share_calls_and_every_answer_is_in_its_place(
    worker: WorkerProcess, redis_url: str, model: str
) -> None:
    given = texts(960)
    with closing(JobClient(redis_url, model)) as client:
        ids = client.submit(*given)
        assert {job.state.value for job in client.await_final(ids)} == {"succeeded"}
        answers = [client.output(id) for id in ids]
    assert [(head, length) for head, length, _ in answers] == [(text[:8], len(text)) for text in given]
    late = answers[480:]
    short, long = (mean(shared for _, length, shared in late if (length > 100) is is_long) for is_long in (False, True))
    assert short > 1.5 * long
    # Once texts of like length share calls there is hardly any padding, so either measure of lengths explains the times.
    assert eventually(lambda: learned(redis_url, model)).measure in ("padded cost", "cost")


def test_an_accelerator_runs_full_calls(worker: WorkerProcess, redis_url: str) -> None:
    with closing(JobClient(redis_url, "accel")) as client:
        ids = client.submit(*texts(960))
        client.await_final(ids)
        shared = [client.output(id)[2] for id in ids[480:]]
    assert mean(shared) > 12


def test_a_fault_of_cost_is_one_line_of_the_workers_log_and_no_jobs_end(worker: WorkerProcess, redis_url: str) -> None:
    with closing(JobClient(redis_url, "costed")) as client:
        ids = client.submit("bad one", "fine", "bad two")
        assert {job.state.value for job in client.await_final(ids)} == {"succeeded"}
    eventually(lambda: worker.log.read_text().count("no cost for this one") == 1)

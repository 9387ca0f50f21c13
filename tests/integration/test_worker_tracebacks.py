"""`keep_tracebacks` with a real worker: the developer sees where the code raised, the caller sees what callers always saw."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.job import JobId
from tests.integration.worker_process import JobClient, WorkerProcess

SECRET = "hunter2-hunter2"
CODE = """
import os

import penstock


def lookup(item: dict) -> int:
    return item["x"] / len(os.environ["SERVICE_KEY"])


class Careless(penstock.Handler):
    def inference(self, batch: list[dict]) -> list[float]:
        return [lookup(item) for item in batch]

    def postprocess(self, outputs: list[float]) -> list[float]:
        for output in outputs:
            if output < 0:
                raise ValueError("negative with " + os.environ["SERVICE_KEY"])
        return outputs
"""


@pytest.fixture(scope="module")
def source(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The code of both models of a worker: of `careless` tracebacks are kept, of `quiet` the settings say nothing."""
    folder = tmp_path_factory.mktemp("careless")
    file = folder / "careless.py"
    file.write_text(CODE)
    table = {"source": str(file), "warm_up": False, "secrets": {"SERVICE_KEY": SECRET}}
    models = {"careless": {**table, "keep_tracebacks": True}, "quiet": table}
    with WorkerProcess(redis_url, folder / "w", models) as worker:
        worker.await_ready()
        yield str(file)


def failed(jobs: JobClient, *inputs: object) -> list[JobId]:
    ids = jobs.submit(*inputs)
    ended = jobs.await_final(ids)
    assert [job.state.value for job in ended] == ["failed"] * len(ids)
    return ids


def test_a_traceback_begins_in_the_models_code_and_holds_no_secret(redis_url: str, source: str) -> None:
    jobs = JobClient(redis_url, "careless")
    missing, negative = failed(jobs, {}, {"x": -4})
    [good] = jobs.await_final(jobs.submit({"x": 15}))
    first, second = jobs.store.traceback(missing), jobs.store.traceback(negative)
    lines = first.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert source in lines[1]
    assert "in inference" in lines[1]
    assert "in lookup" in first
    assert lines[-1] == "KeyError: 'x'"
    assert "penstock" not in first.replace(source, "")
    assert second.splitlines()[-1] == "ValueError: negative with ***"
    assert SECRET not in first + second
    error = jobs.job(missing).error
    assert error is not None
    assert error.message == "KeyError: 'x'"
    assert jobs.store.traceback(good.id) == ""
    jobs.close()


@pytest.mark.usefixtures("source")
def test_nothing_is_kept_unless_the_settings_say_so(redis_url: str) -> None:
    jobs = JobClient(redis_url, "quiet")
    [job] = failed(jobs, {})
    assert jobs.store.traceback(job) == ""
    jobs.close()

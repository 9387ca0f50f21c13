"""`keep_tracebacks` with a real worker: the developer sees where the code raised, the caller sees what callers always saw."""

from __future__ import annotations

from pathlib import Path

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


@pytest.fixture
def source(tmp_path: Path) -> str:
    file = tmp_path / "careless.py"
    file.write_text(CODE)
    return str(file)


def failed(jobs: JobClient, *inputs: object) -> list[JobId]:
    ids = jobs.submit(*inputs)
    ended = jobs.await_final(ids)
    assert [job.state.value for job in ended] == ["failed"] * len(ids)
    return ids


def test_a_traceback_begins_in_the_models_code_and_holds_no_secret(fresh_redis: str, tmp_path: Path, source: str) -> None:
    jobs = JobClient(fresh_redis, "careless")
    models = {"careless": {"source": source, "warm_up": False, "keep_tracebacks": True, "secrets": {"SERVICE_KEY": SECRET}}}
    with WorkerProcess(fresh_redis, tmp_path / "w", models) as worker:
        worker.await_ready()
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


def test_nothing_is_kept_unless_the_settings_say_so(fresh_redis: str, tmp_path: Path, source: str) -> None:
    jobs = JobClient(fresh_redis, "careless")
    models = {"careless": {"source": source, "warm_up": False, "secrets": {"SERVICE_KEY": SECRET}}}
    with WorkerProcess(fresh_redis, tmp_path / "w", models) as worker:
        worker.await_ready()
        [job] = failed(jobs, {})
    assert jobs.store.traceback(job) == ""
    jobs.close()

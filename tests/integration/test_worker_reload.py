"""`worker.reload`: a model whose code changes is loaded anew, and no job is lost or waits for it in vain."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.broker.store.sync import RedisStore
from penstock.workers.fleet.source_watch import module_file
from tests.eventually import eventually
from tests.integration.worker_process import JobClient, WorkerProcess

CODE = """
import time
import penstock
from helper_of_reload import ANSWER

class Model(penstock.Handler):
    def inference(self, batch: list[{kind}]) -> list:
        time.sleep(0.02)
        return [ANSWER for _ in batch]
"""


MODELS = ("changed", "broken", "typed")


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the code of each model in a folder of its own."""
    code = tmp_path_factory.mktemp("code")
    for name in MODELS:
        (code / name).mkdir()
        write(code / name, 1)
        (code / name / "model.py").write_text(CODE.format(kind="int"))
    return code


def write(folder: Path, answer: int) -> None:
    (folder / "helper_of_reload.py").write_text(f"ANSWER = {answer}\n")


@pytest.fixture(scope="module")
def worker(redis_url: str, tmp_path_factory: pytest.TempPathFactory, code: Path) -> Iterator[WorkerProcess]:
    """One worker for all tests, each with a model of its own."""
    models = {name: {"source": str(code / name / "model.py"), "warm_up": False, "max_batch_size": 2} for name in MODELS}
    with WorkerProcess(redis_url, tmp_path_factory.mktemp("w"), models, beat_s=0.2, reload="true") as worker:
        worker.await_ready()
        yield worker


def await_failures(worker: WorkerProcess, count: int) -> None:
    eventually(lambda: len(worker.events("child_unloadable", "broken")) >= count, timeout_s=60.0)


def answers(client: JobClient, count: int) -> list[int]:
    return [client.output(job.id) for job in client.await_final(client.submit(*range(count)))]


def test_a_change_of_a_file_beside_the_models_own_is_served_and_no_job_is_lost(
    worker: WorkerProcess, redis_url: str, code: Path
) -> None:
    folder = code / "changed"
    with closing(JobClient(redis_url, "changed")) as client:
        assert answers(client, 1) == [1]
        waiting = client.submit(*range(100))
        write(folder, 22)
        eventually(lambda: worker.events("model_reloaded", "changed"), timeout_s=60.0)
        found = [client.output(job.id) for job in client.await_final(waiting)]
        assert set(found) <= {1, 22}
        assert eventually(lambda: answers(client, 1) == [22], timeout_s=60.0)
    [line] = worker.events("model_reloaded", "changed")
    assert line["changed"] == [str(folder / "helper_of_reload.py")]
    assert not worker.events("child_killed", "changed")


def test_code_that_cannot_be_loaded_is_reported_and_its_correction_is_loaded_at_once(
    worker: WorkerProcess, redis_url: str, code: Path
) -> None:
    folder = code / "broken"
    with closing(JobClient(redis_url, "broken")) as client:
        for number in range(4):  # after four failures the next try would come after eight seconds
            (folder / "model.py").write_text(f"def {'x' * number}(:\n")
            await_failures(worker, number + 1)
        waiting = client.submit(1)
        write(folder, 3)
        (folder / "model.py").write_text(CODE.format(kind="int"))
        assert [client.output(job.id) for job in client.await_final(waiting)] == [3]


def test_a_changed_schema_reaches_the_gateways(worker: WorkerProcess, redis_url: str, code: Path) -> None:
    def item_type() -> object:
        with closing(RedisStore(redis_url)) as store:
            info = store.stored_models()["typed"].info
        version = info and info.versions["1"]
        return version and version.input_schema and version.input_schema.get("type")

    eventually(lambda: item_type() == "integer")
    # An edit of the same size in the same second: Python once took the bytecode that it had kept for that of the new code.
    file = code / "typed" / "model.py"
    before = file.stat()
    file.write_text(CODE.format(kind="str"))
    assert file.stat().st_size == before.st_size
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns // 10**9 * 10**9 + (before.st_mtime_ns + 1) % 10**9))
    eventually(lambda: item_type() == "string", timeout_s=60.0)


def test_a_module_is_found_without_running_its_package() -> None:
    assert module_file("tests.handlers.faulty") == Path(__file__).parents[1] / "handlers" / "faulty.py"
    assert module_file("no.such.module") is None

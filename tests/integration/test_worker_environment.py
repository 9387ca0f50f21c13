"""`[models.m.env]` and `[models.m.secrets]` with a real worker: the child gets them, and nobody else sees a secret."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import redis

from tests.eventually import eventually
from tests.integration.worker_process import HANDLERS, JobClient, WorkerProcess

SECRET, URL = "hunter2-hunter2", "http://service.example"
MODEL = "secretive"


def models(**tables: object) -> dict[str, object]:
    return {MODEL: {"source": str(HANDLERS / "secretive.py"), "warm_up": False, **tables}}


@pytest.fixture
def jobs(fresh_redis: str) -> JobClient:
    return JobClient(fresh_redis, MODEL)


def whole_store(url: str) -> bytes:
    with redis.Redis.from_url(url) as client:
        return b"".join(client.dump(key) or b"" for key in client.keys("*"))


def load_error(worker: WorkerProcess) -> str:
    return str(eventually(lambda: next((line["error"] for line in worker.events("child_unloadable")), ""), timeout_s=60.0))


def test_the_child_has_its_variables_and_nobody_else_sees_a_secret(jobs: JobClient, fresh_redis: str, tmp_path: Path) -> None:
    table = models(env={"SERVICE_URL": URL}, secrets={"SERVICE_KEY": {"from": "KEY_OF_THE_WORKER"}})
    with WorkerProcess(fresh_redis, tmp_path / "w", table, {"KEY_OF_THE_WORKER": SECRET}) as worker:
        worker.await_ready()
        told, kept, other = jobs.await_final(jobs.submit("SERVICE_URL", "KEY_OF_THE_WORKER", "PENSTOCK_REDIS_URL"))
        assert jobs.output(told.id) == URL
        assert [job.error.message for job in (kept, other) if job.error] == [
            "no KEY_OF_THE_WORKER, only ***",
            "no PENSTOCK_REDIS_URL, only ***",
        ]
        eventually(lambda: [line for line in worker.events("handler_said") if line["line"] == f"loaded with *** for {URL}"])
        assert SECRET not in worker.log.read_text()
        assert SECRET.encode() not in whole_store(fresh_redis)
    jobs.close()


def test_a_variable_that_the_code_misses_is_named_with_the_line_to_write(fresh_redis: str, tmp_path: Path) -> None:
    with WorkerProcess(fresh_redis, tmp_path / "w", models(secrets={"SERVICE_KEY": SECRET})) as worker:
        error = load_error(worker)
    assert error.startswith("the model's code reads the environment variable SERVICE_URL, which is not set; write")
    assert 'SERVICE_URL = "..." below [models.secretive.env] in penstock.toml' in error


def test_a_secret_whose_file_is_missing_is_reported_and_read_once_it_is_there(
    jobs: JobClient, fresh_redis: str, tmp_path: Path
) -> None:
    file = tmp_path / "key"
    table = models(env={"SERVICE_URL": URL}, secrets={"SERVICE_KEY": {"file": str(file)}})
    with WorkerProcess(fresh_redis, tmp_path / "w", table) as worker:
        expected = f"models.secretive.secrets.SERVICE_KEY: the file {file} cannot be read: No such file or directory"
        assert load_error(worker) == expected
        file.write_text(f"{SECRET}\n")
        worker.await_ready()
        [job] = jobs.await_final(jobs.submit("SERVICE_URL"))
        assert jobs.output(job.id) == URL
    jobs.close()


def test_what_is_not_installed_is_named_with_the_command_that_installs_it(fresh_redis: str, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("no-such-thing>=2\nmsgspec\nno-other\n")
    table = models(requirements=str(tmp_path / "requirements.txt"))
    with WorkerProcess(fresh_redis, tmp_path / "w", table) as worker:
        assert "run: pip install 'no-such-thing>=2' no-other." in load_error(worker)


def test_settings_that_name_a_secret_do_not_show_it(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text(
        f"[models.{MODEL}]\nsource = '{HANDLERS / 'secretive.py'}'\n"
        f"[models.{MODEL}.secrets]\nSERVICE_KEY = '{SECRET}'\n[models.{MODEL}.env]\nSERVICE_URL = {{from = 'OURS'}}\n"
    )
    shown = subprocess.run(
        [sys.executable, "-m", "penstock", "config"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert SECRET not in shown
    lines = {line.split()[0]: line.split()[1:] for line in shown.splitlines()}
    assert lines[f"models.{MODEL}.secrets.SERVICE_KEY"][0] == "***"
    assert lines[f"models.{MODEL}.env.SERVICE_URL"][:2] == ["from", "OURS"]

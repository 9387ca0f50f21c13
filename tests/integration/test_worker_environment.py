"""`[models.m.env]` and `[models.m.secrets]` with a real worker: the child gets them, and nobody else sees a secret."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from tests.eventually import eventually
from tests.integration.worker_process import HANDLERS, JobClient, WorkerProcess

SECRET, URL = "hunter2-hunter2", "http://service.example"
SOURCE = str(HANDLERS / "secretive.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It gets a file `key`."""
    return tmp_path_factory.mktemp("environment")


@pytest.fixture(scope="module")
def worker(redis_url: str, folder: Path) -> Iterator[WorkerProcess]:
    """One worker for all tests; only `secretive` can be loaded at once."""
    (folder / "requirements.txt").write_text("no-such-thing>=2\nmsgspec\nno-other\n")
    tables: dict[str, dict[str, object]] = {
        "secretive": {"env": {"SERVICE_URL": URL}, "secrets": {"SERVICE_KEY": {"from": "KEY_OF_THE_WORKER"}}},
        "unset": {"secrets": {"SERVICE_KEY": SECRET}},
        "late": {"env": {"SERVICE_URL": URL}, "secrets": {"SERVICE_KEY": {"file": str(folder / "key")}}},
        "bare": {"requirements": str(folder / "requirements.txt")},
    }
    models = {name: {"source": SOURCE, "warm_up": False, **table} for name, table in tables.items()}
    with WorkerProcess(redis_url, folder / "w", models, {"KEY_OF_THE_WORKER": SECRET}) as worker:
        yield worker


def whole_store(url: str) -> bytes:
    with redis.Redis.from_url(url) as client:
        return b"".join(client.dump(key) or b"" for key in client.keys("*"))


def await_loaded(worker: WorkerProcess, model: str) -> None:
    eventually(lambda: worker.events("child_ready", model), timeout_s=60.0)


def load_error(worker: WorkerProcess, model: str) -> str:
    return str(
        eventually(lambda: next((line["error"] for line in worker.events("child_unloadable", model)), ""), timeout_s=60.0)
    )


def test_the_child_has_its_variables_and_nobody_else_sees_a_secret(worker: WorkerProcess, redis_url: str) -> None:
    await_loaded(worker, "secretive")
    with closing(JobClient(redis_url, "secretive")) as jobs:
        told, kept, other = jobs.await_final(jobs.submit("SERVICE_URL", "KEY_OF_THE_WORKER", "PENSTOCK_REDIS_URL"))
        assert jobs.output(told.id) == URL
    assert [job.error.message for job in (kept, other) if job.error] == [
        "no KEY_OF_THE_WORKER, only ***",
        "no PENSTOCK_REDIS_URL, only ***",
    ]
    said = f"loaded with *** for {URL}"
    eventually(lambda: [line for line in worker.events("handler_said", "secretive") if line["line"] == said])
    assert SECRET not in worker.log.read_text()
    assert SECRET.encode() not in whole_store(redis_url)


def test_a_variable_that_the_code_misses_is_named_with_the_line_to_write(worker: WorkerProcess) -> None:
    error = load_error(worker, "unset")
    assert error.startswith("the model's code reads the environment variable SERVICE_URL, which is not set; write")
    assert 'SERVICE_URL = "..." below [models.unset.env] in penstock.toml' in error


def test_a_secret_whose_file_is_missing_is_reported_and_read_once_it_is_there(
    worker: WorkerProcess, redis_url: str, folder: Path
) -> None:
    file = folder / "key"
    expected = f"models.late.secrets.SERVICE_KEY: the file {file} cannot be read: No such file or directory"
    assert load_error(worker, "late") == expected
    file.write_text(f"{SECRET}\n")
    await_loaded(worker, "late")
    with closing(JobClient(redis_url, "late")) as jobs:
        [job] = jobs.await_final(jobs.submit("SERVICE_URL"))
        assert jobs.output(job.id) == URL


def test_what_is_not_installed_is_named_with_the_command_that_installs_it(worker: WorkerProcess) -> None:
    assert "run: pip install 'no-such-thing>=2' no-other." in load_error(worker, "bare")


def test_settings_that_name_a_secret_do_not_show_it(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text(
        f"[models.secretive]\nsource = '{SOURCE}'\n"
        f"[models.secretive.secrets]\nSERVICE_KEY = '{SECRET}'\n[models.secretive.env]\nSERVICE_URL = {{from = 'OURS'}}\n"
    )
    shown = subprocess.run(
        [sys.executable, "-m", "penstock", "config"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert SECRET not in shown
    lines = {line.split()[0]: line.split()[1:] for line in shown.splitlines()}
    assert lines["models.secretive.secrets.SERVICE_KEY"][0] == "***"
    assert lines["models.secretive.env.SERVICE_URL"][:2] == ["from", "OURS"]

"""A model changes while callers use the model: no job fails, and every refusal names its reason."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.broker.store.sync import RedisStore
from penstock.cli.jobs import call
from penstock.cli.models import workers
from penstock.client.problems import WaitTimeout
from penstock.client.sync import Client
from penstock.errors import Conflict, InvalidInput, NotFound
from tests.acceptance.gateway_process import gateway_process
from tests.eventually import eventually
from tests.integration.worker_process import WorkerProcess

CODE = "import penstock\n\n@penstock.model\ndef echo(x: int) -> str:\n    return 'version {}'\n"
QUICK = {"lease_s": 3.0, "beat_s": 0.3, "sweep_s": 0.5}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    (tmp_path / "one.py").write_text(CODE.format(1))
    for version in (2, 3):
        (tmp_path / "models" / f"v{version}.py").write_text(CODE.format(version))
    (tmp_path / "models" / "broken.py").write_text("raise RuntimeError('no such weights')\n")
    return tmp_path


@contextmanager
def served(redis_url: str, folder: Path, *, source: str = "one.py", version: str = "1") -> Iterator[Client]:
    models: dict[str, Any] = {"echo": {"source": str(folder / source), "version": version}}
    settings: dict[str, Any] = {**QUICK, "model_dir": str(folder / "models")}
    with (
        WorkerProcess(redis_url, folder, models, **settings) as worker,
        gateway_process(redis_url, folder, models=models) as http,
        closing(Client(str(http.base_url))) as client,
    ):
        worker.await_ready()
        eventually(lambda: client.model("echo")["ready"])
        yield client


def ready(client: Client, version: str) -> bool:
    return bool(client.model("echo")["versions"].get(version, {}).get("ready_slots"))


class Caller(threading.Thread):
    """Submits jobs one after the other, and keeps every answer and every error."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self.answers: list[str] = []
        self.errors: list[Exception] = []
        self.over = False

    def run(self) -> None:
        with closing(Client(self._url)) as client:
            while not self.over:
                try:
                    self.answers.append(client.submit("echo", 1).result(60.0))
                except Exception as error:  # noqa: BLE001 - the test looks at them
                    self.errors.append(error)


def test_a_new_version_takes_over_under_load_and_no_job_fails(fresh_redis: str, folder: Path) -> None:
    with served(fresh_redis, folder) as client:
        callers = [Caller(client.base_url) for _ in range(4)]
        for caller in callers:
            caller.start()
        eventually(lambda: all(len(caller.answers) > 5 for caller in callers))
        former = [slot["pid"] for slot in all_of_version(client, "1")]
        client.load_version("echo", "2", "v2.py", settings={"workers": 2})
        eventually(lambda: ready(client, "2"))
        client.switch_version("echo", "2")
        client.unload_version("echo", "1")
        eventually(lambda: all(caller.answers[-1] == "version 2" for caller in callers))
        slots = eventually(lambda: all_of_version(client, "2"), timeout_s=60.0)
        for caller in callers:
            caller.over = True
        for caller in callers:
            caller.join(60.0)
        assert len(slots) == 2
        # An unloaded version's process ends: torch before 2.13 keeps the modules of packages that it has loaded.
        assert former
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in former))
        assert [caller.errors for caller in callers] == [[]] * 4
        for caller in callers:
            # After its first answer of the new version, a caller gets no answer of the old version.
            assert caller.answers == sorted(caller.answers)
            assert {"version 1", "version 2"} == set(caller.answers)


def all_of_version(client: Client, version: str) -> list[dict[str, Any]]:
    """All slots, if each of them runs this version; otherwise an empty list."""
    slots: list[dict[str, Any]] = [slot for worker in client.workers() for slot in worker["slots"]]
    return slots if slots and {slot["version"] for slot in slots} == {version} else []


def test_a_version_asked_for_by_name_is_gone_once_it_is_unloaded_and_comes_back_with_a_reset(
    fresh_redis: str, folder: Path
) -> None:
    with served(fresh_redis, folder) as client:
        client.load_version("echo", "2", "v2.py")
        eventually(lambda: ready(client, "2"))
        client.switch_version("echo", "2")
        assert client.submit("echo", 1, version="1").result(60.0) == "version 1"
        client.unload_version("echo", "1")
        with pytest.raises(NotFound, match="no version '1'"):
            client.submit("echo", 1, version="1")
        eventually(lambda: all_of_version(client, "2"), timeout_s=60.0)
        client.reset_model("echo")
        eventually(lambda: all_of_version(client, "1"), timeout_s=60.0)
        assert client.submit("echo", 1).result(60.0) == "version 1"


def test_a_version_that_cannot_be_loaded_says_why_and_never_becomes_the_default(fresh_redis: str, folder: Path) -> None:
    with served(fresh_redis, folder) as client:
        client.load_version("echo", "2", "broken.py")
        client.load_version("echo", "3", "absent.py")

        def whys() -> str:
            versions = client.model("echo")["versions"]
            return f"{versions['2'].get('why')} {versions['3'].get('why')}"

        eventually(lambda: "no such weights" in whys() and "there is no absent.py" in whys())
        with pytest.raises(Conflict, match="not ready"):
            client.switch_version("echo", "2")
        with pytest.raises(Conflict, match="has a version"):
            client.load_version("echo", "1", "v2.py")
        with pytest.raises(Conflict, match="default"):
            client.unload_version("echo", "1")
        assert client.submit("echo", 1).result(60.0) == "version 1"


def test_who_calls_a_version_that_cannot_be_loaded_is_told_why_on_the_command_line(fresh_redis: str, folder: Path) -> None:
    with served(fresh_redis, folder) as client:
        client.load_version("echo", "2", "broken.py")
        eventually(lambda: "no such weights" in str(client.model("echo")["versions"]["2"].get("why")))
        run = CliRunner()
        called = run.invoke(call.app, ["echo", "1", "--version", "2", "--timeout", "2.1", "--url", client.base_url])
        assert isinstance(called.exception, WaitTimeout)
        assert "the job waits: echo could not be loaded" in called.stderr
        assert "no such weights" in called.stderr
        listed = run.invoke(workers.app, ["--url", client.base_url])
        assert "echo 2 failed: " in listed.stderr
        assert "no such weights" in listed.stderr


OUTSIDE = [
    *("../one.py", "/etc/passwd", "os:system", "", "a\0.py", "folder"),
    *("http://127.0.0.1:1/model.py", "file:///etc/passwd.py"),
]


def test_only_files_below_the_folder_of_models_can_be_named(fresh_redis: str, folder: Path) -> None:
    with (
        gateway_process(fresh_redis, folder, models={"echo": {"source": "one.py"}}) as http,
        closing(Client(str(http.base_url))) as client,
    ):
        for source in OUTSIDE:
            with pytest.raises(InvalidInput, match="relative path"):
                client.load_version("echo", "2", source)
        with pytest.raises(InvalidInput, match="cannot be used") as refused:
            client.load_version("echo", "2", "v2.py", settings={"max_batch_sise": 2})
        assert refused.value.message.count("max_batch_sise: no such setting") == 1


def test_a_model_that_no_settings_name_can_be_loaded_and_taken_away_again(fresh_redis: str, folder: Path) -> None:
    with served(fresh_redis, folder) as client:
        client.load_version("fresh", "1", "v3.py")
        assert eventually(lambda: answered(client)) == "version 3"
        client.unload_version("fresh", "1")
        with pytest.raises(NotFound):
            client.submit("fresh", 1)
        eventually(lambda: not any(slot["model"] == "fresh" for worker in client.workers() for slot in worker["slots"]), 60.0)


# The model is slow and runs one job at a time, so that jobs still wait when every gateway refuses the withdrawn version.
SLOW = """
import time
import penstock

@penstock.model
def echo(x: int) -> str:
    time.sleep(0.12)
    return 'slow'
"""


@pytest.fixture
def slow(folder: Path) -> Path:
    (folder / "models" / "slow.py").write_text(SLOW)
    return folder


def live_workers(redis_url: str) -> int:
    with closing(RedisStore(redis_url)) as store:
        return len(store.workers())


def withdraw_workers(redis_url: str) -> None:
    """Take the worker that was killed out of the registry, as a worker that is stopped does itself.

    Until its entry expires it counts as alive, and a reset keeps the versions that its settings name.
    """
    with closing(RedisStore(redis_url)) as store:
        for worker in store.workers():
            store.withdraw_worker(worker.name)


def gone_from_store(redis_url: str, model: str, version: str) -> bool:
    """Whether neither the registry nor a rollout has an entry of the version."""
    with closing(RedisStore(redis_url)) as store:
        info = next((info for info in store.models() if info.name == model), None)
        rollout = store.rollouts().get(model)
    return rollout is None and (info is None or version not in info.versions)


def test_jobs_that_wait_for_a_version_when_a_reset_takes_it_back_are_all_run_and_then_it_is_forgotten(
    fresh_redis: str, slow: Path
) -> None:
    # A former bug: 46 of 60 jobs stayed queued for ever, and the gateway answered 202 to more jobs for the withdrawn version.
    with served(fresh_redis, slow) as client:
        client.load_version("echo", "20", "slow.py", settings={"max_batch_size": 1})
        eventually(lambda: ready(client, "20"))
        client.switch_version("echo", "20")
        jobs = [client.submit("echo", n) for n in range(60)]
        client.reset_model("echo")
        with pytest.raises(NotFound, match="no version '20'"):
            client.submit("echo", 1, version="20")
        assert client.submit("echo", 1).result(60.0) == "version 1"
        client.reset_model("echo")
        assert [job.result(60.0) for job in jobs] == ["slow"] * 60
        eventually(lambda: gone_from_store(fresh_redis, "echo", "20"), timeout_s=60.0)
        assert list(client.model("echo")["versions"]) == ["1"]
        client.load_version("echo", "20", "v2.py")
        eventually(lambda: ready(client, "20"))
        assert client.submit("echo", 1, version="20").result(60.0) == "version 2"


def test_jobs_of_a_version_that_a_reset_took_back_survive_the_death_of_their_worker(fresh_redis: str, slow: Path) -> None:
    models: dict[str, Any] = {"echo": {"source": str(slow / "one.py")}}
    settings: dict[str, Any] = {**QUICK, "model_dir": str(slow / "models")}
    with (
        WorkerProcess(fresh_redis, slow / "w", models, **settings) as worker,
        gateway_process(fresh_redis, slow, models={}) as http,
        closing(Client(str(http.base_url))) as client,
    ):
        worker.await_ready()
        client.load_version("echo", "20", "slow.py", settings={"max_batch_size": 1})
        eventually(lambda: ready(client, "20"))
        jobs = [client.submit("echo", n, version="20") for n in range(60)]
        client.reset_model("echo")
        worker.kill()
        worker.start()
        assert [job.result(40.0) for job in jobs] == ["slow"] * 60
        eventually(lambda: gone_from_store(fresh_redis, "echo", "20"), timeout_s=60.0)
        # The settings of this gateway name no model, so the gateway knows only from the worker that version 1 stays.
        assert list(client.model("echo")["versions"]) == ["1"]


def test_a_version_that_was_unloaded_before_does_not_return_with_a_reset(fresh_redis: str, folder: Path) -> None:
    with served(fresh_redis, folder) as client:
        client.load_version("echo", "3", "v3.py")
        eventually(lambda: ready(client, "3"))
        client.unload_version("echo", "3")
        eventually(lambda: all_of_version(client, "1"), timeout_s=60.0)
        client.reset_model("echo")
        with pytest.raises(NotFound, match="no version '3'"):
            client.submit("echo", 1, version="3")
        eventually(lambda: gone_from_store(fresh_redis, "echo", "3"), timeout_s=60.0)
        assert list(client.model("echo")["versions"]) == ["1"]


def test_a_version_written_into_the_settings_stays_when_the_rollout_that_brought_it_is_reset(
    fresh_redis: str, folder: Path
) -> None:
    with served(fresh_redis, folder) as client:
        client.load_version("echo", "2", "v2.py")
        eventually(lambda: ready(client, "2"))
        client.switch_version("echo", "2")
        client.unload_version("echo", "1")
        eventually(lambda: all_of_version(client, "2"), timeout_s=60.0)
    withdraw_workers(fresh_redis)
    with served(fresh_redis, folder, source="models/v2.py", version="2") as client:
        eventually(lambda: live_workers(fresh_redis) == 1)
        client.reset_model("echo")
        assert client.submit("echo", 1).result(60.0) == "version 2"
        eventually(lambda: gone_from_store(fresh_redis, "echo", "1"), timeout_s=60.0)
        assert list(client.model("echo")["versions"]) == ["2"]
        assert client.submit("echo", 1).result(60.0) == "version 2"


def test_a_model_known_through_its_rollout_alone_disappears_with_a_reset_and_its_results_stay(
    fresh_redis: str, folder: Path
) -> None:
    with served(fresh_redis, folder) as client:
        client.load_version("fresh", "1", "v3.py")
        assert eventually(lambda: answered(client)) == "version 3"
        job = client.submit("fresh", 1)
        assert job.result(60.0) == "version 3"
        client.reset_model("fresh")
        with pytest.raises(NotFound):
            client.model("fresh")
        with pytest.raises(NotFound):
            client.submit("fresh", 1)
        eventually(lambda: gone_from_store(fresh_redis, "fresh", "1"), timeout_s=60.0)
        with pytest.raises(NotFound):
            client.reset_model("fresh")
        assert job.refresh().status == "succeeded"
        client.load_version("fresh", "1", "v2.py")
        assert eventually(lambda: answered(client)) == "version 2"


def test_versions_that_could_not_be_loaded_are_forgotten_after_a_reset_as_others_are(fresh_redis: str, folder: Path) -> None:
    # A former bug: a version without its file was announced as failed while its rollout existed, so the version seemed in use.
    with served(fresh_redis, folder) as client:
        client.load_version("echo", "2", "broken.py")
        client.load_version("echo", "3", "absent.py")
        eventually(lambda: {slot["version"] for worker in client.workers() for slot in worker["slots"]} == {"1", "2", "3"})
        client.reset_model("echo")
        for version in ("2", "3"):
            eventually(partial(gone_from_store, fresh_redis, "echo", version), timeout_s=60.0)
        assert all_of_version(client, "1")


def test_a_model_that_was_loaded_and_never_called_leaves_nothing_behind_a_reset(fresh_redis: str, folder: Path) -> None:
    with served(fresh_redis, folder) as client, closing(RedisStore(fresh_redis)) as store:
        client.load_version("fresh", "1", "v3.py")
        client.reset_model("fresh")
        eventually(lambda: [info.name for info in store.models()] == ["echo"], timeout_s=60.0)
        assert store.rollouts() == {}


def answered(client: Client) -> str:
    entry = client.model("fresh")
    return str(client.submit("fresh", 1).result(60.0)) if entry["ready"] else ""

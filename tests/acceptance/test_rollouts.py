"""A model changes while callers use the model: no job fails, and every refusal names its reason."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.broker.store.sync import RedisStore
from penstock.cli import exits
from penstock.cli.jobs import call
from penstock.cli.models import workers
from penstock.client.problems import WaitTimeout
from penstock.client.sync import Client
from penstock.errors import Conflict, InvalidInput, NotFound
from tests.acceptance.rollout_stack import SINGLE, RolloutStack, sources, unnamed
from tests.acceptance.warm_command import run_command
from tests.eventually import eventually

# The models that the settings name, each for one scene.
NAMED = ("busy", "named", "broken", "failing", "stray", "waiting", "declared")


@pytest.fixture(scope="module")
def stack(has_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RolloutStack]:
    folder = sources(tmp_path_factory.mktemp("rollouts"))
    named: dict[str, Any] = {name: {"source": str(folder / "one.py"), "version": "1"} for name in NAMED}
    with RolloutStack(folder, named) as stack:
        stack.start_worker()
        stack.start_gateway()
        stack.await_ready()
        eventually(lambda: all(stack.client.model(name)["ready"] for name in NAMED))
        yield stack


SCENES: dict[str, Callable[[RolloutStack], None]] = {}


@pytest.fixture(scope="module")
def played(stack: RolloutStack) -> Iterator[dict[str, Future[None]]]:
    """All scenes at once, each with a model of its own: most wait until workers forget a version, which takes five seconds."""
    with ThreadPoolExecutor(len(SCENES)) as threads:
        yield {name: threads.submit(scene, stack) for name, scene in SCENES.items()}


def at_once(scene: Callable[[RolloutStack], None]) -> Callable[[dict[str, Future[None]]], None]:
    """A test that plays its scene beside all others of this kind."""
    SCENES[scene.__name__] = scene

    def test(played: dict[str, Future[None]]) -> None:
        played[scene.__name__].result()

    test.__name__, test.__doc__ = scene.__name__, scene.__doc__
    return test


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
                    self.answers.append(client.submit("busy", 1).result(60.0))
                except Exception as error:  # noqa: BLE001 - the test looks at them
                    self.errors.append(error)


@at_once
def test_a_new_version_takes_over_under_load_and_no_job_fails(stack: RolloutStack) -> None:
    callers = [Caller(stack.client.base_url) for _ in range(2)]
    for caller in callers:
        caller.start()
    eventually(lambda: all(len(caller.answers) > 5 for caller in callers))
    former = [slot["pid"] for slot in stack.slots_of_version("busy", "1")]
    stack.load("busy", "2", "v2.py", slots=2)
    stack.client.switch_version("busy", "2")
    stack.client.unload_version("busy", "1")
    eventually(lambda: all(caller.answers[-1] == "version 2" for caller in callers))
    slots = stack.await_only("busy", "2")
    for caller in callers:
        caller.over = True
    for caller in callers:
        caller.join(60.0)
    assert len(slots) == 2
    # An unloaded version's process ends: torch before 2.13 keeps the modules of packages that it has loaded.
    assert former
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in former))
    assert [caller.errors for caller in callers] == [[]] * 2
    for caller in callers:
        # After its first answer of the new version, a caller gets no answer of the old version.
        assert caller.answers == sorted(caller.answers)
        assert {"version 1", "version 2"} == set(caller.answers)


@at_once
def test_a_version_asked_for_by_name_is_gone_once_it_is_unloaded_and_comes_back_with_a_reset(stack: RolloutStack) -> None:
    client = stack.client
    stack.load("named", "2", "v2.py")
    client.switch_version("named", "2")
    assert stack.answer("named", "1") == "version 1"
    client.unload_version("named", "1")
    with pytest.raises(NotFound, match="no version '1'"):
        stack.answer("named", "1")
    stack.await_only("named", "2")
    client.reset_model("named")
    stack.await_only("named", "1")
    assert stack.answer("named") == "version 1"


@at_once
def test_a_model_that_no_settings_name_can_be_loaded_and_taken_away_again(stack: RolloutStack) -> None:
    stack.client.load_version("fresh", "1", "v3.py")
    assert eventually(lambda: answered(stack, "fresh"), timeout_s=60.0) == "version 3"
    stack.client.unload_version("fresh", "1")
    with pytest.raises(NotFound):
        stack.client.submit("fresh", 1)
    eventually(lambda: not stack.slots("fresh"), timeout_s=60.0)


@at_once
def test_jobs_that_wait_for_a_version_when_a_reset_takes_it_back_are_all_run_and_then_it_is_forgotten(
    stack: RolloutStack,
) -> None:
    # A former bug: 46 of 60 jobs stayed queued for ever, and the gateway answered 202 to more jobs for the withdrawn version.
    client, gate = stack.client, stack.hold("waiting")
    stack.load("waiting", "20", "waiting.py", **SINGLE)
    client.switch_version("waiting", "20")
    jobs = [client.submit("waiting", n) for n in range(10)]
    client.reset_model("waiting")
    with pytest.raises(NotFound, match="no version '20'"):
        stack.answer("waiting", "20")
    assert stack.answer("waiting") == "version 1"
    client.reset_model("waiting")
    # Workers forget another version that is withdrawn now; by then they have looked at the one that jobs wait for, too.
    client.load_version("clock", "1", "absent.py")
    client.reset_model("clock")
    stack.await_forgotten("clock", "1")
    gate.touch()
    assert [job.result(60.0) for job in jobs] == ["held"] * 10
    stack.await_forgotten("waiting", "20")
    # The gateway reads the store's registry again within moments.
    eventually(lambda: list(client.model("waiting")["versions"]) == ["1"])
    stack.load("waiting", "20", "v2.py")
    assert stack.answer("waiting", "20") == "version 2"


@at_once
def test_a_version_that_was_unloaded_before_does_not_return_with_a_reset(stack: RolloutStack) -> None:
    client = stack.client
    stack.load("stray", "3", "v3.py")
    client.unload_version("stray", "3")
    stack.await_only("stray", "1")
    client.reset_model("stray")
    with pytest.raises(NotFound, match="no version '3'"):
        stack.answer("stray", "3")
    stack.await_forgotten("stray", "3")
    assert list(client.model("stray")["versions"]) == ["1"]


@at_once
def test_a_model_known_through_its_rollout_alone_disappears_with_a_reset_and_its_results_stay(stack: RolloutStack) -> None:
    client = stack.client
    client.load_version("alone", "1", "v3.py")
    assert eventually(lambda: answered(stack, "alone"), timeout_s=60.0) == "version 3"
    job = client.submit("alone", 1)
    assert job.result(60.0) == "version 3"
    client.reset_model("alone")
    with pytest.raises(NotFound):
        client.model("alone")
    with pytest.raises(NotFound):
        client.submit("alone", 1)
    stack.await_forgotten("alone", "1")
    with pytest.raises(NotFound):
        client.reset_model("alone")
    assert job.refresh().status == "succeeded"
    client.load_version("alone", "1", "v2.py")
    assert eventually(lambda: answered(stack, "alone"), timeout_s=60.0) == "version 2"


@at_once
def test_versions_that_could_not_be_loaded_are_forgotten_after_a_reset_as_others_are(stack: RolloutStack) -> None:
    # A former bug: a version without its file was announced as failed while its rollout existed, so the version seemed in use.
    client = stack.client
    client.load_version("failing", "2", "broken.py")
    client.load_version("failing", "3", "absent.py")
    eventually(lambda: {slot["version"] for slot in stack.slots("failing")} == {"1", "2", "3"})
    client.reset_model("failing")
    for version in ("2", "3"):
        stack.await_forgotten("failing", version)
    assert stack.await_only("failing", "1")


@at_once
def test_a_model_that_was_loaded_and_never_called_leaves_nothing_behind_a_reset(stack: RolloutStack) -> None:
    stack.client.load_version("uncalled", "1", "v3.py")
    stack.client.reset_model("uncalled")
    with closing(RedisStore(stack.redis_url)) as store:
        eventually(lambda: "uncalled" not in {info.name for info in store.models()}, timeout_s=60.0)
        assert "uncalled" not in store.rollouts()


@at_once
def test_a_whole_model_is_unloaded_when_its_waiting_jobs_have_ended_and_can_be_loaded_anew(stack: RolloutStack) -> None:
    client, gate = stack.client, stack.hold("leaving")
    client.load_version("leaving", "1", "leaving.py", settings={**SINGLE, "slots": 1})
    eventually(lambda: stack.version("leaving")["state"] == "reached", timeout_s=60.0)
    # Its worker announces what it has loaded, although no settings name the model: with the ready slot, or a beat later.
    eventually(lambda: stack.version("leaving")["loaded"])
    jobs = [client.submit("leaving", n) for n in range(6)]
    client.unload_model("leaving")
    with pytest.raises(NotFound):
        client.submit("leaving", 1)
    left = client.rollout("leaving")["unloading"]["1"]
    assert (left["waiting"] + left["running"], left["gone"]) == (6, False)
    gate.touch()
    assert [job.result(60.0) for job in jobs] == ["held"] * 6
    stack.await_forgotten("leaving", "1")
    eventually(lambda: not stack.slots("leaving"))
    with pytest.raises(NotFound):
        client.rollout("leaving")
    assert "1" in closings(stack, "leaving")
    client.load_version("leaving", "1", "v3.py", settings={"slots": 0})
    assert stack.version("leaving")["workers"] == 0
    client.scale_model("leaving", 1)
    eventually(lambda: stack.version("leaving")["state"] == "reached", timeout_s=60.0)
    # The worker opens the queue, for those who submit without a gateway: pipelines, runs, Celery's clients.
    eventually(lambda: not closings(stack, "leaving"))
    assert stack.answer("leaving") == "version 3"


def closings(stack: RolloutStack, queue: str) -> set[str]:
    """The versions of which the queue takes no jobs."""
    with closing(RedisStore(stack.redis_url)) as store:
        return set(store.retired(queue))


@at_once
def test_jobs_of_a_model_without_slots_are_run_when_it_is_unloaded(stack: RolloutStack) -> None:
    client = stack.client
    client.load_version("silent", "1", "v3.py", settings={"slots": 0})
    jobs = [client.submit("silent", n) for n in range(4)]
    client.unload_model("silent")
    assert [job.result(60.0) for job in jobs] == ["version 3"] * 4
    stack.await_forgotten("silent", "1")


@at_once
def test_the_command_line_unloads_a_whole_model_and_waits_until_it_is_gone(stack: RolloutStack) -> None:
    # In a process of its own: Typer's runner takes over the output of this one, whose other scenes play meanwhile.
    def unload(*arguments: str) -> tuple[int, str]:
        words = ["models", "unload", "typed", *arguments, "--url", stack.client.base_url]
        done = run_command(words, folder=stack.folder, env=dict(os.environ))
        return done.returncode, done.stdout

    stack.load("typed", "1", "v3.py")
    assert unload() == (exits.USAGE, "")
    assert unload("--all", "--wait", "60") == (0, "typed is gone\n")


@at_once
def test_a_model_of_the_settings_that_is_unloaded_stays_away_until_a_reset(stack: RolloutStack) -> None:
    client = stack.client
    client.unload_model("declared")
    with pytest.raises(NotFound):
        client.submit("declared", 1)
    eventually(lambda: client.rollout("declared")["unloading"]["1"]["gone"], timeout_s=60.0)
    assert not stack.slots("declared")
    client.reset_model("declared")
    assert stack.answer("declared") == "version 1"


def answered(stack: RolloutStack, model: str) -> str:
    return str(stack.answer(model)) if stack.client.model(model)["ready"] else ""


@pytest.fixture
def unloadable(stack: RolloutStack) -> Client:
    """The gateway, once it knows why two versions of `broken` cannot be loaded."""
    client = stack.client
    if list(client.model("broken")["versions"]) == ["1"]:
        client.load_version("broken", "2", "broken.py")
        client.load_version("broken", "3", "absent.py")

    def whys() -> str:
        versions = client.model("broken")["versions"]
        return f"{versions['2'].get('why')} {versions['3'].get('why')}"

    eventually(lambda: "no such weights" in whys() and "there is no absent.py" in whys())
    return client


def test_a_version_that_cannot_be_loaded_says_why_and_never_becomes_the_default(unloadable: Client) -> None:
    with pytest.raises(Conflict, match="not ready"):
        unloadable.switch_version("broken", "2")
    with pytest.raises(Conflict, match="has a version"):
        unloadable.load_version("broken", "1", "v2.py")
    with pytest.raises(Conflict, match="default"):
        unloadable.unload_version("broken", "1")
    assert unloadable.submit("broken", 1).result(60.0) == "version 1"


def test_who_calls_a_version_that_cannot_be_loaded_is_told_why_on_the_command_line(unloadable: Client) -> None:
    run = CliRunner()
    called = run.invoke(call.app, ["broken", "1", "--version", "2", "--timeout", "2.1", "--url", unloadable.base_url])
    assert isinstance(called.exception, WaitTimeout)
    assert "the job waits: broken: could not be loaded" in called.stderr
    assert "no such weights" in called.stderr
    listed = run.invoke(workers.app, ["--url", unloadable.base_url])
    assert "broken 2 failed: " in listed.stderr
    assert "no such weights" in listed.stderr


OUTSIDE = [
    *("../one.py", "/etc/passwd", "os:system", "", "a\0.py", "folder"),
    *("http://127.0.0.1:1/model.py", "file:///etc/passwd.py"),
]


def test_only_files_below_the_folder_of_models_can_be_named(stack: RolloutStack) -> None:
    for source in OUTSIDE:
        with pytest.raises(InvalidInput, match="relative path"):
            stack.client.load_version("named", "9", source)
    with pytest.raises(InvalidInput, match="cannot be used") as refused:
        stack.client.load_version("named", "9", "v2.py", settings={"max_batch_sise": 2})
    assert refused.value.message.count("max_batch_sise: no such setting") == 1
    for table in ("env", "secrets"):
        with pytest.raises(InvalidInput, match="in the settings of its workers only"):
            stack.client.load_version("named", "9", "v2.py", settings={table: {"LD_PRELOAD": "x.so"}})


@at_once
def test_jobs_of_a_version_that_a_reset_took_back_survive_the_death_of_their_worker(stack: RolloutStack) -> None:
    with unnamed(stack.folder / "apart") as apart:
        worker = apart.start_worker(models={"mortal": {"source": str(apart.folder / "one.py")}})
        worker.await_ready()
        client, gate = apart.client, apart.hold("mortal")
        apart.load("mortal", "20", "mortal.py", **SINGLE)
        jobs = [client.submit("mortal", n, version="20") for n in range(10)]
        eventually(lambda: jobs[0].refresh().status == "running")
        client.reset_model("mortal")
        worker.kill()
        worker.start()
        gate.touch()
        assert [job.result(40.0) for job in jobs] == ["held"] * 10
        apart.await_forgotten("mortal", "20")
        # The settings of this gateway name no model, so the gateway knows only from the worker that version 1 stays.
        assert list(client.model("mortal")["versions"]) == ["1"]


def withdraw_workers(redis_url: str) -> None:
    """Take the worker that was killed out of the registry, as a worker that is stopped does itself.

    Until its entry expires it counts as alive, and a reset keeps the versions that its settings name.
    """
    with closing(RedisStore(redis_url)) as store:
        for worker in store.workers():
            store.withdraw_worker(worker.name)


@at_once
def test_a_version_written_into_the_settings_stays_when_the_rollout_that_brought_it_is_reset(stack: RolloutStack) -> None:
    with unnamed(stack.folder / "written") as apart:
        client, folder = apart.client, apart.folder
        with apart.new_worker("first", {"written": {"source": str(folder / "one.py"), "version": "1"}}) as first:
            first.await_ready()
            apart.load("written", "2", "v2.py")
            client.switch_version("written", "2")
            client.unload_version("written", "1")
        withdraw_workers(apart.redis_url)
        second = {"written": {"source": str(folder / "models" / "v2.py"), "version": "2"}}
        with apart.new_worker("second", second) as worker:
            worker.await_ready()
            eventually(lambda: len(client.workers()) == 1)
            client.reset_model("written")
            assert apart.answer("written") == "version 2"
            apart.await_forgotten("written", "1")
            assert list(client.model("written")["versions"]) == ["2"]
            assert apart.answer("written") == "version 2"

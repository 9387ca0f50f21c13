"""The slots of a model grow, go and come back while jobs run, on two real workers that are killed in the middle of it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest
from typer.testing import CliRunner

from penstock.cli import exits
from penstock.cli.models import models
from penstock.client.problems import JobFailed
from penstock.client.retries import RetryPolicy
from penstock.client.sync import Client
from penstock.errors import Conflict, InvalidInput, NotFound, NoWorker
from tests.acceptance.rollout_stack import HELD, SINGLE, sources
from tests.eventually import eventually
from tests.integration.worker_process import WorkerProcess
from tests.stack import Stack

# A slot that leaves gets no such time limit: only the end of its worker has one.
QUICK: dict[str, Any] = {"lease_s": 3.0, "beat_s": 0.3, "grace_s": 0.2}


@pytest.fixture(scope="module")
def stack(has_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two workers; `shared` is the model that the settings of both name."""
    folder = sources(tmp_path_factory.mktemp("scale"))
    gate = folder / "busy.open"
    (folder / "busy.py").write_text(HELD.format(str(gate)))
    (folder / "hanging.py").write_text(HELD.format(str(folder / "never")))
    named: dict[str, Any] = {name: {"source": str(folder / "one.py"), "version": "1"} for name in ("shared", "mortal", "quiet")}
    named["hanging"] = {"source": str(folder / "hanging.py"), "max_run_s": 1.0, "warm_up": False}
    named["busy"] = {"source": str(folder / "busy.py"), **SINGLE}
    settings = {**QUICK, "model_dir": str(folder / "models")}
    with Stack(folder, named) as stack:
        for name in ("a", "b"):
            stack.start_worker(name, **settings)
        stack.start_gateway()
        stack.await_ready()
        eventually(lambda: all(stack.client.model(name)["ready_slots"] == 2 for name in named))
        yield stack


def scale(stack: Stack, model: str, slots: int) -> None:
    """Scale, and wait until all workers have the slots."""
    stack.client.scale_model(model, slots, version="1")
    eventually(lambda: stack.version(model)["state"] == "reached", timeout_s=60.0)
    assert (stack.version(model)["ready_slots"], len(stack.slots(model))) == (2 * slots, 2 * slots)


def started_children(worker: WorkerProcess, model: str) -> int:
    return len(worker.events("child_started", model))


def test_slots_come_and_go_on_every_worker_and_jobs_that_run_meanwhile_all_end(stack: Stack) -> None:
    jobs = [stack.client.submit("shared", n) for n in range(30)]
    scale(stack, "shared", 3)
    jobs += [stack.client.submit("shared", n) for n in range(30)]
    scale(stack, "shared", 1)
    assert [job.result(60.0) for job in jobs] == ["version 1"] * 60
    assert [job.refresh().attempts for job in jobs] == [1] * 60


def test_a_model_without_slots_keeps_its_jobs_says_so_and_comes_back(stack: Stack) -> None:
    client = stack.client
    scale(stack, "quiet", 0)
    job = client.submit("quiet", 1)
    with (
        closing(Client(client.base_url, retry=RetryPolicy(max_attempts=1))) as once,
        pytest.raises(NoWorker, match="scaled to no"),
    ):
        once.predict("quiet", 1)
    assert stack.version("quiet")["why"] == "scaled to no slots"
    assert client.model("quiet")["ready"] is False
    assert httpx2.get(f"{client.base_url}/readyz").status_code == 200, "it is away on purpose"
    assert job.refresh().status == "queued"
    scale(stack, "quiet", 1)
    assert job.result(60.0) == "version 1"


def test_a_slot_that_goes_ends_what_it_runs(stack: Stack) -> None:
    """Its worker's grace_s is over long before: that is for workers that stop."""
    client = stack.client
    jobs = [client.submit("busy", n) for n in range(2)]
    eventually(lambda: all(job.refresh().status == "running" for job in jobs))
    running = {slot["pid"] for slot in stack.slots("busy")}
    client.scale_model("busy", 0)
    eventually(lambda: not stack.slots("busy"))
    waiting = client.submit("busy", 3)
    # Several beats pass, and much more than grace_s.
    for worker in stack.workers:
        beats = len(worker.events("slot_removed"))
        assert beats
    client.scale_model("shared", 2)
    eventually(lambda: stack.version("shared")["state"] == "reached", timeout_s=60.0)
    assert all(Path(f"/proc/{pid}").exists() for pid in running), "a busy process is not ended"
    assert [job.refresh().status for job in jobs] == ["running"] * 2
    assert waiting.refresh().status == "queued", "a slot that leaves takes no further job"
    (stack.folder / "busy.open").touch()
    assert [job.result(60.0) for job in jobs] == ["held"] * 2
    assert [job.refresh().attempts for job in jobs] == [1] * 2
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in running))
    scale(stack, "busy", 1)
    assert waiting.result(60.0) == "held"


def test_a_slot_that_goes_while_its_handler_hangs_ends_at_the_limit_of_its_batch(stack: Stack) -> None:
    job = stack.client.submit("hanging", 1)
    eventually(lambda: job.refresh().status == "running")
    stack.client.scale_model("hanging", 0)
    eventually(lambda: not stack.slots("hanging"))
    with pytest.raises(JobFailed, match="max_run_s of 1 s"):
        job.result(60.0)
    pids = [one["pid"] for worker in stack.workers for one in worker.events("child_started", "hanging")]
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def test_a_worker_killed_in_the_middle_of_a_scale_has_the_slots_when_it_is_back(stack: Stack) -> None:
    client, (first, _) = stack.client, stack.workers
    jobs = [client.submit("mortal", n) for n in range(20)]
    client.scale_model("mortal", 3)
    first.kill()
    client.scale_model("quiet", 0)
    loaded = started_children(first, "quiet")
    first.start()
    eventually(lambda: stack.version("mortal")["state"] == "reached", timeout_s=60.0)
    eventually(lambda: (len(client.workers()), stack.version("mortal")["ready_slots"]) == (2, 6), timeout_s=60.0)
    assert [job.result(60.0) for job in jobs] == ["version 1"] * 20
    assert stack.slots("quiet") == []
    assert started_children(first, "quiet") == loaded, "a worker that starts loads no model that is off"
    client.reset_model("mortal")
    eventually(lambda: (stack.version("mortal")["state"], len(stack.slots("mortal"))) == ("reached", 2), timeout_s=60.0)


def test_the_command_line_scales_and_waits(stack: Stack) -> None:
    run, url = CliRunner(), ("--url", stack.client.base_url)
    scaled = run.invoke(models.app, ["scale", "shared", "2", "--wait", "60", *url])
    assert (scaled.exit_code, scaled.stdout) == (0, "version 1 of shared has 4 ready slots of 4\n")
    assert "scaled to 2 per worker process" in run.invoke(models.app, ["show", "shared", *url]).stdout
    assert run.invoke(models.app, ["scale", "shared", "-1", *url]).exit_code == exits.USAGE
    stack.client.load_version("typed", "1", "broken.py", settings={"slots": 0})
    failed = run.invoke(models.app, ["scale", "typed", "1", "--wait", "60", *url])
    assert (failed.exit_code, "no such weights" in failed.stderr) == (exits.FAILED, True)


def test_what_is_no_order_is_refused_and_changes_nothing(stack: Stack) -> None:
    client = stack.client
    before = client.rollout("shared")["workers"]
    for slots in (-1, 100_000):
        with pytest.raises(InvalidInput, match="whole number of slots"):
            client.scale_model("shared", slots)
    with pytest.raises(NotFound, match="no version '9'"):
        client.scale_model("shared", 1, version="9")
    with pytest.raises(NotFound):
        client.unload_model("nobody")
    with pytest.raises(Conflict, match="has a version"):
        client.load_version("shared", "1", "v2.py")
    assert client.rollout("shared")["workers"] == before


def test_a_worker_follows_before_its_next_beat_and_stops_while_a_slot_leaves(stack: Stack) -> None:
    """The wake-up reaches a worker through any of its slots: here the beat is minutes away."""
    (stack.folder / "awake.py").write_text(HELD.format(str(stack.folder / "never")))
    models = {"awake": {"source": str(stack.folder / "awake.py"), "warm_up": False}}
    with stack.new_worker("slow", models, lease_s=600.0, beat_s=300.0, grace_s=0.2) as worker:
        eventually(lambda: len(worker.events("child_ready", "awake")) == 1, timeout_s=60.0)
        eventually(lambda: stack.client.scale_model("awake", 2))
        eventually(lambda: len(worker.events("child_ready", "awake")) == 2, timeout_s=60.0)
        job = stack.client.submit("awake", 1)
        eventually(lambda: job.refresh().status == "running")
        stack.client.scale_model("awake", 0)
        eventually(lambda: len(worker.events("slot_removed", "awake")) == 2)
        assert job.refresh().status == "running"
        worker.send(signal.SIGTERM)
        assert worker.exit_code(within_s=60.0) == 0
        assert job.refresh().status == "queued", "given back, as at every stop after grace_s"

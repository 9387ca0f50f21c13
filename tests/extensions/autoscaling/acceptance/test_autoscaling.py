"""Slots that follow the work, on a real worker: bursts, idle models, two models with room for one, operators and kills."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from penstock.cli.models import models
from penstock.extensions.autoscaling.worker.autoscaler import LOOK_S
from tests.eventually import eventually
from tests.stack import Stack

MIB = 1 << 20
STAY_S = 12.0
SLOW = """
import time
import penstock

@penstock.model
def slow(x: int) -> int:
    time.sleep({})
    return x
"""
SINGLE: dict[str, Any] = {"max_batch_size": 1, "warm_up": False}


def state(stack: Stack, model: str) -> str:
    return str(stack.version(model)["state"])


def changes(stack: Stack, model: str) -> list[tuple[int, str]]:
    """Every change of the number of slots: what it became, and why."""
    return [(entry["slots"], entry["reason"]) for entry in stack.worker.events("slots_scaled", model)]


def children(stack: Stack, model: str) -> int:
    return len(stack.worker.events("child_started", model))


@pytest.fixture(scope="module")
def stack(has_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("scaling")
    (folder / "quick.py").write_text(SLOW.format(0))
    (folder / "slow.py").write_text(SLOW.format(0.25))
    quick, slow = str(folder / "quick.py"), str(folder / "slow.py")
    tables: dict[str, Any] = {
        "burst": {"source": slow, "max_slots": 3, "backlog_goal_s": 1.0, **SINGLE},
        "sleeper": {"source": quick, "idle_unload_s": 1.5, **SINGLE},
        "manual": {"source": quick, "min_slots": 1, "max_slots": 2, **SINGLE},
        "left": {"source": quick, "idle_unload_s": 600.0, "device_memory_bytes": 600 * MIB, **SINGLE},
        "right": {"source": quick, "idle_unload_s": 600.0, "device_memory_bytes": 600 * MIB, **SINGLE},
    }
    settings: dict[str, Any] = {
        "lease_s": 3.0,
        "beat_s": 0.5,
        "memory_bytes": 1_000 * MIB,
        "min_stay_s": STAY_S,
    }
    with Stack(folder, tables) as stack:
        stack.start_worker(**settings)
        stack.start_gateway()
        eventually(lambda: stack.client.model("burst")["ready_slots"] == 1, timeout_s=60.0)
        yield stack


def test_a_burst_gets_more_slots_and_every_job_of_it_ends(stack: Stack) -> None:
    jobs = [stack.client.submit("burst", number) for number in range(80)]
    eventually(lambda: stack.client.model("burst")["ready_slots"] == 3, timeout_s=30.0)
    assert [job.result(60.0) for job in jobs] == list(range(80))
    assert changes(stack, "burst")[0] == (3, "backlog")
    scaling = stack.version("burst")["scaling"]
    assert (scaling["min_slots"], scaling["max_slots"], scaling["started_slots"]) == (1, 3, 3)
    assert scaling["start_s"] > 0


def test_an_idle_model_is_unloaded_and_the_next_job_loads_it_again(stack: Stack) -> None:
    eventually(lambda: state(stack, "sleeper") == "unloaded", timeout_s=30.0)
    assert stack.version("sleeper")["why"].startswith("unloaded; the next job has it loaded, in about ")
    assert stack.http.get("/readyz").status_code == 200
    answer = stack.http.post("/v1/models/sleeper/jobs", json=7)
    start_s = stack.version("sleeper")["scaling"]["start_s"]
    assert answer.status_code == 202
    assert answer.json()["eta_s"] == pytest.approx(start_s, rel=0.5)
    assert int(answer.headers["retry-after"]) >= max(1, round(0.7 * start_s))
    result = eventually(lambda: _ended(stack, answer.json()["id"]), timeout_s=30.0)
    assert result["status"] == "succeeded"
    assert [reason for _, reason in changes(stack, "sleeper")][:2] == ["idle", "demand"]


def test_a_caller_that_waits_for_the_answer_of_an_unloaded_model_gets_it(stack: Stack) -> None:
    eventually(lambda: state(stack, "sleeper") == "unloaded", timeout_s=30.0)
    answer = stack.http.post("/predictions/sleeper", json=9, timeout=30.0)
    assert (answer.status_code, answer.json()) == (200, 9)


def _moment(entry: dict[str, Any]) -> float:
    return datetime.fromisoformat(entry["timestamp"]).timestamp()


def _ended(stack: Stack, job: str) -> dict[str, Any] | None:
    found: dict[str, Any] = stack.http.get(f"/v1/jobs/{job}").json()
    return found if found["status"] not in ("queued", "running") else None


def test_of_two_models_with_room_for_one_the_one_used_less_recently_leaves_and_no_sooner_than_it_may(
    stack: Stack,
) -> None:
    assert stack.version("left")["state"] == "reached"
    assert (stack.version("right")["state"], children(stack, "right")) == ("unloaded", 0), "settings say that it has no room"
    began = time.monotonic()
    jobs = [stack.client.submit(model, number) for number in range(3) for model in ("left", "right")]
    assert [job.result(90.0) for job in jobs] == [0, 0, 1, 1, 2, 2]
    assert (changes(stack, "left"), changes(stack, "right")) == ([(0, "room")], [(1, "demand")])
    assert time.monotonic() - began < 60.0
    [ready], [left] = stack.worker.events("child_ready", "left"), stack.worker.events("slots_scaled", "left")
    assert _moment(left) - _moment(ready) >= STAY_S - LOOK_S


def test_an_operators_number_stands_over_the_work_until_it_is_given_back(stack: Stack) -> None:
    runner, url = CliRunner(), str(stack.http.base_url)
    said = runner.invoke(models.app, ["scale", "manual", "0", "--url", url])
    assert said.exit_code == 0, said.output
    job = stack.client.submit("manual", 1)
    eventually(lambda: "scaling" not in stack.version("manual"))
    assert runner.invoke(models.app, ["scale", "manual", "2", "--auto", "--url", url]).exit_code == 2
    said = runner.invoke(models.app, ["scale", "manual", "--auto", "--url", url])
    assert said.exit_code == 0, said.output
    assert job.result(30.0) == 1
    assert stack.version("manual")["workers"] is None
    assert stack.http.put("/v1/models/manual/workers", json={"workers": "many"}).status_code == 422


def test_after_the_burst_its_slots_leave_and_a_killed_worker_leaves_nothing_loaded(stack: Stack) -> None:
    slots, _ = eventually(lambda: next((one for one in changes(stack, "burst") if one[1] == "rest"), None), timeout_s=40.0)
    eventually(lambda: stack.client.model("burst")["ready_slots"] <= slots < 3)
    children = psutil.Process(stack.worker.process.pid).children(recursive=True)
    assert children
    stack.worker.kill()
    psutil.wait_procs(children, timeout=10.0)
    assert not [child for child in children if child.is_running()]
    eventually(lambda: state(stack, "sleeper") == "unserved", timeout_s=20.0)

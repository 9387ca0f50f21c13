"""Calls that name no version are divided between versions: by weight, sticky, to a canary; some are copied to a shadow."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import httpx2
import pytest
from typer.testing import CliRunner

from penstock.cli import main as command
from penstock.client.sync import Client
from penstock.errors import Conflict, InvalidInput, NotFound
from penstock.extensions.splits.gateway.shadows import MOST_COPIES
from tests.acceptance.rollout_stack import QUICK
from tests.eventually import eventually
from tests.stack import Stack

CODE = """
from dataclasses import dataclass

import penstock

@dataclass
class Input:
    x: float

@penstock.model
def square(item: Input) -> dict[str, float]:
    x = item.x
    {0}
    return {{"y": x * x + {1}}}
"""
VERSIONS = {
    "1": ("pass", "0.0"),
    # Almost the same, but for one input.
    "2": ("pass", "(9.0 if x == 7 else 1e-9)"),
    "3": ("raise ValueError('no')", "0.0"),
}
PREDICT, SUBMIT = "/predictions/square", "/v1/models/square/jobs"


def version(at: httpx2.Client, headers: dict[str, str] | None = None, *, x: float = 2.0) -> str:
    answer = at.post(PREDICT, json={"x": x}, headers=headers or {})
    return answer.headers["x-penstock-version"] if answer.status_code == 200 else str(answer.status_code)


def versions(at: httpx2.Client, count: int) -> Counter[str]:
    with ThreadPoolExecutor(8) as threads:
        return Counter(threads.map(lambda _: version(at), range(count)))


@pytest.fixture(scope="module")
def stack(has_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("splits")
    for name, parts in VERSIONS.items():
        (folder / f"v{name}.py").write_text(CODE.format(*parts))
    by_name = {name: {"source": str(folder / f"v{name}.py")} for name in VERSIONS}
    quick: dict[str, Any] = {**QUICK}
    with Stack(folder, {"square": {"default_version": "1", "versions": by_name}}) as stack:
        stack.start_worker(**quick)
        stack.start_gateway()
        eventually(
            lambda: all(row.get("ready_slots") for row in stack.client.model("square")["versions"].values()), timeout_s=60.0
        )
        yield stack


@pytest.fixture(autouse=True)
def no_split_is_left(stack: Stack) -> Iterator[None]:
    yield
    stack.client.reset_model("square")


def test_calls_are_divided_by_weight_and_those_that_name_a_version_get_it(stack: Stack) -> None:
    assert versions(stack.http, 20) == {"1": 20}
    stack.client.split_model("square", {"1": 50, "2": 50})
    counted = versions(stack.http, 120)
    assert set(counted) == {"1", "2"}
    assert min(counted.values()) > 30
    assert stack.http.post(f"{PREDICT}/2", json={"x": 1.0}).headers["x-penstock-version"] == "2"
    view = eventually(lambda: (found := stack.client.split("square"))["versions"]["1"]["jobs"] == counted["1"] and found)
    assert view["versions"]["2"] == {**view["versions"]["2"], "share": 50.0, "jobs": counted["2"], "errors": 0}
    stack.client.end_split("square")
    assert versions(stack.http, 20) == {"1": 20}
    with pytest.raises(NotFound, match="has no split"):
        stack.client.split("square")


def test_the_same_value_of_the_sticky_header_gets_the_same_version_of_every_gateway(stack: Stack) -> None:
    stack.client.split_model("square", {"1": 50, "2": 50}, sticky="X-User")
    users = [{"x-user": f"u{number}"} for number in range(20)]
    found = [version(stack.http, user) for user in users]
    assert set(found) == {"1", "2"}
    # TorchServe's routes, which this gateway serves in the place of ours, are a door as any other.
    with stack.new_gateway(env={"PENSTOCK_TORCHSERVE__ENABLED": "true"}) as second:
        eventually(lambda: second.get("/readyz").status_code == 200)
        assert [version(second, user) for user in users] == found
    stack.client.split_model("square", {"1": 30, "2": 70}, sticky="X-User")
    moved = {
        (before, after) for before, user in zip(found, users, strict=True) if (after := version(stack.http, user)) != before
    }
    assert moved <= {("1", "2")}


def doors(http: httpx2.Client, user: dict[str, str]) -> dict[str, str]:
    """The version that each door gave this user's call."""
    tensors = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP64", "data": [2.0]}]}
    job, x = {"x": 2.0}, {"input": {"x": 2.0}}
    many = http.post(f"{SUBMIT}:batch", json=[job, job], headers=user).json()["data"]
    assert len({row["version"] for row in many}) == 1
    replicate = http.post("/replicate/v1/models/any/square/predictions", json=x, headers=user).json()
    cog = http.post("/cog/square/predictions", json=x, headers=user)
    return {
        "predict": http.post(PREDICT, json=job, headers=user).headers["x-penstock-version"],
        "submit": http.post(SUBMIT, json=job, headers=user).json()["version"],
        "many": many[0]["version"],
        "oip": http.post("/v2/models/square/infer", json=tensors, headers=user).json()["model_version"],
        "replicate": http.get(f"/v1/jobs/{replicate['id']}").json()["version"],
        "cog": cog.headers["x-penstock-version"],
        "stream": http.post(PREDICT, json=job, headers={**user, "accept": "text/event-stream"}).headers["x-penstock-version"],
    }


def test_every_door_follows_the_split(stack: Stack) -> None:
    stack.client.split_model("square", {"1": 50, "2": 50}, sticky="x-user")
    found = [doors(stack.http, {"x-user": f"u{number}"}) for number in range(8)]
    assert {version for one in found for version in one.values()} == {"1", "2"}
    for one in found:
        assert len(set(one.values())) == 1, one


def test_a_repeat_with_the_same_key_gets_the_same_job_whatever_the_split_says(stack: Stack) -> None:
    def submitted(path: str, key: str) -> tuple[str, str]:
        answer = stack.http.post(path, json={"x": 2.0}, headers={"idempotency-key": key})
        if path == PREDICT:
            return answer.headers["x-penstock-job"], answer.headers["x-penstock-version"]
        return answer.json()["id"], answer.json()["version"]

    asked = [(path, f"key-{path[1:4]}-{number}") for path in (PREDICT, SUBMIT) for number in range(6)]
    stack.client.split_model("square", {"1": 100})
    first = [submitted(*one) for one in asked]
    assert {version for _, version in first} == {"1"}
    stack.client.split_model("square", {"1": 0, "2": 100})
    assert versions(stack.http, 5) == {"2": 5}
    assert [submitted(*one) for one in asked] == first


def has_split(client: Client) -> bool:
    try:
        return bool(client.split("square"))
    except NotFound:
        return False


def test_a_canary_is_promoted_although_the_gateway_that_decided_is_killed(stack: Stack) -> None:
    plan = {"version": "2", "steps": [20, 60, 100], "step_s": 1.0, "min_samples": 20, "max_p99": 50.0}
    with stack.new_gateway() as second:
        eventually(lambda: second.get("/readyz").status_code == 200)
        stack.client.split_model("square", canary=plan)
        until = time.monotonic() + 60.0
        with closing(Client(str(second.base_url))) as other:
            eventually(lambda: other.model("square")["ready"] and has_split(other))
            while other.split("square")["canary"]["step"] == 0 and time.monotonic() < until:
                assert set(versions(stack.http, 40)) <= {"1", "2"}
        second.kill()
    while (view := stack.client.split("square"))["canary"]["state"] == "running" and time.monotonic() < until:
        versions(stack.http, 40)
    assert view["canary"]["state"] == "promoted"
    # Two gateways saw the same, and each step was made once.
    assert [(made["from"], made["to"]) for made in reversed(view["canary"]["decisions"])] == [(20, 60), (60, 100), (100, 100)]
    assert all("jobs, 0 % errors" in made["why"] for made in view["canary"]["decisions"])
    assert view["versions"]["2"]["share"] == 100.0
    assert stack.client.model("square")["default_version"] == "2"
    assert versions(stack.http, 10) == {"2": 10}


def said(stack: Stack, *words: str) -> str:
    """What `penstock models split square` prints, in one line: refusals stand in a box."""
    run = CliRunner().invoke(command.app, ["models", "split", "square", *words, "--url", str(stack.http.base_url)])
    return " ".join(run.output.replace("│", " ").split())


def test_a_canary_that_fails_is_stepped_back_at_once_and_the_reason_is_shown(stack: Stack) -> None:
    stack.client.split_model("square", {"1": 100}, canary={"version": "3", "steps": [50], "step_s": 600, "min_samples": 20})
    until = time.monotonic() + 60.0
    while (view := stack.client.split("square"))["canary"]["state"] == "running" and time.monotonic() < until:
        versions(stack.http, 20)
    assert view["canary"]["state"] == "stepped_back"
    assert "jobs ended in an error" in view["canary"]["why"]
    assert [(made["move"], made["from"], made["to"]) for made in view["canary"]["decisions"]] == [("back", 50.0, 0.0)]
    assert versions(stack.http, 20) == {"1": 20}
    page = stack.http.get("/ui/models/square").text
    assert "stepped back" in page
    assert "jobs ended in an error" in page
    assert "canary: version 3 is stepped back" in said(stack)


def test_a_shadow_is_compared_and_never_answers(stack: Stack) -> None:
    stack.client.split_model("square", {"1": 100}, shadow={"version": "2", "share": 100})
    before = stack.client.model("square")
    assert before["default_version"] == "1"
    for x in (0.0, 2.0, 3.0, 7.0):
        answer = stack.http.post(PREDICT, json={"x": x})
        assert (answer.json(), answer.headers["x-penstock-version"]) == ({"y": x * x}, "1")

    def compared(**wanted: int) -> bool:
        found = stack.client.split("square")["shadow"]["compared"]
        return {what: count for what, count in found.items() if count} == wanted

    eventually(lambda: compared(close=3, different=1))
    copies = stack.http.get("/v1/jobs", params={"tag": "shadow"}).json()["data"]
    assert [(job["version"], job["priority"]) for job in copies] == [("2", "bulk")] * 4
    page = stack.http.get("/ui/models/square").text
    assert "version 2 gets copies of 100 %" in page
    assert "<dt>Close</dt><dd>3</dd>" in page
    stack.client.split_model("square", {"1": 100}, shadow={"version": "3", "share": 100})
    assert version(stack.http) == "1"
    eventually(lambda: compared(status=1))
    # A copy that failed is nobody's to repair.
    assert "shadow" not in stack.http.get("/ui/failed", params={"model": "square"}).text


def test_copies_are_bounded_and_no_caller_waits_for_them(stack: Stack) -> None:
    stack.client.split_model("square", {"1": 100}, shadow={"version": "2", "share": 100})
    with stack.worker.standstill():
        # Nothing ends meanwhile, so each copy is under way until the worker goes on.
        jobs = [stack.http.post(SUBMIT, json={"x": float(number)}) for number in range(MOST_COPIES + 10)]
        assert {job.status_code for job in jobs} == {202}
        eventually(lambda: stack.client.split("square")["shadow"]["compared"]["dropped"] == 10)
    eventually(lambda: stack.client.split("square")["shadow"]["compared"]["close"] >= MOST_COPIES - 1)
    assert sum(stack.client.split("square")["shadow"]["compared"].values()) == MOST_COPIES + 10


def test_what_cannot_be_divided_is_refused_with_the_reason(stack: Stack) -> None:
    client = stack.client
    with pytest.raises(NotFound, match="no version '9'"):
        client.split_model("square", {"1": 50, "9": 50})
    with pytest.raises(InvalidInput, match="must add up to 100 percent, and these add up to 80"):
        client.split_model("square", {"1": 80})
    with pytest.raises(NotFound, match="no model is named 'cube'"):
        client.split_model("cube", {"1": 100})
    client.split_model("square", {"1": 90, "2": 10})
    with pytest.raises(Conflict, match="version '2' has a part in the split"):
        client.unload_version("square", "2")
    assert "is not VERSION=PERCENT" in said(stack, "1:90")
    assert "name its version with --canary" in said(stack, "--steps", "1,2")
    assert "it takes no division" in said(stack, "1=100", "--end")
    made = said(stack, "1=75", "2=25", "--sticky", "x-user", "--shadow", "3=5")
    assert "75 %" in made
    assert "shadow: version 3 gets copies of 5 %" in made
    assert "the default version of square gets all calls" in said(stack, "--end")

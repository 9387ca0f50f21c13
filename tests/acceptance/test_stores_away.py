"""One of two stores freezes or is killed: what concerns the other goes on without a wait, and answers say what they lack."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.broker.store.aio import ANSWER_WITHIN_S
from penstock.extensions.webhooks.webhook import new_signing_key
from tests.acceptance.two_stores import TwoStores, two_stores
from tests.command import called_here
from tests.eventually import eventually
from tests.webhook_receiver import Receiver, Say, receiver


@pytest.fixture(scope="module")
def hooks() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


@pytest.fixture(scope="module")
def stack(has_server: None, hooks: Receiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoStores]:
    env = {
        "PENSTOCK_WEBHOOKS__SIGNING_KEYS": new_signing_key(),
        "PENSTOCK_WEBHOOKS__URLS": hooks.url,
        "PENSTOCK_WEBHOOKS__RETRY_S": "0.2",
        "PENSTOCK_WEBHOOKS__CIRCUIT_S": "0.2,0.5",
        "PENSTOCK_WEBHOOKS__TIMEOUT_S": "1",
    }
    with two_stores(tmp_path_factory.mktemp("away"), env) as made:
        for model in ("near", "far", "line", "across"):
            made.output(made.submit(model))
        yield made


def without_waits(call: Callable[[], Any], times: int = 10) -> None:
    """Make calls, of which all but a few must not wait for the store that hangs."""
    began = time.monotonic()
    for _ in range(times):
        call()
    assert time.monotonic() - began < times / 2 * ANSWER_WITHIN_S


def test_lists_over_all_models_leave_out_a_frozen_store_and_say_so(stack: TwoStores) -> None:
    client = stack.client
    near, far = stack.submit("near", tags="lists"), stack.submit("far", tags="lists")
    stack.output(near)
    stack.output(far)
    with stack.frozen(stack.other):
        page = client.get("/v1/jobs", params={"tag": "lists"}).json()
        assert ([job["id"] for job in page["data"]], page["away"]) == ([near], ["far", "far-too"])
        assert client.get("/v1/jobs", params={"model": "near", "tag": "lists"}).json().keys() == {"data", "has_more"}
        refused = client.get("/v1/jobs", params={"model": "far"})
        assert (refused.status_code, "store 'b'" in refused.text or "'b'" in refused.text) == (503, True)
        queues = client.get("/v1/queues").json()
        assert queues["away"] == ["far", "far-too"]
        assert client.get("/v1/webhooks/undelivered").json()["away"] == ["far", "far-too"]
        assert client.get("/replicate/v1/predictions").status_code == 200
        stores = {one["name"]: one for one in client.get("/v1/stores").json()["data"]}
        assert (stores["main"]["state"], stores["b"]["state"]) == ("up", "away")
        assert client.get("/readyz").json()["stores"] == {"main": "up", "b": "away"}
        eventually(lambda: "Left out: far, far-too" in client.get("/").text)
        assert "Left out: far, far-too" in client.get("/ui/jobs").text
        for path in (
            "/v1/jobs",
            "/v1/queues",
            "/v1/stores",
            "/readyz",
            "/metrics",
            "/",
            "/ui/jobs",
            "/ui/failed",
            "/ui/webhooks",
        ):
            without_waits(lambda path=path: client.get(path).raise_for_status())  # type: ignore[misc]
    eventually(lambda: "away" not in client.get("/v1/jobs").json())
    assert {job["id"] for job in client.get("/v1/jobs", params={"tag": "lists"}).json()["data"]} == {near, far}


def test_answers_metrics_and_pages_say_which_store_has_a_model(stack: TwoStores) -> None:
    client = stack.client
    queues = {one["model"]: one["stores"] for one in client.get("/v1/queues").json()["data"]}
    assert queues["near"] == [{"store": "main", "depth": 0, "new_jobs": True}]
    assert queues["far"] == [{"store": "b", "depth": 0, "new_jobs": True}]
    assert client.get("/v1/models/far").json()["stores"] == [{"store": "b", "new_jobs": True}]
    stores = {one["name"]: one for one in client.get("/v1/stores").json()["data"]}
    assert (stores["b"]["models"], stores["b"]["durability"]) == (["far", "far-too"], "local")
    assert stores["b"]["memory_used_bytes"] > 0
    metrics = client.get("/metrics").text
    for store, model in (("b", "far"), ("main", "near")):
        assert f'penstock_store_memory_used_bytes{{store="{store}"}}' in metrics
        assert f'penstock_store_queue_depth{{model="{model}",store="{store}"}} 0.0' in metrics
    eventually(lambda: '<td data-label="Store">b</td>' in client.get("/").text)
    page = client.get("/ui/models/far").text
    assert "<dt>Store b</dt>" in page
    assert 'data-label="Durability">local' in page


def test_a_cancel_by_tag_cancels_what_is_there_and_names_what_is_not(stack: TwoStores) -> None:
    jobs = {model: stack.submit(model, tags="stop", delay_s="600") for model in ("near", "far")}
    with stack.frozen(stack.other):
        answer = stack.client.post("/v1/jobs:cancel", params={"tag": "stop"}).json()
        assert (answer["cancelled"], answer["away"]) == (1, ["far", "far-too"])
        assert stack.status(jobs["near"]) == "cancelled"
    eventually(lambda: "away" not in stack.client.get("/v1/jobs").json())
    answer = stack.client.post("/v1/jobs:cancel", params={"tag": "stop"}).json()
    assert (answer["cancelled"], "away" in answer) == (1, False)
    assert stack.status(jobs["far"]) == "cancelled"


@pytest.mark.parametrize("frozen", ["other", "main"])
def test_events_of_the_other_store_are_delivered(stack: TwoStores, hooks: Receiver, frozen: str) -> None:
    hooks.requests.clear()
    refusing = {f"/{frozen}/held"}
    hooks.answer = lambda request: Say(500 if request.path in refusing else 204)
    held, free = ("far", "near") if frozen == "other" else ("near", "far")
    stack.submit(held, webhook=f"{hooks.url}{frozen}/held")
    # It is to be tried again, all the time, when its store freezes.
    eventually(lambda: hooks.of(f"/{frozen}/held"))
    with stack.frozen(getattr(stack, frozen)):
        for number in range(3):
            stack.submit(free, webhook=f"{hooks.url}{frozen}/free{number}")
        for number in range(3):
            eventually(lambda number=number: hooks.of(f"/{frozen}/free{number}"))  # type: ignore[misc]
    seen = len(hooks.of(f"/{frozen}/held"))
    refusing.clear()
    eventually(lambda: len(hooks.of(f"/{frozen}/held")) > seen)


def test_pipelines_sweeps_and_loads_of_the_main_store_go_on_while_the_other_is_frozen(stack: TwoStores) -> None:
    """A stage in the frozen store waits; a delayed job is promoted by a sweep; a model without slots is loaded."""
    with stack.frozen(stack.other):
        across = stack.submit("across")
        assert stack.output(stack.submit("line"))["n"] == 3
        assert stack.output(stack.submit("near", delay_s="0.5"))["n"] == 2
        assert stack.output(stack.submit("asleep"))["n"] == 2
        probed = called_here("probe", "worker", cwd=stack.folder, env=stack.probe_env)
        assert probed.stdout == "well\n", probed.stderr
        assert stack.status(across) in ("queued", "running")
    assert stack.output(across)["n"] == 3


def test_processes_that_start_while_a_store_is_frozen_serve_the_other_one(stack: TwoStores) -> None:
    with stack.frozen(stack.other):
        stack.worker.kill()
        stack.worker.start()
        with stack.gateway("late") as late:
            answer = eventually(lambda: (got := late.post("/predictions/near", json={"n": 1})).status_code == 200 and got)
            assert answer.json()["n"] == 2
    eventually(lambda: stack.client.post("/predictions/far", json={"n": 1}).status_code == 200, timeout_s=60.0)


def test_what_was_left_out_is_there_again_after_a_store_was_killed(stack: TwoStores) -> None:
    far = stack.submit("far", tags="killed")
    stack.output(far)
    stack.other.kill()
    assert stack.client.get("/v1/jobs", params={"tag": "killed"}).json() == {
        "data": [],
        "has_more": False,
        "away": ["far", "far-too"],
    }
    assert stack.output(stack.submit("line"))["n"] == 3
    stack.other.start()
    eventually(lambda: [job["id"] for job in stack.client.get("/v1/jobs?tag=killed").json()["data"]] == [far])

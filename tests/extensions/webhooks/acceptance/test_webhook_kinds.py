"""Webhooks of runs, OpenAI's batches, and predictions of Replicate and Cog; and the defaults of models and keys."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from standardwebhooks import Webhook

from penstock.broker.run_contract import RunChange
from penstock.broker.store.runs import RunStore
from penstock.client.runs import RunOptions
from penstock.client.sync import Client
from penstock.extensions.webhooks.webhook import new_signing_key
from penstock.run import RunCounts, RunState
from tests.acceptance.gateway_process import GatewayClient, Hand, gateway_process
from tests.eventually import eventually
from tests.webhook_receiver import Received, Receiver, receiver


@pytest.fixture(scope="module")
def hooks() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


@pytest.fixture(scope="module")
def gateway(redis_url: str, hooks: Receiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayClient]:
    models = {
        "square": {"source": "square:Square"},
        "hooked": {"source": "square:Square", "webhook": f"{hooks.url}of-model"},
    }
    env = {"PENSTOCK_WEBHOOKS__SIGNING_KEYS": new_signing_key(), "PENSTOCK_WEBHOOKS__URLS": hooks.url}
    with gateway_process(redis_url, tmp_path_factory.mktemp("kinds"), models=models, env=env) as client:
        yield client


@pytest.fixture(scope="module")
def hand(redis_url: str) -> Iterator[Hand]:
    made = Hand(redis_url)
    with closing(made.store):
        made.announce()
        yield made


def first(hooks: Receiver, path: str) -> Received:
    return eventually(lambda: hooks.of(path))[0]


def end(hand: Hand, run_id: str, state: RunState, *, rows: int = 0) -> None:
    runs = RunStore(hand.store)
    runs.take(run_id, "hand", lease_s=10.0)
    runs.update(run_id, "hand", RunChange(state=state, counts=RunCounts(total=rows, done=rows)), lease_s=0.0)


def test_a_run_has_one_event_whatever_its_rows_are(gateway: GatewayClient, hooks: Receiver, hand: Hand) -> None:
    """A39: one request makes a thousand rows here, and one event."""
    with Client(str(gateway.base_url)) as client:
        run = client.run("square", [{"x": n} for n in range(1_000)], options=RunOptions(webhook=f"{hooks.url}run"))
        end(hand, run.id, RunState.COMPLETED, rows=1_000)
        got = first(hooks, "/run")
        event = Webhook(client.webhooks.secrets()[0]).verify(got.body, got.headers)
        assert (event["type"], event["data"]["id"], event["data"]["status"]) == ("run.completed", run.id, "completed")
        assert event["data"]["progress"]["done"] == 1_000
        log = eventually(lambda: (found := client.webhooks.log(run.id))["state"] == "delivered" and found)
        assert (log["id"], log["url"], log["event"]) == (run.id, f"{hooks.url}run", "run.completed")
    assert len(hooks.of("/run")) == 1
    assert "webhook" not in gateway.get(f"/v1/runs/{run.id}").text


def test_a_batch_has_the_event_that_openai_s_client_unwraps(gateway: GatewayClient, hooks: Receiver, hand: Hand) -> None:
    secret = gateway.get("/v1/webhooks/secret").json()["key"]
    client = OpenAI(api_key="none", base_url=f"{gateway.base_url}/v1", webhook_secret=secret)
    line = {"custom_id": "a", "method": "POST", "url": "/v1/models/square/jobs", "body": {"x": 1}}
    file = client.files.create(file=("in.jsonl", io.BytesIO(json.dumps(line).encode())), purpose="batch")
    extra = {"webhook": f"{hooks.url}batch", "webhook_events": ["batch.completed", "batch.failed"]}
    endpoint: Any = line["url"]
    batch = client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", extra_body=extra)
    end(hand, batch.id.removeprefix("batch_"), RunState.FAILED)
    got = first(hooks, "/batch")
    event: Any = client.webhooks.unwrap(got.body, got.headers)
    assert (event.type, event.object, event.data.id, event.id) == ("batch.failed", "event", batch.id, got.id)


def test_a_prediction_s_webhook_gets_predictions(gateway: GatewayClient, hooks: Receiver, hand: Hand) -> None:
    body = {"version": "square:1", "input": {"x": 4}, "webhook": f"{hooks.url}prediction"}
    made = gateway.post("/replicate/v1/predictions", json=body)
    assert made.status_code == 201, made.text
    job = hand.take()
    hand.report(job, 0.5, "half")
    logs = first(hooks, "/prediction")
    assert (logs.event["id"], logs.event["status"]) == (made.json()["id"], "processing")
    assert logs.event["logs"].startswith(" 50%|")
    hand.finish(job)
    ended = eventually(lambda: [one for one in hooks.of("/prediction") if one.event["status"] == "succeeded"])[0]
    assert ended.event["output"] == {"y": 16}
    secret = gateway.get("/replicate/v1/webhooks/default/secret").json()["key"]
    assert Webhook(secret).verify(ended.body, ended.headers)["id"] == made.json()["id"]


def test_a_webhook_of_cog_s_mount_gets_the_prediction_by_the_id_of_its_caller(
    gateway: GatewayClient, hooks: Receiver, hand: Hand
) -> None:
    body = {"id": "mine", "input": {"x": 4}, "webhook": f"{hooks.url}cog", "webhook_events_filter": ["completed"]}
    made = gateway.post("/cog/square/predictions", json=body, headers={"prefer": "respond-async"})
    assert made.status_code == 202, made.text
    hand.report(job := hand.take(), 0.5)
    hand.finish(job)
    ended = first(hooks, "/cog")
    assert (ended.event["id"], ended.event["status"], ended.event["output"]) == ("mine", "succeeded", {"y": 16})
    assert "urls" not in ended.event
    assert len(hooks.of("/cog")) == 1


def test_a_model_has_a_default_for_submits_and_not_for_answers(gateway: GatewayClient, hooks: Receiver, redis_url: str) -> None:
    other = Hand(redis_url, "hooked")
    with closing(other.store):
        other.announce()
        with other.serving():
            eventually(lambda: gateway.post("/predictions/hooked", json={"x": 4}).status_code == 200)
            job = gateway.post("/v1/models/hooked/jobs", json={"x": 4}).json()["id"]
            assert first(hooks, "/of-model").event["data"]["id"] == job
            named = gateway.post("/predictions/hooked", json={"x": 4}, params={"webhook": f"{hooks.url}named"})
            assert first(hooks, "/named").event["data"]["id"] == named.headers["x-penstock-job"]
    assert len(hooks.of("/of-model")) == 1


def test_without_a_signing_key_a_webhook_is_refused_and_defaults_stop_the_start(redis_url: str, tmp_path: Path) -> None:
    with gateway_process(redis_url, tmp_path, models={"square": {"source": "square:Square"}}) as client:
        for path, body in (
            ("/v1/models/square/jobs?webhook=https://hooks.example/", {"x": 4}),
            ("/replicate/v1/predictions", {"version": "square:1", "input": {"x": 4}, "webhook": "https://hooks.example/"}),
        ):
            answer = client.post(path, json=body)
            assert answer.status_code == 422, answer.text
            assert "webhooks are off" in answer.json()["detail"]
            assert "webhooks.signing_keys" in answer.json()["hint"]
        for path in ("/v1/webhooks/secret", "/replicate/v1/webhooks/default/secret"):
            assert client.get(path).status_code == 404
        assert client.get("/ui/webhooks").status_code == 404
        assert "/ui/webhooks" not in client.get("/ui/jobs").text

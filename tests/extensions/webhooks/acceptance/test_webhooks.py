"""Webhooks over HTTP: a real gateway delivers the events of a real store to a real receiver, which verifies them."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from openai import InvalidWebhookSignatureError, OpenAI
from standardwebhooks import Webhook

from penstock.client.sync import Client
from penstock.extensions.webhooks.webhook import key_bytes, new_signing_key
from tests.acceptance.gateway_process import GatewayClient, Hand, gateway_process
from tests.command import called_here
from tests.eventually import eventually
from tests.webhook_receiver import Received, Receiver, Say, receiver

NEW, OLD = new_signing_key(), new_signing_key()
SQUARE = {"square": {"source": "square:Square"}}


@pytest.fixture(scope="module")
def hooks() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


def settings(hooks: Receiver) -> dict[str, str]:
    return {
        "PENSTOCK_WEBHOOKS__SIGNING_KEYS": f"{NEW},{OLD}",
        "PENSTOCK_WEBHOOKS__URLS": f"*,{hooks.url}",
        "PENSTOCK_WEBHOOKS__RETRY_S": "0.1,0.2,3600",
        "PENSTOCK_WEBHOOKS__CIRCUIT_S": "0.2,0.5",
        "PENSTOCK_WEBHOOKS__TIMEOUT_S": "1",
        "PENSTOCK_WEBHOOKS__MAX_RESULT_BYTES": "1000",
        "PENSTOCK_WEBHOOKS__PUBLIC_URL": "https://models.example.com",
    }


@pytest.fixture(scope="module")
def gateway(redis_url: str, hooks: Receiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayClient]:
    folder = tmp_path_factory.mktemp("hooks")
    with gateway_process(redis_url, folder, models=SQUARE, env=settings(hooks)) as client:
        yield client


@pytest.fixture(scope="module")
def hand(redis_url: str) -> Iterator[Hand]:
    made = Hand(redis_url)
    with closing(made.store):
        made.announce()
        yield made


@pytest.fixture(autouse=True)
def silent(hooks: Receiver) -> None:
    hooks.requests.clear()
    hooks.answer = lambda request: Say()


def submit(gateway: GatewayClient, url: str, **options: str) -> str:
    answer = gateway.post("/v1/models/square/jobs", json={"x": 4}, params={"webhook": url, **options})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def first(hooks: Receiver, path: str) -> Received:
    return eventually(lambda: hooks.of(path))[0]


def log_of(gateway: GatewayClient, job: str) -> dict[str, Any]:
    found: dict[str, Any] = gateway.get(f"/v1/jobs/{job}/deliveries").json()
    return found


def cli(arguments: list[str]) -> str:
    done = called_here(*arguments, env={"PATH": os.environ["PATH"]})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_unmodified_package_verifies_what_a_receiver_gets(gateway: GatewayClient, hooks: Receiver, hand: Hand) -> None:
    job = submit(gateway, f"{hooks.url}verified")
    hand.finish(hand.take())
    got = first(hooks, "/verified")
    keys = gateway.get("/v1/webhooks/secret").json()
    for secret in keys["keys"]:
        event = Webhook(secret).verify(got.body, got.headers)
    assert len(keys["keys"]) == 2
    assert keys["key"] == keys["keys"][0]
    assert event["type"] == "job.succeeded"
    assert event["data"]["id"] == job
    assert event["data"]["output"] == {"y": 16}
    assert event["data"]["links"]["result"] == f"https://models.example.com/v1/jobs/{job}/result"
    log = eventually(lambda: (found := log_of(gateway, job))["state"] == "delivered" and found)
    assert (log["url"], log["event"], log["webhook_id"]) == (f"{hooks.url}verified", "job.succeeded", got.id)
    assert [(one["outcome"], one["answer"], one["webhook_id"]) for one in log["attempts"]] == [("delivered", "204", got.id)]


def test_clients_that_verify_events_of_other_services_verify_these(gateway: GatewayClient, hooks: Receiver, hand: Hand) -> None:
    submit(gateway, f"{hooks.url}others")
    hand.finish(hand.take())
    got = first(hooks, "/others")
    client = OpenAI(
        api_key="none", base_url="http://127.0.0.1:9", webhook_secret=gateway.get("/v1/webhooks/secret").json()["key"]
    )
    client.webhooks.verify_signature(got.body, got.headers)
    with pytest.raises(InvalidWebhookSignatureError):
        client.webhooks.verify_signature(got.body + b" ", got.headers)


@pytest.mark.parametrize("kind", ["failed", "cancelled", "expired"])
def test_every_end_has_its_event(gateway: GatewayClient, hooks: Receiver, hand: Hand, kind: str) -> None:
    job = submit(gateway, f"{hooks.url}{kind}", **({"deadline_s": "0.2"} if kind == "expired" else {}))
    if kind == "failed":
        hand.fail(hand.take(), "bad_item", "no square of this")
    if kind == "cancelled":
        gateway.post(f"/v1/jobs/{job}/cancel")
    if kind == "expired":
        eventually(lambda: hand.store.sweep("square").expired)
    event = first(hooks, f"/{kind}").event
    assert (event["type"], event["data"]["id"], event["data"]["status"]) == (f"job.{kind}", job, kind)
    assert "output" not in event["data"]
    assert event["data"]["error"]["code"] == ("bad_item" if kind == "failed" else kind)


def test_only_the_events_that_were_asked_for_are_sent(gateway: GatewayClient, hooks: Receiver, hand: Hand) -> None:
    quiet = submit(gateway, f"{hooks.url}wanted", webhook_events="job.failed,job.progress")
    hand.finish(hand.take())
    eventually(lambda: log_of(gateway, quiet)["state"] == "unasked")
    loud = submit(gateway, f"{hooks.url}wanted", webhook_events="job.failed,job.progress")
    job = hand.take()
    hand.report(job, 0.5, "half")
    progress = first(hooks, "/wanted").event
    assert progress["type"] == "job.progress"
    assert (progress["data"]["id"], progress["data"]["status"]) == (loud, "running")
    assert (progress["data"]["progress"]["fraction"], progress["data"]["progress"]["note"]) == (0.5, "half")
    hand.fail(job, "bad_item", "no")
    eventually(lambda: len(hooks.of("/wanted")) == 2)
    ended = hooks.of("/wanted")[1]
    assert ended.event["type"] == "job.failed"
    assert ended.id != hooks.of("/wanted")[0].id


def test_a_job_without_a_webhook_has_no_event(gateway: GatewayClient, hooks: Receiver, hand: Hand) -> None:
    answer = gateway.post("/v1/models/square/jobs", json={"x": 4})
    hand.finish(hand.take())
    named = submit(gateway, f"{hooks.url}after")
    hand.finish(hand.take())
    eventually(lambda: log_of(gateway, named)["state"] == "delivered")
    assert {request.path for request in hooks.requests} == {"/after"}
    assert gateway.get(f"/v1/jobs/{answer.json()['id']}/deliveries").json()["detail"].endswith("has no webhook")


@pytest.mark.parametrize(
    ("path", "bad", "word"),
    [
        ("/error", Say(500), "500"),
        ("/moved", Say(307, {"location": "/inside"}), "307"),
        ("/cut", Say(200, cut=True), "closed"),
        ("/slow", Say(wait_s=1.2), "timeout"),
    ],
)
def test_an_event_is_sent_until_it_is_accepted_under_one_id(
    gateway: GatewayClient, hooks: Receiver, hand: Hand, path: str, bad: Say, word: str
) -> None:
    hooks.answer = lambda request: bad if len(hooks.of(path)) < 3 else Say()
    job = submit(gateway, f"{hooks.url}{path[1:]}?key=secret")
    hand.finish(hand.take())
    log = eventually(lambda: (found := log_of(gateway, job))["state"] == "delivered" and found)
    got = hooks.of(path)
    assert len({request.id for request in got}) == 1
    assert len({request.body for request in got}) == 1
    assert [one["answer"] for one in log["attempts"]] == [word, word, "204"]
    assert [one["outcome"] for one in log["attempts"]] == ["again", "again", "delivered"]
    assert log["url"] == f"{hooks.url}{path[1:]}"
    assert not hooks.of("/inside")


def test_a_receiver_that_is_busy_is_left_alone_for_as_long_as_it_says(
    gateway: GatewayClient, hooks: Receiver, hand: Hand
) -> None:
    hooks.answer = lambda request: Say(429, {"retry-after": "1"}) if len(hooks.of("/busy")) == 1 else Say()
    job = submit(gateway, f"{hooks.url}busy")
    hand.finish(hand.take())
    eventually(lambda: log_of(gateway, job)["state"] == "delivered")
    one, two = hooks.of("/busy")
    assert two.at - one.at >= 1.0
    assert one.id == two.id


def test_a_url_that_is_gone_is_called_no_more_until_its_events_are_replayed(
    gateway: GatewayClient, hooks: Receiver, hand: Hand
) -> None:
    hooks.answer = lambda request: Say(410)
    jobs = []
    for _ in range(3):
        jobs.append(submit(gateway, f"{hooks.url}gone?key=secret"))
        hand.finish(hand.take())
        eventually(lambda: log_of(gateway, jobs[-1])["state"] == "undelivered")
    assert len(hooks.of("/gone")) == 1
    page = gateway.get("/v1/webhooks/undelivered", params={"limit": 2}).json()
    assert ([row["id"] for row in page["data"]], page["has_more"]) == ([jobs[2], jobs[1]], True)
    rest = gateway.get("/v1/webhooks/undelivered", params={"after": page["next_after"]}).json()
    assert ([row["id"] for row in rest["data"]], rest["has_more"]) == ([jobs[0]], False)
    shown = gateway.get("/ui/webhooks").text
    assert all(job in shown for job in jobs)
    assert "secret" not in shown
    hooks.answer = lambda request: Say()
    assert gateway.post("/v1/webhooks/dismiss", json={"ids": [jobs[0]]}).json() == {"dismissed": 1}
    assert gateway.post("/v1/webhooks/replay", json={"ids": jobs[1:]}).json() == {"replayed": 2}
    eventually(lambda: all(log_of(gateway, job)["state"] == "delivered" for job in jobs[1:]))
    assert log_of(gateway, jobs[0])["state"] == "dismissed"
    assert gateway.get("/v1/webhooks/undelivered").json()["data"] == []
    # What was delivered can be sent once more too, and its id stays.
    before = [one for one in hooks.of("/gone") if one.event["data"]["id"] == jobs[2]][-1]
    assert gateway.post("/v1/webhooks/replay", json={"ids": [jobs[2]]}).json() == {"replayed": 1}
    again = eventually(lambda: [one for one in hooks.requests if one.id == before.id and one.at > before.at])
    assert again[0].body == before.body


def test_a_dashboard_sends_events_once_more_and_dismisses_them(gateway: GatewayClient, hooks: Receiver, hand: Hand) -> None:
    hooks.answer = lambda request: Say(410)
    jobs = [submit(gateway, f"{hooks.url}page{number}") for number in range(2)]
    for _ in jobs:
        hand.finish(hand.take())
    eventually(lambda: all(log_of(gateway, job)["state"] == "undelivered" for job in jobs))
    hooks.answer = lambda request: Say()
    ours = {"sec-fetch-site": "same-origin"}
    assert gateway.post("/ui/webhooks/replay", data={"id": jobs[0]}).status_code == 403
    assert gateway.post("/ui/webhooks/replay", data={"id": jobs[0]}, headers=ours).status_code == 303
    eventually(lambda: log_of(gateway, jobs[0])["state"] == "delivered")
    assert gateway.post("/ui/webhooks/dismiss", data={"id": ""}, headers=ours).status_code == 303
    assert log_of(gateway, jobs[1])["state"] == "dismissed"
    assert "Every event was delivered" in gateway.get("/ui/webhooks").text


def test_an_output_is_in_its_event_up_to_a_size(gateway: GatewayClient, hooks: Receiver, hand: Hand) -> None:
    for path, output, media in (
        ("/small", b"\x89PNG", "image/png"),
        ("/large", json.dumps("x" * 2_000).encode(), "application/json"),
    ):
        job = submit(gateway, f"{hooks.url}{path[1:]}")
        hand.finish(hand.take(), output, media=media)
        data = first(hooks, path).event["data"]
        assert data.get("output") == ("data:image/png;base64,iVBORw==" if path == "/small" else None)
        assert gateway.get(data["links"]["result"].removeprefix("https://models.example.com")).content == output
        assert data["id"] == job


def test_a_trace_goes_on_at_the_receiver(gateway: GatewayClient, hooks: Receiver, hand: Hand) -> None:
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    answer = gateway.post(
        "/v1/models/square/jobs", json={"x": 4}, params={"webhook": f"{hooks.url}trace"}, headers={"traceparent": parent}
    )
    assert answer.status_code == 202
    hand.finish(hand.take())
    assert first(hooks, "/trace").headers["traceparent"] == parent


def test_each_job_of_one_request_has_its_event(gateway: GatewayClient, hooks: Receiver, hand: Hand) -> None:
    made = gateway.post("/v1/models/square/jobs:batch", json=[{"x": 1}, {"x": 2}], params={"webhook": f"{hooks.url}many"})
    assert made.status_code == 202, made.text
    for _ in range(2):
        hand.finish(hand.take())
    eventually(lambda: len(hooks.of("/many")) == 2)
    assert {one.event["data"]["id"] for one in hooks.of("/many")} == {row["id"] for row in made.json()["data"]}


def test_a_replay_keeps_the_webhook_of_its_job(gateway: GatewayClient, hooks: Receiver, hand: Hand) -> None:
    job = submit(gateway, f"{hooks.url}copy", webhook_events="job.succeeded")
    hand.fail(hand.take(), "bad_item", "no")
    again = gateway.post(f"/v1/jobs/{job}/replay").json()["id"]
    hand.finish(hand.take())
    assert first(hooks, "/copy").event["data"]["id"] == again


REFUSED = [
    ("http://127.0.0.1:9/", "{}", "only https on its usual port"),
    ("https://127.0.0.1/", "{}", "no public address"),
    ("https://[::ffff:10.0.0.1]/", "{}", "no public address"),
    ("https://169.254.169.254/latest", "{}", "no public address"),
    ("https://hooks.example:8443/", "{}", "only https on its usual port"),
    ("http://hooks.example/", "{}", "only https on its usual port"),
    ("ftp://hooks.example/", "{}", "https://host/path"),
    ("https://user:secret@hooks.example/", "{}", "without a login"),
    ("https://hooks.example/", "job.eaten", "there is no event"),
    ("", "job.failed", "no webhook says where"),
]


@pytest.mark.parametrize(("url", "events", "why"), REFUSED)
def test_a_webhook_that_could_not_be_sent_is_refused(gateway: GatewayClient, url: str, events: str, why: str) -> None:
    params = {"webhook": url, **({} if events == "{}" else {"webhook_events": events})}
    for path in ("/v1/models/square/jobs", "/v1/models/square/jobs:batch", "/predictions/square"):
        answer = gateway.post(path, json=[{"x": 4}] if "batch" in path else {"x": 4}, params=params)
        assert answer.status_code == 422, answer.text
        assert why in answer.json()["detail"]
        assert "secret" not in answer.text


def test_ids_that_name_no_event_change_nothing(gateway: GatewayClient) -> None:
    unknown = "01k9xw3c5t8ze2m4v6b7n0q1rs"
    for verb, word in (("replay", "replayed"), ("dismiss", "dismissed")):
        url = f"/v1/webhooks/{verb}"
        assert gateway.post(url, json={"ids": [f"{unknown}-square", f"{unknown}-other", unknown]}).json() == {word: 0}
        assert gateway.post(url, json={"ids": ["../../x"]}).status_code == 400
        assert gateway.post(url, json={"ids": []}).status_code == 400
        assert gateway.post(url, json={"ids": [unknown] * 1_001}).json() == {word: 0}
        assert gateway.post(url, json={"ids": [f"{unknown}{n}" for n in range(1_001)]}).status_code == 400
        assert gateway.post(url, json={"ids": "all"}).status_code == 422
    assert gateway.get("/v1/runs/nothing/deliveries").status_code == 404
    assert gateway.get(f"/v1/jobs/{unknown}-square/deliveries").status_code == 404


def test_the_metrics_count_deliveries_and_what_was_given_up(gateway: GatewayClient, hooks: Receiver, hand: Hand) -> None:
    hooks.answer = lambda request: Say(410)
    job = submit(gateway, f"{hooks.url}metrics")
    hand.finish(hand.take())
    eventually(lambda: log_of(gateway, job)["state"] == "undelivered")
    found = gateway.get("/metrics").text
    assert 'penstock_webhook_undelivered{model="square"} 1.0' in found
    assert 'penstock_webhook_deliveries_total{result="gone"}' in found
    assert gateway.post("/v1/webhooks/dismiss", json={"ids": [job]}).json() == {"dismissed": 1}


def test_another_gateway_delivers_what_a_killed_one_was_about_to(
    gateway: GatewayClient, redis_url: str, hooks: Receiver, hand: Hand, tmp_path: Path
) -> None:
    """The killed one had events in its hands that their receiver had seen already: these come twice, under the same ids."""
    held = threading.Event()
    hooks.answer = lambda request: Say() if held.is_set() else Say(wait_s=0.8)
    with gateway_process(redis_url, tmp_path, models=SQUARE, env=settings(hooks)) as other:
        jobs = [submit(other, f"{hooks.url}killed") for _ in range(8)]
        for _ in jobs:
            hand.finish(hand.take())
        eventually(lambda: len(hooks.of("/killed")) >= 4)
        other.kill()
    held.set()
    eventually(lambda: all(log_of(gateway, job)["state"] == "delivered" for job in jobs))
    ids = {one.event["data"]["id"]: one.id for one in hooks.of("/killed")}
    assert set(ids) == set(jobs)
    assert {(one.event["data"]["id"], one.id) for one in hooks.of("/killed")} == set(ids.items())


def test_the_client_and_the_command_line_show_and_change_what_was_given_up(
    gateway: GatewayClient, hooks: Receiver, hand: Hand
) -> None:
    with Client(str(gateway.base_url)) as client:
        assert client.webhooks.secrets() == gateway.get("/v1/webhooks/secret").json()["keys"]
        hooks.answer = lambda request: Say(410)
        handles = [client.submit("square", {"x": 4}, webhook=f"{hooks.url}cli{n}") for n in range(3)]
        handles += client.submit_many("square", [{"x": 4}], webhook=f"{hooks.url}cli3", webhook_events=["job.succeeded"])
        ids = [handle.id for handle in handles]
        for _ in handles:
            hand.finish(hand.take())
        eventually(lambda: {row["id"] for row in client.webhooks.undelivered()} == set(ids))
        assert client.webhooks.log(ids[0])["attempts"][0]["answer"] == "410"
        hooks.answer = lambda request: Say()
        assert client.webhooks.replay(ids[:1]) == 1
        assert client.webhooks.dismiss(ids[1:2]) == 1
    assert len(key_bytes(cli(["webhooks", "new-key"]).strip())) == 32
    where = ["--url", str(gateway.base_url)]
    assert cli(["webhooks", "secret", *where]).split() == gateway.get("/v1/webhooks/secret").json()["keys"]
    rows = [json.loads(line) for line in cli(["webhooks", "log", "--json", *where]).splitlines()]
    assert {row["id"] for row in rows} == set(ids[2:])
    assert ids[2] in cli(["webhooks", "log", *where])
    eventually(lambda: "delivered" in cli(["webhooks", "log", ids[0], *where]))
    assert json.loads(cli(["webhooks", "replay", ids[2], "--json", *where])) == {"replayed": 1}
    eventually(lambda: "delivered" in cli(["webhooks", "log", ids[2], *where]))
    # What is given up again at once is replayed once per command: the command once read the list until it was empty.
    hooks.answer = lambda request: Say(410)
    assert cli(["webhooks", "replay", "--all", *where]).strip() == "1 event sent once more"
    eventually(lambda: ids[3] in cli(["webhooks", "log", *where]))
    hooks.answer = lambda request: Say()
    assert cli(["webhooks", "dismiss", "--all", *where]).strip() == "1 event dismissed"
    job = cli(["call", "square", '{"x": 4}', "--async", "--webhook", f"{hooks.url}called", *where]).strip()
    hand.finish(hand.take())
    assert first(hooks, "/called").event["data"]["id"] == job

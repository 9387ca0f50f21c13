"""Webhooks and owners: nobody sees or changes the events of another owner, and each has a secret of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import httpx2
import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from penstock.extensions.webhooks.webhook import new_signing_key
from tests.acceptance.gateway_process import Hand
from tests.eventually import eventually
from tests.security.keyed import ALICE, BOB, BOSS, READER, UNKNOWN_ID, TestKey, keyed_gateway, make
from tests.webhook_receiver import Receiver, Say, receiver

CANARY = "canary-of-what-is-inside"


@pytest.fixture(scope="module")
def hooks() -> Iterator[Receiver]:
    with receiver() as found:
        found.answer = lambda request: Say(410, {"x-inside": CANARY, "location": f"http://{CANARY}/"})
        yield found


@pytest.fixture(scope="module")
def hooked(hooks: Receiver) -> TestKey:
    return make("hooked", "submit", "read", owner="team-c", more=f'webhook = "{hooks.url}of-key"')


@pytest.fixture(scope="module")
def gateway(
    redis_url: str, hooks: Receiver, hooked: TestKey, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx2.Client]:
    env = {
        "PENSTOCK_WEBHOOKS__SIGNING_KEYS": new_signing_key(),
        "PENSTOCK_WEBHOOKS__URLS": hooks.url,
        "PENSTOCK_WEBHOOKS__MAX_UNDELIVERED": "3",
        "PENSTOCK_WEBHOOKS__RETRY_S": "60",
    }
    with keyed_gateway(redis_url, tmp_path_factory.mktemp("g"), keys=(ALICE, BOB, BOSS, READER, hooked), env=env) as client:
        yield client


@pytest.fixture(scope="module")
def hand(redis_url: str) -> Iterator[Hand]:
    made = Hand(redis_url)
    with closing(made.store):
        made.announce()
        yield made


def submitted(gateway: httpx2.Client, key: TestKey, url: str = "") -> httpx2.Response:
    params = {"webhook": url} if url else {}
    return gateway.post("/v1/models/square/jobs", json={"x": 4}, headers=key.header, params=params)


def test_the_events_of_another_owner_are_neither_seen_nor_changed(gateway: httpx2.Client, hooks: Receiver, hand: Hand) -> None:
    job = submitted(gateway, ALICE, f"{hooks.url}alice?key={CANARY}").json()["id"]
    hand.finish(hand.take())
    log = f"/v1/jobs/{job}/deliveries"
    eventually(lambda: gateway.get(log, headers=ALICE.header).json().get("state") == "undelivered")
    theirs, absent = gateway.get(log, headers=BOB.header), gateway.get(f"/v1/jobs/{UNKNOWN_ID}/deliveries", headers=BOB.header)
    assert theirs.status_code == absent.status_code == 404
    assert theirs.json()["detail"] == f"there is no job {job}"
    ids = {"ids": [job]}
    for verb, word in (("replay", "replayed"), ("dismiss", "dismissed")):
        assert gateway.post(f"/v1/webhooks/{verb}", json=ids, headers=BOB.header).json() == {word: 0}
        assert gateway.post(f"/v1/webhooks/{verb}", json=ids, headers=READER.header).status_code == 403
    assert gateway.get("/v1/webhooks/undelivered", headers=BOB.header).json()["data"] == []
    for key in (ALICE, READER, BOSS):
        [row] = gateway.get("/v1/webhooks/undelivered", headers=key.header).json()["data"]
        assert row["id"] == job
    assert gateway.post("/v1/webhooks/dismiss", json=ids, headers=BOSS.header).json() == {"dismissed": 1}
    # A32: neither the log nor the list has a word of the answer, and no URL is shown with its query.
    shown = "".join(gateway.get(path, headers=ALICE.header).text for path in (log, "/v1/webhooks/undelivered"))
    assert CANARY not in shown
    assert '"answer":"410"' in shown


def test_each_owner_has_a_secret_of_its_own(gateway: httpx2.Client, hooks: Receiver, hand: Hand) -> None:
    secrets = [gateway.get("/v1/webhooks/secret", headers=key.header).json()["key"] for key in (ALICE, BOB)]
    assert len(set(secrets)) == 2
    assert gateway.get("/v1/webhooks/secret", headers=READER.header).status_code == 403
    submitted(gateway, BOB, f"{hooks.url}bob")
    hand.finish(hand.take())
    got = eventually(lambda: hooks.of("/bob"))[0]
    assert Webhook(secrets[1]).verify(got.body, got.headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(secrets[0]).verify(got.body, got.headers)


def test_a_key_has_a_default(gateway: httpx2.Client, hooks: Receiver, hooked: TestKey, hand: Hand) -> None:
    job = submitted(gateway, hooked).json()["id"]
    hand.finish(hand.take())
    assert eventually(lambda: hooks.of("/of-key"))[0].event["data"]["id"] == job


def test_an_owner_whose_receiver_is_dead_gets_no_further_jobs_with_a_webhook(
    gateway: httpx2.Client, hooks: Receiver, hand: Hand
) -> None:
    """A39: what an owner may leave waiting is bounded, and no other owner has a part in it."""
    hooks.answer = lambda request: Say(500)
    made = [submitted(gateway, ALICE, f"{hooks.url}dead") for _ in range(4)]
    assert [answer.status_code for answer in made] == [202, 202, 202, 429]
    assert "wait to be delivered" in made[3].json()["detail"]
    assert submitted(gateway, ALICE).status_code == 202
    assert submitted(gateway, BOB, f"{hooks.url}bob").status_code == 202
    for _ in range(5):
        hand.finish(hand.take())

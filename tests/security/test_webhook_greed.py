"""Webhooks of a greedy owner: whose receivers hang takes a share of the deliveries, and the others keep theirs."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

from penstock.broker.records import BatchStamp, Ending
from penstock.extensions.webhooks.webhook import new_signing_key
from penstock.job import JobState, Payload
from tests.acceptance.gateway_process import GatewayClient, Hand
from tests.eventually import eventually
from tests.security.keyed import ALICE, BOB, TestKey, keyed_gateway
from tests.webhook_receiver import Receiver, Say, receiver


def test_an_owner_whose_receivers_hang_holds_up_no_other_s_events(redis_url: str, tmp_path: Path) -> None:
    """All events of the one were taken in one call, before anybody had counted them, and filled every place."""
    released = threading.Event()
    with receiver() as hooks:
        hooks.answer = lambda request: Say(204 if request.path != "/hangs" or released.wait(60.0) else 500)
        env = {
            "PENSTOCK_WEBHOOKS__SIGNING_KEYS": new_signing_key(),
            "PENSTOCK_WEBHOOKS__URLS": hooks.url,
            "PENSTOCK_WEBHOOKS__CONCURRENCY": "4",
            "PENSTOCK_WEBHOOKS__TIMEOUT_S": "60",
        }
        with keyed_gateway(redis_url, tmp_path, keys=(ALICE, BOB), env=env) as gateway:
            end_at_once(gateway, hooks, Hand(redis_url), ALICE, "hangs", 8)
            eventually(lambda: hooks.of("/hangs"))
            end_at_once(gateway, hooks, Hand(redis_url), BOB, "modest", 1)
            assert eventually(lambda: hooks.of("/modest"))
            assert len(hooks.of("/hangs")) == 1, "a quarter of the four places"
            released.set()
            eventually(lambda: len(hooks.of("/hangs")) == 8)


def end_at_once(gateway: GatewayClient, hooks: Receiver, hand: Hand, key: TestKey, path: str, count: int) -> None:
    """Submits jobs whose events go to `path`, and ends all of them in one call."""
    hand.announce()
    for _ in range(count):
        params = {"webhook": f"{hooks.url}{path}"}
        answer = gateway.post("/v1/models/square/jobs", json={"x": 4}, headers=key.header, params=params)
        assert answer.status_code == 202, answer.text
    jobs = hand.claim(count).jobs
    endings = [Ending(job.id, job.token, JobState.SUCCEEDED, Payload("application/json", b"{}")) for job in jobs]
    with closing(hand.store):
        hand.store.finish(endings, worker=hand.name, stamp=BatchStamp("b1", count, "idle", inference_s=0.001))

"""Webhooks of a greedy owner: whose receivers hang takes a share of the deliveries, and the others keep theirs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from penstock.broker.records import BatchStamp, Ending
from penstock.extensions.webhooks.gateway.deliverer import SIDE_BY_SIDE
from penstock.extensions.webhooks.webhook import new_signing_key
from penstock.gateway.auth.keys import OWNER_PART
from penstock.job import JobState, Payload
from tests.acceptance.gateway_process import GatewayClient, Hand
from tests.eventually import eventually
from tests.security.keyed import ALICE, BOB, TestKey, keyed_gateway
from tests.webhook_receiver import Receiver, Say, receiver

HANGING = 5


def test_an_owner_whose_receivers_hang_holds_up_no_other_s_events(redis_url: str, tmp_path: Path) -> None:
    """All events of the one were taken in one call, before anybody had counted them, and filled every place."""
    released = threading.Event()
    with ExitStack() as stack:
        modest, *hanging = [stack.enter_context(receiver()) for _ in range(1 + HANGING)]
        for one in hanging:
            one.answer = lambda _: Say(204 if released.wait(60.0) else 500)
        env = {
            "PENSTOCK_WEBHOOKS__SIGNING_KEYS": new_signing_key(),
            "PENSTOCK_WEBHOOKS__URLS": ",".join(one.url for one in (modest, *hanging)),
            "PENSTOCK_WEBHOOKS__TIMEOUT_S": "60",
        }
        with keyed_gateway(redis_url, tmp_path, keys=(ALICE, BOB), env=env) as gateway:
            # Each endpoint takes at most four at a time, so that these could fill twenty places.
            end_at_once(gateway, Hand(redis_url), ALICE, [one.url for one in hanging for _ in range(6)])
            eventually(lambda: hung(hanging) == SIDE_BY_SIDE // OWNER_PART)
            end_at_once(gateway, Hand(redis_url), BOB, [modest.url])
            assert eventually(lambda: modest.requests)
            assert hung(hanging) == SIDE_BY_SIDE // OWNER_PART
            released.set()
            eventually(lambda: hung(hanging) == 6 * HANGING)


def hung(receivers: Sequence[Receiver]) -> int:
    return sum(len(one.requests) for one in receivers)


def end_at_once(gateway: GatewayClient, hand: Hand, key: TestKey, urls: Sequence[str]) -> None:
    """Submits a job for each URL, to which its events go, and ends all of them in one call."""
    hand.announce()
    for url in urls:
        answer = gateway.post("/v1/models/square/jobs", json={"x": 4}, headers=key.header, params={"webhook": url})
        assert answer.status_code == 202, answer.text
    jobs = hand.claim(len(urls)).jobs
    endings = [Ending(job.id, job.token, JobState.SUCCEEDED, Payload("application/json", b"{}")) for job in jobs]
    with closing(hand.store):
        hand.store.finish(endings, worker=hand.name, stamp=BatchStamp("b1", len(urls), "idle", inference_s=0.001))

"""Two owners on one gateway: a backlog of one owner does not delay the jobs of the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx2
import pytest

from penstock.broker.records import NewJob
from penstock.job import Payload, new_job_id
from tests.acceptance.gateway_process import GatewayClient, Hand, gateway_process
from tests.eventually import eventually
from tests.security.keyed import TestKey, make

FLOOD = make("flood", "submit", "read", owner="team-flood", more="max_open_jobs = 20000\nrate_per_s = 100000\nburst = 100000")
FEW = make("few", "submit", "read", owner="team-few")
MODELS = {"square": {"source": "square.py:Square", "max_queue_depth": 20_000}}
PILE = 10_000
BATCH = 8


@pytest.fixture
def gateway(fresh_redis: str, tmp_path: Path) -> Iterator[GatewayClient]:
    env = {"PENSTOCK_KEYS": FLOOD.toml + FEW.toml}
    with gateway_process(fresh_redis, tmp_path, models=MODELS, env=env) as client:
        yield client


@pytest.fixture
def hand(fresh_redis: str) -> Iterator[Hand]:
    """A fake worker that announces 50 ms for a batch of 8 jobs: 160 jobs a second."""
    hand = Hand(fresh_redis)
    hand.announce(latency_s={1: 0.02, BATCH: 0.05})
    with closing(hand.store):
        yield hand
        hand.store.withdraw_worker(hand.name)


def pile_up(gateway: httpx2.Client, hand: Hand) -> None:
    """Submits most of the backlog to the store, as other gateways would, and the last hundred jobs through this gateway."""
    jobs = [
        NewJob(new_job_id("square"), "1", Payload("application/json", b'{"x":4}'), owner=FLOOD.owner) for _ in range(PILE - 100)
    ]
    hand.store.submit(jobs, max_depth=20_000)
    assert [submit(gateway, FLOOD).status_code for _ in range(100)] == [202] * 100


def submit(gateway: httpx2.Client, key: TestKey, **params: str) -> httpx2.Response:
    return gateway.post("/v1/models/square/jobs", json={"x": 4}, headers=key.header, params=params)


def test_ten_jobs_of_one_owner_are_not_held_up_by_ten_thousand_of_another(gateway: GatewayClient, hand: Hand) -> None:
    eventually(lambda: gateway.get("/v1/models/square", headers=FEW.header).json()["ready"])
    pile_up(gateway, hand)
    # The backlog takes a minute, so its owner cannot have an answer within half of that; the other owner on that queue can.
    eventually(lambda: submit(gateway, FLOOD, deadline_s="30").status_code == 429)
    accepted = [submit(gateway, FEW, deadline_s="30") for _ in range(10)]
    assert [answer.status_code for answer in accepted] == [202] * 10
    # The position in a 202 is an estimate, which a read of statistics at that moment may shift; the one in the job is counted.
    links = [answer.json()["links"]["self"] for answer in accepted]
    assert [gateway.get(link, headers=FEW.header).json()["position"] for link in links] == list(range(10))
    assert max(answer.json()["eta_s"] for answer in accepted) < 1.0
    for _ in range(3):
        for job in hand.claim(BATCH).jobs:
            hand.finish(job)
    results = [gateway.get(answer.json()["links"]["result"], headers=FEW.header).status_code for answer in accepted]
    assert results == [200] * 10

"""Several processes of one gateway on one port: the kernel chooses one for each connection."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx2
import pytest

from tests.acceptance.gateway_process import GatewayClient, Hand
from tests.eventually import eventually
from tests.security.keyed import ALICE, BOSS, keyed_gateway


@pytest.fixture(scope="module")
def gateway(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayClient]:
    with keyed_gateway(redis_url, tmp_path_factory.mktemp("gateway"), keys=(ALICE, BOSS), processes=2, cold=True) as client:
        yield client


def test_processes_side_by_side_share_one_port(gateway: GatewayClient, redis_url: str) -> None:
    hand = Hand(redis_url)
    hand.announce()
    # Each request opens a connection, because the kernel picks the process by connection.
    limits = httpx2.Limits(max_keepalive_connections=0)
    fresh = httpx2.Client(base_url=gateway.base_url, headers=ALICE.header, limits=limits, timeout=35.0)
    with fresh, hand.serving(), ThreadPoolExecutor(8) as pool:
        # One gateway process may learn of the worker later than the other.
        eventually(lambda: all(fresh.get("/v1/models/square").json()["ready"] for _ in range(20)))
        answers = list(pool.map(lambda _: fresh.post("/predictions/square", json={"x": 4}).status_code, range(32)))
        # A scrape would reach any of the processes, so it is told nothing rather than a part.
        scrape = fresh.get("/metrics", headers=BOSS.header).status_code
    assert answers == [200] * 32
    assert scrape == 404


def test_processes_on_one_port_count_a_keys_rate_together(gateway: GatewayClient) -> None:
    rate, burst = 5.0, 4
    given = {"id": "shared", "roles": ["read"], "rate_per_s": rate, "burst": burst}
    made = gateway.post("/v1/keys", json=given, headers=BOSS.header).json()["key"]
    with ExitStack() as opened:
        # Each keeps a connection of its own. Regression: a client per request was slower than the rate on a busy machine.
        clients = [opened.enter_context(httpx2.Client(base_url=gateway.base_url)) for _ in range(12)]

        def ask() -> list[int]:
            header = {"authorization": f"Bearer {made}"}
            return [client.get("/v1/models", headers=header).status_code for client in clients]

        eventually(lambda: 401 not in ask())
        answers, began = Counter[int](), time.monotonic()
        while time.monotonic() - began < 2.0 or not answers[429]:
            answers.update(ask())
        passed, refused, took_s = answers[200], answers[429], time.monotonic() - began
    # Two processes that count for themselves would let through twice as many.
    assert refused
    assert passed <= rate * (took_s + 1.0) + burst

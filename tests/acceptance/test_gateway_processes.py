"""Several processes of one gateway on one port: the kernel chooses one for each connection."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

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
    ask = partial(httpx2.get, f"{gateway.base_url}/v1/models", headers={"authorization": f"Bearer {made}"})
    eventually(lambda: all(ask().status_code != 401 for _ in range(8)))
    passed, refused, began = 0, 0, time.monotonic()
    while time.monotonic() - began < 2.0:
        status = ask().status_code
        passed, refused = passed + (status == 200), refused + (status == 429)
    took_s = time.monotonic() - began
    # Two processes that count for themselves would let through twice as many.
    assert refused
    assert passed <= rate * (took_s + 1.0) + burst

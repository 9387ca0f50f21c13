"""One job per idempotency key, while gateways differ in the number of partitions and while that number changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.acceptance.gateway_process import GatewayClient, gateway_process

KEYS = 200


def models(partitions: int) -> dict[str, Any]:
    return {"m": {"source": "m.py", "partitions": partitions}}


@pytest.fixture
def gateways(fresh_redis: str, tmp_path: Path) -> Iterator[Sequence[GatewayClient]]:
    """Yield two gateways of one store, with 4 and 2 partitions in their settings."""
    with (
        gateway_process(fresh_redis, tmp_path / "four", models=models(4)) as four,
        gateway_process(fresh_redis, tmp_path / "two", models=models(2)) as two,
    ):
        yield four, two


def asked(gateway: httpx2.Client, key: str) -> str:
    answer = gateway.post("/v1/models/m/jobs", json=1, headers={"idempotency-key": key})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def test_gateways_with_other_numbers_of_partitions_make_one_job_of_a_key(gateways: Sequence[GatewayClient]) -> None:
    """Regression: each placed the key by the number in its own settings, and 89 of 200 keys made two jobs."""
    keys = [f"key-{number}" for number in range(KEYS)]
    with ThreadPoolExecutor(8) as pool:
        calls = [[pool.submit(asked, gateway, key) for gateway in gateways] for key in keys]
        found = [{call.result() for call in pair} for pair in calls]
    assert [len(ids) for ids in found] == [1] * KEYS

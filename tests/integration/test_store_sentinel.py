"""Sentinels name the primary: gateway, worker and Celery follow them when it is killed, and what was accepted is done."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest

from tests.acceptance.gateway_process import GatewayClient, gateway_process
from tests.eventually import eventually
from tests.integration.test_store_schemes import stock
from tests.integration.worker_process import HANDLERS, WorkerProcess, await_listening
from tests.sentinels import SentinelGroup, sentinel_group

MODELS = {"paced": {"source": str(HANDLERS / "paced.py")}}
REPLICATED = {"PENSTOCK_STORE__DURABILITY": "replicated"}


@pytest.fixture(scope="module")
def group(has_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelGroup]:
    with sentinel_group(tmp_path_factory.mktemp("sentinels")) as group:
        yield group


class Load:
    """Submits one job after the other, each until it is accepted: a failed submit is repeated with its key."""

    def __init__(self, gateway: GatewayClient) -> None:
        self._gateway = gateway
        self.accepted: list[str] = []
        self.refused = 0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(4)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            key = uuid4().hex
            while not (found := self._submit(key)) and not self._stop.is_set():
                self.refused += 1
                self._stop.wait(0.05)
            if found:
                self.accepted.append(found)

    def _submit(self, key: str) -> str:
        try:
            answer = self._gateway.post("/v1/models/paced/jobs", json={"tag": key}, headers={"Idempotency-Key": key})
        except httpx2.TransportError:
            return ""
        return str(answer.json()["id"]) if answer.status_code == 202 else ""

    def await_more(self, count: int) -> None:
        wanted = len(self.accepted) + count
        eventually(lambda: len(self.accepted) >= wanted, timeout_s=60.0)


def test_a_primary_that_is_killed_under_load_takes_nothing_that_was_accepted_with_it(
    group: SentinelGroup, tmp_path: Path
) -> None:
    with (
        WorkerProcess(group.url, tmp_path / "worker", MODELS) as worker,
        gateway_process(group.url, tmp_path / "gateway", models=MODELS, env=REPLICATED) as gateway,
    ):
        name = worker.await_ready()
        with Load(gateway) as load:
            load.await_more(50)
            old = group.primary()
            old.kill()
            group.await_promotion(old)
            load.await_more(50)
        assert load.refused
        eventually(lambda: states(gateway, load.accepted) == {"succeeded"}, timeout_s=60.0)
        with stock(group.url) as app:  # Celery's own connection follows as well
            await_listening(app, name)


def states(gateway: GatewayClient, jobs: list[str]) -> set[str]:
    return {gateway.get(f"/v1/jobs/{job}").json()["status"] for job in jobs}

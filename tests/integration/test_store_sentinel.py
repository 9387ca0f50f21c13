"""Sentinels name the primary: gateway, worker and Celery follow them when it is killed, and what was accepted is done."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.gateway_process import gateway_process
from tests.integration.test_store_schemes import stock
from tests.integration.worker_process import HANDLERS, WorkerProcess, await_listening
from tests.sentinels import SentinelGroup, sentinel_group
from tests.steady_load import SteadyLoad

MODELS = {"paced": {"source": str(HANDLERS / "paced.py")}}
REPLICATED = {"PENSTOCK_STORE__DURABILITY": "replicated"}


@pytest.fixture(scope="module")
def group(has_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelGroup]:
    with sentinel_group(tmp_path_factory.mktemp("sentinels")) as group:
        yield group


def test_a_primary_that_is_killed_under_load_takes_nothing_that_was_accepted_with_it(
    group: SentinelGroup, tmp_path: Path
) -> None:
    with (
        WorkerProcess(group.url, tmp_path / "worker", MODELS) as worker,
        gateway_process(group.url, tmp_path / "gateway", models=MODELS, env=REPLICATED) as gateway,
    ):
        name = worker.await_ready()
        with SteadyLoad(str(gateway.base_url), ["paced"]) as load:
            load.await_more(20)
            old = group.primary()
            old.kill()
            group.await_promotion(old)
            load.await_more(20)
        assert load.refused
        assert load.ends() == {"succeeded": len(load.accepted)}
        with stock(group.url) as app:  # Celery's own connection follows as well
            await_listening(app, name)

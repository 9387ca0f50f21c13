"""How large a scrape of a gateway can become, and the meaning of its metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from penstock.broker.backlog import Backlog, SlotCapacity
from penstock.broker.blobs.files import LocalBlobs
from penstock.broker.records import QueueStats
from penstock.broker.store.aio import AsyncStore
from penstock.errors import DeadlineUnlikely, NoWorker, Overloaded, PenstockError, QuotaSpent, TooLarge
from penstock.extensions.torchserve.gateway.metrics import TorchServeCounts
from penstock.gateway.app import Gateway
from penstock.gateway.asgi.connection import Lifetime
from penstock.gateway.models.queues import BANDS, queue_of, queue_view
from penstock.gateway.models.registry import ModelEntry, ModelRegistry, VersionEntry
from penstock.gateway.telemetry.metrics import TIMED, GatewayMetrics
from penstock.gateway.telemetry.scrape import StoreFigures, scrape
from penstock.job import BatchRecord
from penstock.model_spec import ModelInfo
from penstock.settings.tables import Settings

SERIES_LIMIT = 2_400
MODELS = [f"model-{number}" for number in range(50)]
REFUSALS: list[PenstockError] = [
    Overloaded("full"),
    TooLarge("large"),
    NoWorker("nobody"),
    QuotaSpent("spent"),
    DeadlineUnlikely("late"),
]


def entry(name: str, *, per_s: float = 0.0, slots: int = 0, backlog: Backlog | None = None) -> ModelEntry:
    version = VersionEntry("1", None, None, SlotCapacity(slots, per_s, full_per_s=per_s))
    return ModelEntry(ModelInfo(name), version, {"1": version}, backlog or Backlog())


def stats(name: str = "m", **changes: Any) -> QueueStats:
    whys = ("crashed", "given_back", "reading", "worker_lost")
    counters = {f"redelivered:{why}": 1 for why in whys} | {"retried": 1, "stale": 1}
    ages = {band: 10.0 * (band + 1) for band in BANDS}
    ready = {0: 6, 6: 2, 9: 4}
    return QueueStats(name, 0.0, ready, ages, ended={"succeeded": 5, "dead": 2, "failed": 1}, counters=counters, **changes)


def series(*registries: CollectorRegistry) -> int:
    return sum(len(metric.samples) for registry in registries for metric in registry.collect())


def of_store(*entries: ModelEntry) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(StoreFigures([queue_of(known, stats(known.name), 0.0) for known in entries], workers=3))
    return registry


@pytest.fixture(scope="module")
def gateway() -> Gateway:
    nowhere = AsyncStore("redis://127.0.0.1:1")
    return Gateway(Settings.load(None, {}), store=nowhere, blobs=LocalBlobs(Path("nowhere")), lifetime=Lifetime())


def test_a_scrape_of_fifty_models_with_every_label_in_use_stays_small(gateway: Gateway) -> None:
    metrics, counts = GatewayMetrics(), TorchServeCounts()
    for path, item in gateway.parts.document()["paths"].items():
        for method in item:
            for status in (200, 404, 500):
                metrics.count_answer(path, method.upper(), status, 0.1)
    for model in MODELS:
        counts.count_request(model, "")
        counts.count_answer(model, "", BatchRecord("b", 1, "idle"), 0.2)
        for error in REFUSALS:
            metrics.count_refusal(model, error)
    known = of_store(*(entry(model, per_s=10.0, slots=1) for model in MODELS))
    assert series(metrics.registry, known) <= SERIES_LIMIT
    # TorchServe's names are asked for: five series per model, and a few of the host.
    assert sum(len(family.samples) for family in counts.families()) <= 5 * len(MODELS) + 2


def test_every_route_with_a_histogram_of_its_own_exists(gateway: Gateway) -> None:
    assert gateway.parts.document()["paths"].keys() >= TIMED


def test_the_backlog_is_the_depth_over_the_rate_of_the_live_slots() -> None:
    queue = queue_of(entry("m", per_s=4.0, slots=2), stats(solo=2), 0.0)
    assert {name: (band.depth, band.backlog_s) for name, band in queue.bands.items()} == {
        "interactive": (8, 2.0),
        "late": (2, 0.5),
        "bulk": (4, 1.0),
    }
    assert (queue.depth, queue.backlog_s, queue.oldest_age_s, queue.ready_slots) == (14, 3.5, 100.0, 2)


def test_without_a_rate_a_backlog_is_not_known_unless_nothing_waits() -> None:
    assert queue_view(queue_of(entry("m"), stats(), 0.0))["backlog_s"] is None
    assert queue_view(queue_of(entry("m"), QueueStats("m", 0.0), 0.0))["backlog_s"] == 0.0
    figures = of_store(entry("m"))
    assert figures.get_sample_value("penstock_queue_backlog_seconds", {"model": "m", "priority": "bulk"}) is None


def test_a_job_given_up_counts_as_failed_and_among_the_dead() -> None:
    figures = of_store(entry("m"))
    assert figures.get_sample_value("penstock_jobs_total", {"model": "m", "status": "failed"}) == 3
    assert figures.get_sample_value("penstock_jobs_dead_total", {"model": "m"}) == 2


async def test_while_the_store_is_away_its_figures_are_left_out_and_the_miss_is_counted() -> None:
    store = AsyncStore("redis://127.0.0.1:1")
    registry = ModelRegistry(store, [ModelInfo("m")])
    registry.models = {"m": entry("m")}
    text = (await scrape(GatewayMetrics(), store, registry, private=False)).decode()
    assert "penstock_store_up 0.0" in text
    assert 'penstock_store_errors_total{part="gateway"} 1.0' in text
    assert "penstock_queue_depth{" not in text
    await store.close()

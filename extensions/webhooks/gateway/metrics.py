"""What a scrape says of webhooks: attempts of this process, and the events of each model that wait or were given up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.broker.partitions import queues_of_model
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.ops import prefix
from penstock.broker.store.run_ops import RUNS_KEY
from penstock.errors import StoreUnavailable
from penstock.extensions.webhooks.contract import EventCounts
from penstock.extensions.webhooks.store.outbox import AsyncOutbox
from penstock.gateway.models.registry import ModelRegistry
from penstock.job import model_of
from penstock.model_spec import ModelInfo


class DeliveryCounts:
    """Counts attempts, among what the gateway counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._deliveries = Counter(
            "penstock_webhook_deliveries", "Attempts to deliver events to webhooks", ("result",), registry=registry
        )

    def count(self, result: str) -> None:
        """`result`: delivered, retried, gone, undelivered or stale. Safe to call from another thread."""
        self._deliveries.labels(result).inc()


async def scrape(store: AsyncStore, registry: ModelRegistry) -> bytes:
    """Empty while the store is unreachable."""
    try:
        events = await _events(store, [entry.info for entry in registry.models.values()])
    except StoreUnavailable:
        return b""
    at_scrape = CollectorRegistry()
    at_scrape.register(EventFigures(events))
    return generate_latest(at_scrape)


async def _events(store: AsyncStore, models: Sequence[ModelInfo]) -> dict[str, EventCounts]:
    """The events of each model, and under an empty name those of runs."""
    queues = ["", *(queue for info in models for queue in queues_of_model(info))]

    async def read(queue: str) -> EventCounts:
        return await AsyncOutbox(store, prefix(queue) if queue else RUNS_KEY).counts()

    each = await asyncio.gather(*map(read, queues))
    counts: dict[str, EventCounts] = {}
    for model, own in zip(map(model_of, queues), each, strict=True):
        before = counts.get(model, EventCounts(0, 0))
        counts[model] = EventCounts(before.waiting + own.waiting, before.undelivered + own.undelivered)
    return counts


class EventFigures(Collector):
    """Events of webhooks, by model; those of runs have no model."""

    def __init__(self, events: Mapping[str, EventCounts]) -> None:
        self._events = events

    def collect(self) -> Iterator[Metric]:
        waiting = GaugeMetricFamily("penstock_webhook_waiting", "Events due, or to be tried again", labels=("model",))
        undelivered = GaugeMetricFamily("penstock_webhook_undelivered", "Events that were given up", labels=("model",))
        for model, counts in self._events.items():
            waiting.add_metric((model,), counts.waiting)
            undelivered.add_metric((model,), counts.undelivered)
        yield from (waiting, undelivered)

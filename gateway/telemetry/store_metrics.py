"""What the store runs on, in Prometheus' words: memory, log, the disk of the blobs; and what a model's jobs may take."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.broker.server.health import StoreHealth
from penstock.gateway.models.registry import ModelEntry


class HealthFigures(Collector):
    """`health` None: the store is away, or its administrator does not let this user ask. What is not known is not told."""

    def __init__(self, health: StoreHealth | None, *, blob_dir: Path | None) -> None:
        self._health = health
        self._blob_dir = blob_dir

    def collect(self) -> Iterator[Metric]:
        if self._health is not None:
            yield from _of_server(self._health)
        if self._blob_dir is not None:
            yield from _of_disk(self._blob_dir)


def _of_server(health: StoreHealth) -> Iterator[Metric]:
    yield GaugeMetricFamily("penstock_store_memory_used_bytes", "Memory of the store's server", value=health.memory_used_bytes)
    yield GaugeMetricFamily(
        "penstock_store_memory_limit_bytes", "What the store's server may take", value=health.memory_limit_bytes
    )
    yield GaugeMetricFamily("penstock_store_log_bytes", "Size of the store's append-only file", value=health.log_bytes)
    yield GaugeMetricFamily(
        "penstock_store_persistence_ok",
        "Whether the store's last writes to its disk went well",
        value=float(health.persistence_ok),
    )


def _of_disk(folder: Path) -> Iterator[Metric]:
    # The folder comes with the first large payload; the disk it will lie on is there before.
    nearest = next((path for path in (folder, *folder.absolute().parents) if path.exists()), None)
    if nearest is None:
        return
    usage = shutil.disk_usage(nearest)
    yield GaugeMetricFamily("penstock_blob_disk_free_bytes", "Free on the disk of large payloads", value=usage.free)
    yield GaugeMetricFamily("penstock_blob_disk_size_bytes", "Size of the disk of large payloads", value=usage.total)


class Deadlines(Collector):
    """The deadline that a job has unless its submit names one: what an age is held against."""

    def __init__(self, entries: Iterable[ModelEntry]) -> None:
        self._entries = entries

    def collect(self) -> Iterator[Metric]:
        told = GaugeMetricFamily("penstock_model_deadline_seconds", "Default deadline", labels=("model", "priority"))
        for entry in self._entries:
            told.add_metric((entry.name, "interactive"), entry.info.limits.deadline_s)
            told.add_metric((entry.name, "bulk"), entry.info.limits.bulk_deadline_s)
        yield told

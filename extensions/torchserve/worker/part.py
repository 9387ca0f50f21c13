"""What a worker does for TorchServe: it shows what handlers of archives count under TorchServe's names too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.extensions.torchserve.settings.table import TorchServeSettings
from penstock.handlers.metrics.samples import MetricSample
from penstock.model_spec import ModelSpec
from penstock.workers.fleet.parts import WorkerHost, WorkerPart
from penstock.workers.slot.context import Observer

if TYPE_CHECKING:
    from penstock.extensions.torchserve.worker.series import TorchServeSeries


class SeriesObserver(Observer):
    """Hands the samples of handlers to the series, before the worker's own series add to them."""

    wants_every_batch = False

    def __init__(self, series: TorchServeSeries) -> None:
        self._series = series

    def on_measured(self, spec: ModelSpec, slot: str, samples: Sequence[MetricSample]) -> None:
        self._series.add(samples)


def worker_part(host: WorkerHost) -> WorkerPart:
    """With the setting `torchserve.metrics`, the worker's page of metrics shows these series beside its own.

    Without it, or without a port for metrics, nothing is loaded and nothing is counted.
    """
    if not (host.settings.extension(TorchServeSettings).metrics and host.settings.worker.metrics_port):
        return WorkerPart()
    # Few workers show these names, and all others do without the module.
    from penstock.extensions.torchserve.worker.series import TorchServeSeries

    series = TorchServeSeries()
    host.metrics.register(series)
    return WorkerPart(observers=[SeriesObserver(series)])

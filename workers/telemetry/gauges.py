"""A worker's metrics beside those of its batches: sweeps, slots, memory, devices, the machine, build.

Gauges are read at the scrape and not at the beat. The beat renews leases, and a GPU driver that hangs must not stop that.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import penstock
from penstock.broker.records import Repair, SweepReport
from penstock.broker.store.links.refusals import asked_again
from penstock.errors import StoreUnavailable
from penstock.model_spec import SlotDeviceUse, SlotInfo
from penstock.workers.devices.gpus import PyNvml
from penstock.workers.telemetry.gpu_meter import GpuMeter
from penstock.workers.telemetry.host_gauges import HostGauges

Call = Callable[[float], float | None]


class _AskedAgain(Collector):
    """The calls that links to the store had to repeat."""

    def collect(self) -> Iterator[Metric]:
        calls = CounterMetricFamily("penstock_store_asked_again", "Calls that the store did not take at once", labels=("code",))
        for code, count in asked_again.items():
            calls.add_metric((code,), count)
        yield calls


class UpkeepMetrics:
    """`slots` returns this worker's slots as they are now, `serving` how many of each model are to take jobs;
    `on_store_failure` counts a failed call to the store, by part. `state_dir`: the folder on whose disk free space is shown.
    """

    def __init__(
        self,
        worker: str,
        registry: CollectorRegistry,
        *,
        slots: Callable[[], Sequence[SlotInfo]],
        serving: Callable[[], Mapping[str, int]],
        on_store_failure: Callable[[str], None],
        state_dir: Path,
    ) -> None:
        self._on_store_failure = on_store_failure
        self._sweeps = Counter("penstock_sweeps", "Rounds of one queue by the sweeper.", registry=registry)
        self._swept = Counter("penstock_swept", "Jobs moved by sweeps.", ["to"], registry=registry)
        self._repairs = Counter("penstock_repairs", "Records found wrong and mended.", ["what"], registry=registry)
        build = Gauge("penstock_build_info", "Always 1; the version runs here.", ["version"], registry=registry)
        build.labels(penstock.__version__).set(1)
        registry.register(_SlotGauges(worker, slots, serving, GpuMeter(PyNvml())))
        registry.register(HostGauges(state_dir))
        registry.register(_AskedAgain())

    def swept(self, report: SweepReport) -> None:
        self._sweeps.inc()
        moved = {
            "queued": report.requeued,
            "dead": report.dead,
            "expired": report.expired,
            "cancelled": report.cancelled,
            "promoted": report.promoted,
            "collected": report.collected,
            "gone": report.gone,
        }
        for to, count in moved.items():
            if count:
                self._swept.labels(to).inc(count)

    def on_repaired(self, repair: Repair) -> None:
        for what, count in (("orphan", repair.orphans), ("tickets", repair.tickets), ("gone", repair.gone)):
            if count:
                self._repairs.labels(what).inc(count)

    def counting_failures(self, part: str, call: Call) -> Call:
        """The same call, which counts a failure under `part` when the store is away."""

        def counted(now: float) -> float | None:
            try:
                return call(now)
            except StoreUnavailable:
                self._on_store_failure(part)
                raise

        return counted


class _SlotGauges(Collector):
    def __init__(
        self, worker: str, slots: Callable[[], Sequence[SlotInfo]], serving: Callable[[], Mapping[str, int]], gpus: GpuMeter
    ) -> None:
        self._worker = worker
        self._slots = slots
        self._serving = serving
        self._gpus = gpus

    def describe(self) -> list[GaugeMetricFamily]:
        """Nothing. The registry would else collect at registration, when there are no slots yet."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        slots = self._slots()
        yield self._up(slots)
        yield self._wanted()
        yield _resident(slots)
        yield from self._devices(sorted({slot.device_uuid for slot in slots} - {""}))

    def _up(self, slots: Sequence[SlotInfo]) -> GaugeMetricFamily:
        up = GaugeMetricFamily("penstock_worker_up", "Ready slots.", labels=("model", "worker"))
        for model in sorted({slot.model for slot in slots}):
            ready = sum(slot.state == "ready" for slot in slots if slot.model == model)
            up.add_metric((model, self._worker), ready)
        return up

    def _wanted(self) -> GaugeMetricFamily:
        family = GaugeMetricFamily("penstock_worker_wanted", "Slots that are to take jobs.", labels=("model", "worker"))
        for model, count in sorted(self._serving().items()):
            family.add_metric((model, self._worker), count)
        return family

    def _devices(self, devices: Sequence[str]) -> Iterator[GaugeMetricFamily]:
        used = GaugeMetricFamily("penstock_device_memory_used_bytes", "Memory in use, by all processes.", labels=("device",))
        total = GaugeMetricFamily("penstock_device_memory_total_bytes", "Memory of the device.", labels=("device",))
        busy = GaugeMetricFamily("penstock_device_utilization_ratio", "Share of the last moment it worked.", labels=("device",))
        for device in devices:
            reading = self._gpus.read(device)
            if reading is None:
                continue
            used.add_metric((device,), reading.used_bytes)
            total.add_metric((device,), reading.total_bytes)
            if reading.utilization is not None:
                busy.add_metric((device,), reading.utilization)
        yield from (used, total, busy)


def _resident(slots: Sequence[SlotInfo]) -> GaugeMetricFamily:
    family = GaugeMetricFamily("penstock_child_resident_bytes", "Memory of a slot's child.", labels=("model", "slot"))
    numbers: Tally[str] = Tally()
    for slot in slots:
        number, numbers[slot.model] = numbers[slot.model], numbers[slot.model] + 1
        if size_bytes := resident_bytes(slot.pid):
            family.add_metric((slot.model, str(number)), size_bytes)
    return family


class SlotMeter:
    """The present memory and device use of slots, which a worker announces."""

    def __init__(self, gpus: GpuMeter) -> None:
        self._gpus = gpus

    def measured(self, infos: Iterable[SlotInfo]) -> tuple[SlotInfo, ...]:
        """The same slots with what they use. Each GPU is asked once."""
        slots = list(infos)
        uses = {uuid: self._use(uuid) for uuid in {info.device_uuid for info in slots} - {""}}
        return tuple(
            replace(info, memory_bytes=resident_bytes(info.pid), device_use=uses.get(info.device_uuid)) for info in slots
        )

    def _use(self, uuid: str) -> SlotDeviceUse | None:
        reading = self._gpus.read(uuid)
        if reading is None:
            return None
        return SlotDeviceUse(reading.used_bytes, reading.utilization, reading.memory_utilization, reading.total_bytes)


def resident_bytes(pid: int) -> int:
    """The resident memory of a child; 0 if it has just ended, or has not begun."""
    try:
        return int(psutil.Process(pid).memory_info().rss) if pid else 0
    except psutil.NoSuchProcess:
        return 0

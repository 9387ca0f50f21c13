"""The machine under a worker: its processors, memory and load, and the disk of the state folder, which a scrape alone reads.

The figures are the machine's, also in a container with limits of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from penstock.model_spec import HostLoad


class HostMeter:
    """Reads the machine's load from the kernel's own numbers, so that a read never waits for a driver."""

    def __init__(self) -> None:
        self._busy_s, self._all_s = _cpu_times()

    def read(self) -> HostLoad:
        memory = psutil.virtual_memory()
        return HostLoad(self._cpu(), os.getloadavg()[0], memory.total - memory.available, memory.total)

    def _cpu(self) -> float:
        busy_s, all_s = _cpu_times()
        passed_s = all_s - self._all_s
        share = (busy_s - self._busy_s) / passed_s if passed_s > 0 else 0.0
        self._busy_s, self._all_s = busy_s, all_s
        return min(1.0, max(0.0, share))


class HostGauges(Collector):
    """`folder`: the state folder, on whose disk free space is read. It may be made later than this."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._meter = HostMeter()

    def describe(self) -> list[GaugeMetricFamily]:
        """Nothing. The registry would else collect at registration, right after the first reading."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        load = self._meter.read()
        yield _gauge(
            "cpu_utilization_ratio", "Share of the machine's processors that worked since the last scrape.", load.cpu_share
        )
        yield _gauge("load_average", "Processes that ran or waited, mean of a minute.", load.load_average)
        yield _gauge("memory_used_bytes", "Memory that programs could not get.", load.memory_used_bytes)
        yield _gauge("memory_total_bytes", "Memory of the machine.", load.memory_total_bytes)
        yield from self._disk()

    def _disk(self) -> Iterator[GaugeMetricFamily]:
        """Absent if the disk cannot be read."""
        there = next((one for one in (self._folder, *self._folder.parents) if one.exists()), Path("/"))
        try:
            disk = psutil.disk_usage(str(there))
        except OSError:
            return
        yield _gauge("disk_free_bytes", "Free on the disk of the state folder.", disk.free)
        yield _gauge("disk_size_bytes", "Size of that disk.", disk.total)


def _cpu_times() -> tuple[float, float]:
    """Seconds in which processors worked, and all their seconds, since the machine's start."""
    times = psutil.cpu_times()
    # Time of guests is part of `user` and `nice` already.
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return total - times.idle - getattr(times, "iowait", 0.0), total


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"penstock_host_{name}", text, value=value)

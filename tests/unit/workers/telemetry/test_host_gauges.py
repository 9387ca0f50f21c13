"""The figures of the machine under a worker."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import psutil
import pytest
from prometheus_client import CollectorRegistry

from penstock.workers.telemetry.host_gauges import HostGauges


def figures(gauges: HostGauges) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(gauges)
    return {sample.name.removeprefix("penstock_host_"): sample.value for one in registry.collect() for sample in one.samples}


def test_they_are_those_of_the_machine(tmp_path: Path) -> None:
    # The state folder is made by whoever writes there first.
    found = figures(HostGauges(tmp_path / "state" / "not-made-yet"))
    assert found["memory_total_bytes"] == psutil.virtual_memory().total
    assert 0 < found["memory_used_bytes"] < found["memory_total_bytes"]
    assert found["disk_size_bytes"] == shutil.disk_usage(tmp_path).total
    assert 0 <= found["disk_free_bytes"] <= found["disk_size_bytes"]
    assert found["load_average"] >= 0.0


def test_the_processors_share_is_that_since_the_last_look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    times = type(psutil.cpu_times())
    at = dict.fromkeys(times._fields, 0.0) | {"user": 100.0, "idle": 1_000.0}
    monkeypatch.setattr(psutil, "cpu_times", lambda: times(**at))
    gauges = HostGauges(tmp_path)
    at |= {"user": 103.0, "system": 1.0, "idle": 1_015.0, "iowait": 1.0, "guest": 2.0}
    assert figures(gauges)["cpu_utilization_ratio"] == pytest.approx(4 / 20)
    assert figures(gauges)["cpu_utilization_ratio"] == 0.0


def test_work_shows(tmp_path: Path) -> None:
    gauges, until = HostGauges(tmp_path), time.process_time() + 0.2
    while time.process_time() < until:
        pass
    assert figures(gauges)["cpu_utilization_ratio"] > 0.0
